"""Opening a run: created or found, held against the budget that was asked for, and claimed."""

from __future__ import annotations

import dataclasses
import datetime
import os
from typing import TYPE_CHECKING, Literal

from . import _native, budget as budgets
from .budget import Budget
from .errors import BudgetChanged, RunEnded, RunHalted, UnknownRun, of
from .say import say

if TYPE_CHECKING:
    from .runs import Run
    from .runtime import Runtime

#: The budget of a run that is created without one.
DEFAULT = Budget(usd=5)


@dataclasses.dataclass
class RunSpec:
    """The parameters of `Runtime.run`, checked. Errors: `TypeError`, `ValueError`."""

    #: None: the supervisor's id, or a new one.
    id: str | None
    budget: Budget | None = None
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    name: str | None = None
    on_divergence: Literal["live", "halt"] | None = None
    if_held: Literal["raise", "takeover"] = "raise"
    policy: str | None = None
    #: The name of the batch job that the run is.
    job: str | None = None
    #: The point of run `id` from which the run goes on, as a fork.
    from_snapshot: int | str | datetime.datetime | None = None

    def __post_init__(self) -> None:
        if self.on_divergence not in (None, "live", "halt"):
            raise ValueError(f"on_divergence wants 'live' or 'halt', had {self.on_divergence!r}")
        if self.if_held not in ("raise", "takeover"):
            raise ValueError(f"if_held wants 'raise' or 'takeover', had {self.if_held!r}")
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise TypeError(f"budget wants outlast.Budget(usd=…), had {self.budget!r}")
        texts = [("a run's id", self.id), ("a run's name", self.name), *((f"tag {tag!r}", text) for tag, text in self.tags.items())]
        for what, text in texts:
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{what} wants a text, had {text!r}")


def create(run: "Run", parent: int | None) -> tuple[int, str, str]:
    """Creates or finds the run. Returns its number, id and status. `parent`: the run whose budget it also spends.

    Errors: `BudgetChanged`; `UnknownRun` and `UnknownSnapshot` for a fork.
    """
    engine, spec, id, budget = run._engine, run._spec, run._id, run._spec.budget
    if spec.from_snapshot is not None:
        # The fork is a child of the original run, and spends what that run has left.
        id = fork(engine, run.id, spec.from_snapshot, budget.limits() if budget else {})
    elif budget is None and parent is None:
        budget = DEFAULT
    limits = budget.limits() if budget else {}
    no, id, created, status = engine.start(
        id, limits, spec.tags, spec.name, spec.on_divergence, parent, spec.job, spec.policy, budget is DEFAULT
    )
    if created and budget is DEFAULT and spec.policy is None:
        say(f"{'run' if spec.job is None else 'job'} {id} may spend 5.00 usd (budget=outlast.Budget(usd=…) sets it)")
    if not created and spec.budget is not None:
        status = _compare(run._runtime, no, id, spec.budget, status)
    return no, id, status


def _compare(runtime: "Runtime", no: int, id: str, budget: Budget, status: str) -> str:
    """Compares the limits that were asked for with the run's own. Gives the run's status, which a raise of a limit can
    change."""
    wanted = budget.limits()
    view = runtime.get(id)
    has: dict[str, int | None] = view.raw["limits"]  # type: ignore[assignment]
    other = {unit: value for unit, value in wanted.items() if has[unit] != value}
    if not other:
        return status
    # As on the command line, a process of a supervised run changes no limits: the person who started it does.
    is_persons = "OUTLAST_MARK" not in os.environ
    if budget.amend and is_persons:
        return runtime._engine.amend(no, other)
    asked: dict[str, int | None] | None = view.raw["asked"]  # type: ignore[assignment]
    if asked is not None and {unit: value for unit, value in asked.items() if value is not None} == wanted:
        # The script asks for the same limits as at first; a person has raised them since.
        return status
    unit, value = next(iter(other.items()))
    raise BudgetChanged(
        f"run {id} has {budgets.shown(unit, has[unit])} as its limit, and {budgets.shown(unit, value)} was asked for",
        hint="a run keeps its limits; Budget(…, amend=True) sets the new total"
        if is_persons
        else "a process of a run changes no limits; a person does, in a shell of their own: `outlast budget`",
    )


def claim(run: "Run") -> "_native.OpenRun | None":
    """Claims an attempt for this process, or joins the supervisor's. None if the run was completed meanwhile.

    Errors: `RunHeld`, `RunHalted`, `RunEnded`.
    """
    token = os.environ.get("OUTLAST_TOKEN")
    try:
        if token and os.environ.get("OUTLAST_RUN_ID") == run.id:
            return run._engine.adopt(run.id, token)
        return run._engine.claim(run.id, run._spec.if_held == "takeover")
    except RunHalted as e:
        raise halted(run, e) from None
    except RunEnded as e:
        if run.view().status == "completed":
            # Another process completed the run between our read and our claim.
            return None
        raise RunEnded(e.message, hint="open a run with another id") from None


def halted(run: "Run", error: RunHalted) -> RunHalted:
    """The error for a halted run, with the class and the code of the limit that halted the run."""
    if error.code != "run_halted":
        return error
    view = run.view()
    if view.halt_reason is None:
        return error
    halt: dict[str, str] = view.raw["halt"]  # type: ignore[assignment]
    made = of(view.halt_reason, f"run {run.id} is halted: {view.halt_message}", halt["hint"])
    return made if isinstance(made, RunHalted) else error


def supervisor_of(runtime: "Runtime", id: str | None) -> int | None:
    """The number of the supervisor's run, of which a run with another id is a child; None without a supervisor."""
    supervised = os.environ.get("OUTLAST_RUN_ID")
    if not supervised or supervised == id:
        return None
    try:
        raw = runtime.get(supervised).raw
    except UnknownRun:
        # The run is in another store than the supervisor's, and is no child of its run.
        return None
    return int(raw["no"]) if raw["status"] in ("running", "waiting") else None  # type: ignore[call-overload]


def fork(engine: "_native.Engine", run: str, point: int | str | datetime.datetime, limits: dict[str, int]) -> str:
    """Forks a run from a snapshot's name, an attempt's number (its end) or a time. Gives the fork's id.

    The same point gives the same fork. Errors: `UnknownRun`, `UnknownSnapshot`.
    """
    if isinstance(point, datetime.datetime):
        if point.tzinfo is None:
            raise ValueError("from_snapshot wants a time with its zone, had one without")
        return _native.fork(engine, run, None, int(point.timestamp() * 1_000_000), None, limits)
    if isinstance(point, int) and not isinstance(point, bool):
        return _native.fork(engine, run, point, None, None, limits)
    if isinstance(point, str):
        return _native.fork(engine, run, None, None, point, limits)
    raise TypeError(f"from_snapshot wants a name, an attempt's number or a time, had {point!r}")
