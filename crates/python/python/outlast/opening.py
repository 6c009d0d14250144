"""Opening a run: the store that it is in, the run created or found, held against the budget that was asked for, claimed and left."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import re
import shlex
import threading
import time
import weakref
from typing import Any, ClassVar, Literal, Protocol

from . import _native, budget as budgets, html
from .budget import Budget
from .errors import BudgetChanged, Error, LeaseLost, RunCompleted, RunEnded, RunHalted, RunHeld, RunNotOpen, StopRequested, UnknownRun, of, reason
from .kept import Files
from .say import say
from .steps.memory import Beside, Memory
from .views import RunView

#: Seconds for which the end of a store waits for threads of batches that were left.
_LAST_S = 2.0

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
    #: The directory whose files are kept.
    files: "str | os.PathLike[str] | Files | None" = None
    files_from: Literal["as-died", "last-step"] = "as-died"

    def __post_init__(self) -> None:
        if self.on_divergence not in (None, "live", "halt"):
            raise ValueError(f"on_divergence wants 'live' or 'halt', had {self.on_divergence!r}")
        if self.if_held not in ("raise", "takeover"):
            raise ValueError(f"if_held wants 'raise' or 'takeover', had {self.if_held!r}")
        if self.files_from not in ("as-died", "last-step"):
            raise ValueError(f"files_from wants 'as-died' or 'last-step', had {self.files_from!r}")
        if self.files is not None and not isinstance(self.files, Files):
            self.files = Files(self.files).directory
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise TypeError(f"budget wants outlast.Budget(usd=…), had {self.budget!r}")
        texts = [("a run's id", self.id), ("a run's name", self.name), *((f"tag {tag!r}", text) for tag, text in self.tags.items())]
        for what, text in texts:
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{what} wants a text, had {text!r}")


class Working(Protocol):
    """Work that a store finishes before it is closed: a batch."""

    def drain(self) -> None: ...


class Store:
    """An open store: its engine, and what this process has open in it. One for each place in a process, so that all
    connections share one instance and heartbeat."""

    place: str
    _engine: _native.Engine
    # Runs that are open here, by id, and batches.
    _live: "weakref.WeakValueDictionary[str, RunHandle]"
    _batches: "weakref.WeakSet[Working]"
    # Held to look at the open runs, or to change them.
    _opening: threading.Lock
    # Threads of batches that were left while items ran in them.
    _left_behind: list[threading.Thread]

    # The stores that are open in this process, by place. The lock is held to change them.
    _open: "ClassVar[dict[str, Store]]" = {}
    _open_lock: ClassVar[threading.Lock] = threading.Lock()

    def get(self, id: str) -> RunView:
        """The run as the store has it. Claims nothing. Errors: `UnknownRun`."""
        # A process of this machine that was killed is seen at once.
        self._engine.sweep()
        return RunView.parse(self._engine.view(id))

    def close(self) -> None:
        """Leaves open runs as `interrupted` and closes the store. Idempotent. The end of the process does the same."""
        with self._open_lock:
            if self._open.get(self.place) is self:
                del self._open[self.place]
        for run in list(self._live.values()):
            run._leave("interrupt", quiet=True)
        for batch in list(self._batches):
            batch.drain()
        self._engine.close()
        # Their calls end with the proxy of the engine.
        over = time.monotonic() + _LAST_S
        for thread in self._left_behind:
            thread.join(max(0.0, over - time.monotonic()))

    def _is_in_use(self) -> bool:
        """Returns whether a run or a batch of this store is open in this process."""
        return bool(self._live) or bool(self._batches)

    @classmethod
    def _is_any_run_open(cls) -> bool:
        """Whether a run or a batch of any store is open in this process."""
        return any(store._is_in_use() for store in cls._open.values())


def typed(engine: _native.Engine, hint: str | None) -> str | None:
    """A hint with its commands as they have to be typed: with `--store`, where the store is not the usual one."""
    if hint is None or engine.place == _native.Engine.resolve(None):
        return hint
    # A command that names its store stays as it is.
    return re.sub(r"`(outlast (?:(?!--store)[^`])*)`", lambda command: f"`{command[1]} --store {shlex.quote(engine.place)}`", hint)


class RunHandle:
    """A run as this process holds it: opened, heard whether it may go on, left. `Run` adds what an agent does in it."""

    def __init__(self, store: Store, spec: RunSpec, *, lazy: bool = False) -> None:
        self._store = store
        self._engine = store._engine
        self._spec = spec
        self._id = spec.id if spec.id is not None else os.environ.get("OUTLAST_RUN_ID") or None
        self._lazy = lazy
        self._on_divergence = spec.on_divergence
        self._lock = threading.RLock()
        self.steps = Memory()

    _state: Literal["new", "open", "left"] = "new"
    _open_run: _native.OpenRun | None = None
    _no = 0
    # Whether the first step or loop opens the run.
    _lazy = False
    _on_divergence: Literal["live", "halt"] | None = None
    # Entry and scope in which an item of a batch records its steps; None for the run's own steps.
    _within: int | None = None
    _scope: str | None = None
    # Number of the supervisor's run, if this one is its child.
    _parent: int | None = None
    _below: bool | None = None
    # Whether the run was opened by `async with`.
    _is_async = False
    # Whether a snapshot of files is taken at the end of each step.
    _keeps_files = False
    # Whether the task that opens the run was cancelled meanwhile.
    _unwanted = False
    # The request, in words, that was seen to pass Outlast by.
    _past: str | None = None
    # Attempt that was left. Steps under way in it are still recorded; new ones cannot begin.
    _left: _native.OpenRun | None = None

    # --- what it is

    @property
    def _identity(self) -> str:
        """The part of the run's idempotency keys that is the same in every life of the run."""
        return self.id

    @property
    def id(self) -> str:
        """The run's id. A run without a given id has one once it is open."""
        if self._id is None:
            raise RunNotOpen("the run has no id before it is opened", hint="use `with rt.run() as run:`")
        return self._id

    @property
    def attempt(self) -> int:
        """The number of this life of the run, from 1; 0 while a completed run is replayed."""
        open_run = self._open_run_or_replay()
        return 0 if open_run is None else open_run.attempt

    @property
    def is_replay(self) -> bool:
        """Whether the run is completed and only replays what is recorded."""
        return self._state == "open" and self._open_run is None

    @property
    def _is_child(self) -> bool:
        """Whether the run spends from the budget of the supervisor's run, as a child at any depth. Its calls then go through
        that run's proxy."""
        if self._parent is None:
            return False
        if self._below is None:
            above: Any = self._store.get(os.environ["OUTLAST_RUN_ID"]).raw["charges"]
            own: Any = self.view().raw["charges"]
            self._below = above[0] in own[1:]
        return self._below

    @property
    def _past_of(self) -> "RunHandle":
        """The handle that keeps what passed Outlast by: of an item, its job's."""
        return self

    def view(self) -> RunView:
        """The run as the store has it now."""
        return RunView.parse(self._engine.view(self.id))

    def _repr_html_(self) -> str:
        try:
            return self.view()._repr_html_()
        except Error:
            return html.table(repr(self), (), ())

    def __repr__(self) -> str:
        return f"<outlast.Run {self._id or '(new)'} {self._state}>"

    # --- opening and leaving

    def _open(self) -> None:
        with self._lock:
            if self._state == "open":
                raise RunNotOpen(f"run {self._id} is open already by this handle")
            status = self._create()
            self._register()
            open_run = None
            try:
                open_run = None if status == "completed" else claim(self)
                if open_run is not None:
                    self._keeps_files = keep_files(open_run, self._spec)
                iteration = open_run.iteration if open_run else int(self.view().raw["iteration"])
                self.steps.begin(self._engine.recorded(self._no, iteration))
            except BaseException:
                self._unregister()
                if open_run is not None:
                    with contextlib.suppress(Exception):
                        open_run.end("interrupt")
                raise
            self._open_run = open_run
            self._state = "open"
        if self._unwanted:
            self._leave("interrupt", quiet=True)

    def _register(self) -> None:
        """Makes this handle the only one that this process has of the run. Errors: `RunHeld` if another thread has the run
        open."""
        live = self._store._live
        while True:
            with self._store._opening:
                found = live.get(self.id)
                if found is None or found is self or self._spec.if_held == "takeover":
                    if found is not None and found is not self:
                        found._state = "left"
                    live[self.id] = self
                    return
            if not found._unwanted:
                raise RunHeld(
                    f"run {self._id} is open in this process already",
                    hint='use that handle, or take it over with if_held="takeover"',
                )
            with found._lock:
                # The lock is free once the unwanted handle is open: leave it then.
                found._leave("interrupt", quiet=True)

    def _unregister(self) -> None:
        with self._store._opening:
            if self._store._live.get(self.id) is self:
                del self._store._live[self.id]

    def _is_open_here(self) -> bool:
        """Whether any handle of this process has the run open."""
        return self._store._live.get(self.id) is not None

    def _create(self) -> str:
        """Creates the run, or finds an existing one, and gives the run's status."""
        if self._lazy:
            raw = self.view().raw
            self._no = int(raw["no"])
            return str(raw["status"])
        self._parent = supervisor_of(self._store, self._id)
        # A run of this process is the nearer parent: it is itself a child of the supervisor's run.
        self._no, self._id, status = create(self, self._above() or self._parent)
        self._spec = dataclasses.replace(self._spec, from_snapshot=None)
        return status

    def _above(self) -> int | None:
        """Returns the number of the enclosing run of this process, whose budget this run also spends; None without one."""
        return None

    def _halted(self, error: RunHalted) -> RunHalted:
        return halted(self, error)

    def _heard(self, response: Any) -> None:
        """Records that a request of this run was answered."""

    def _leave(self, how: "_native.End", quiet: bool = False, error: BaseException | None = None) -> None:
        with self._lock:
            if self._state != "open":
                if self._state == "new":
                    self._state = "left" if not self._lazy else "new"
                return
            self._state = "left"
            open_run, self._open_run = self._open_run, None
            self._left = open_run
            self._unregister()
        if open_run is None:
            return
        try:
            open_run.end(how, reason(error))
        except Exception:
            # The original error counts more. The run is found interrupted when our heartbeat ends.
            if not quiet:
                raise

    def _open_run_or_replay(self) -> _native.OpenRun | None:
        """The open attempt; None where a completed run is replayed. Errors: `RunNotOpen`, `StopRequested`, `LeaseLost`."""
        if self._state != "open":
            if not (self._lazy and self._state == "new"):
                raise RunNotOpen(
                    f"run {self._id or '(new)'} is not open: it was left, or never entered",
                    hint="work inside `with rt.run(…) as run:`",
                )
            with self._lock:
                # Several threads may do the first steps of the run.
                if self._state == "new":
                    self._open()
                    self.steps.beside = self.steps.beside or Beside()
        open_run = self._open_run
        if open_run is not None:
            word = open_run.word()
            if word != "go on":
                raise self._may_not_go_on(word)
        return open_run

    def _may_not_go_on(self, word: Literal["stop", "lost", "away"]) -> StopRequested | LeaseLost:
        match word:
            case "stop":
                return StopRequested(f"run {self._id} was asked to stop", hint="open it again to go on")
            case "lost":
                return LeaseLost(
                    f"the lease of run {self._id} is lost: this process was declared dead",
                    hint="another attempt may drive the run now; open it again",
                )
            case "away":
                return LeaseLost(
                    f"run {self._id} begins nothing now: its store has taken no heartbeat of this process for a while, and another one may drive the run",
                    hint="try again when the store answers: the run goes on if its lease is still held; what is open is recorded then",
                )

    def _open_run_or_raise(self, what: str) -> _native.OpenRun:
        open_run = self._open_run_or_replay()
        if open_run is None:
            raise self._completed(what)
        return open_run

    def _completed(self, what: str) -> RunCompleted:
        return RunCompleted(
            f"run {self._id} is completed, and {what} is not recorded in it",
            hint="open a run with another id, to do more",
        )

    def _lasted(self) -> float:
        """Seconds from the creation of a completed run to its end."""
        view = self.view()
        return ((view.ended_at or view.created_at) - view.created_at).total_seconds()


