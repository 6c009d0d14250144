"""A job as a run: many workers at once, and each of its items is what its function runs in."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from .. import scope, steps
from ..budget import Budget
from ..errors import Error, RunEnded, RunHalted
from ..runs import Run
from ..state import Context, State

if TYPE_CHECKING:
    from .. import _native
    from ..runtime import Runtime


#: What a refusal of Outlast's own is called, in its answer.
CODE_HEADER = "x-outlast-code"


class JobRun(Run):
    """The run that a job is. This process works in a slot of its own, beside others."""

    def __init__(self, runtime: "Runtime", job: str, budget: Budget | None, tags: dict[str, str]) -> None:
        super().__init__(
            runtime, job, budget=budget, tags=tags, name=None, on_divergence=None, if_held="raise"
        )
        self._job = job

    def create(self) -> str:
        """Creates the run, or finds it; the status it has. Errors: `BudgetChanged`, `Error` where it is no job."""
        status = self._create()
        if self.view().raw["job"] is None:
            raise Error(
                f"run {self.id} is no batch job",
                hint="give the batch another name: job=…",
                code="not_a_job",
            )
        return status

    def _above(self) -> int | None:
        current = scope.variable.get()
        run = None if current is None else current.run
        is_other = run is not None and run._engine is self._engine and run._no and run._id != self._id
        return run._no if run is not None and is_other and run._seat is not None else None

    def join(self) -> "_native.Seat":
        """An attempt in a free slot. Errors: `BudgetExceeded` (halted), `RunEnded` (cancelled)."""
        try:
            return self._engine.join(self.id)
        except RunHalted as e:
            raise self._halted(e) from None
        except RunEnded as e:
            raise RunEnded(e.message, hint="give the batch another name: job=…") from None


class ItemRun(Run):
    """A claimed item, as `outlast.current().run` shows it to the item's function."""

    def __init__(self, job: JobRun, seat: "_native.Seat", key: str, seq: int, steps_scope: str) -> None:
        # Not `Run.__init__`: an item is opened by its claim, and there are many.
        self._runtime = job._runtime
        self._engine = job._engine
        self._id = job.id
        self._no = job._no
        self._parent = job._parent
        self._on_divergence = None
        self._lazy = False
        self._lock = threading.RLock()
        self._state = "open"
        self._seat = seat
        self.key = key
        self._within = seq
        self._scope = steps_scope
        self._identity = f"{job.id}\0{steps_scope}"
        self._steps: steps.Memory | None = None
        #: What a call was refused with by a limit: the item then goes back.
        self.refused: str | None = None
        #: Answers that passed the proxy.
        self.answers = 0

    @property
    def _is_async(self) -> bool:  # type: ignore[override]
        # Whether the item's function is: nobody opened the item by `async with`.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    @property
    def steps(self) -> steps.Memory:  # type: ignore[override]
        with self._lock:
            if self._steps is None:
                self._steps = steps.Memory(self)
                # What the item recorded before is found when a step begins: no reading ahead for each item.
                self._steps.begin(self._engine.unrecorded(self._no))
            return self._steps

    @property
    def state(self) -> State:  # type: ignore[override]
        return State(self)

    @property
    def context(self) -> Context:  # type: ignore[override]
        return Context(self)

    def begin_try(self) -> None:
        """Another try does its steps from the first one on; those that are finished give what they recorded."""
        self._steps = None
        self.answers = 0

    def _heard(self, response: Any) -> None:
        code = response.headers.get(CODE_HEADER)
        if code and (response.status_code == 402 or code == "admission_timeout"):
            self.refused = str(code)
        elif response.status_code < 400:
            self.answers += 1

    def close(self) -> None:
        """The item is over: what its function left behind opens nothing more in it."""
        self._state = "left"