def create(run: RunHandle, parent: int | None) -> tuple[int, str, str]:
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
        say(f"{'run' if spec.job is None else 'job'} {id} may spend 5.00 usd by clients of outlast.openai() and the like (budget=outlast.Budget(usd=…) sets it)")
    if not created and spec.budget is not None:
        status = _compare(run._store, no, id, spec.budget, status)
    return no, id, status


def _compare(store: Store, no: int, id: str, budget: Budget, status: str) -> str:
    """Compares the limits that were asked for with the run's own. Gives the run's status, which a raise of a limit can
    change."""
    wanted = budget.limits()
    view = store.get(id)
    has: dict[str, int | None] = {line["unit"]: line["limit"] for line in view.raw["budget"]}
    other = {unit: value for unit, value in wanted.items() if has[unit] != value}
    if not other:
        return status
    # As on the command line, a process of a supervised run changes no limits: the person who started it does.
    is_persons = "OUTLAST_MARK" not in os.environ
    if budget.amend and is_persons:
        return store._engine.amend(no, other)
    asked: dict[str, int | None] | None = view.raw["asked"]
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


def claim(run: RunHandle) -> _native.OpenRun | None:
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


def keep_files(open_run: _native.OpenRun, spec: RunSpec) -> bool:
    """Begins to keep the run's files, and gives whether any are kept. Errors: codes of `docs/guides/files.md`."""
    if spec.files is None and not open_run.has_files:
        return False
    files = spec.files
    directory = files.directory if isinstance(files, Files) else files
    rules = (files.ignored, list(files.exclude), files.max_bytes) if isinstance(files, Files) else None
    open_run.keep_files(None if directory is None else os.fspath(directory), rules, spec.files_from == "last-step")
    return True


def halted(run: RunHandle, error: RunHalted) -> RunHalted:
    """The error for a halted run, with the class and the code of the limit that halted the run."""
    error.hint = typed(run._engine, error.hint)
    if error.code != "run_halted":
        return error
    view = run.view()
    if view.halt_code is None:
        return error
    halt: dict[str, str] = view.raw["halt"]
    made = of(view.halt_code, f"run {run.id} is halted: {view.halt_message}", halt["hint"])
    made.hint = typed(run._engine, made.hint)
    return made if isinstance(made, RunHalted) else error


def supervisor_of(store: Store, id: str | None) -> int | None:
    """The number of the supervisor's run, of which a run with another id is a child; None without a supervisor."""
    supervised = os.environ.get("OUTLAST_RUN_ID")
    if not supervised or supervised == id:
        return None
    try:
        raw = store.get(supervised).raw
    except UnknownRun:
        # The run is in another store than the supervisor's, and is no child of its run.
        return None
    return int(raw["no"]) if raw["status"] in ("running", "waiting") else None


def fork(engine: _native.Engine, run: str, point: int | str | datetime.datetime, limits: dict[str, int]) -> str:
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
