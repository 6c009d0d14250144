"""The run that a job is, and the item of it that a function runs in."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from .. import scope
from ..errors import OUTAGES, BudgetExceeded, Error, RunEnded, RunHalted, of
from ..opening import keep_files, typed
from ..runs import Run
from ..steps.memory import Memory

if TYPE_CHECKING:
    from .. import _native


#: The header with the code of a refusal by Outlast itself.
CODE_HEADER = "x-outlast-code"

#: The header with the run of an answer that came through Outlast.
RUN_HEADER = "x-outlast-run"


class JobRun(Run):
    """The run of a job. A completed one can be opened again, since the job may be given more items."""

    def create(self) -> str:
        """Creates the job's run, or finds an existing one, and gives the run's status. Errors: `BudgetChanged`; code
        `not_a_job` for a run that is no job."""
        status = super()._create()
        if "job" not in self.view().raw:
            raise Error(
                f"run {self.id} is no batch job",
                hint="give the batch another name: job=…",
                code="not_a_job",
            )
        return status

    def _create(self) -> str:
        status = self.create()
        return "interrupted" if status == "completed" else status

    def _above(self) -> int | None:
        current = scope.variable.get()
        run = None if current is None else current.run
        is_other = run is not None and run._engine is self._engine and run._no and run._id != self._id
        return run._no if run is not None and is_other and run._open_run is not None else None

    def join(self) -> "_native.OpenRun":
        """Opens an attempt in a free slot, beside those of other processes. Errors: `BudgetExceeded` (halted), `RunEnded`
        (cancelled)."""
        try:
            open_run = self._engine.join(self.id)
        except RunHalted as e:
            raise self._halted(e) from None
        except RunEnded as e:
            raise RunEnded(e.message, hint="give the batch another name: job=…") from None
        try:
            self._keeps_files = keep_files(open_run, self._spec)
        except BaseException:
            open_run.end("interrupt")
            raise
        return open_run

    # --- the errors by which limits stop a batch

    def refusal(self, error: BaseException | None, refused: str | None) -> BaseException:
        """The error that stops the batch where a limit refused something. `refused`: the code of a call's refusal."""
        found = self.barred()
        if found is not None:
            return found
        if isinstance(error, Error):
            return error
        code = refused or "budget_exceeded"
        cls = BudgetExceeded if "budget" in code else RunHalted
        hint = typed(self._engine, f"raise it with `outlast budget {self.id} --add-usd 1`, then start the program again")
        return cls(f"job {self.id}: a call was refused with {code}", hint=hint, code=code)

    def barred(self) -> Error | None:
        """The limit or rule that keeps the job from starting more items, as an error; None if there is none."""
        found = self._engine.barred(self._no)
        if found is None:
            return None
        status, code, message, hint = found
        does = "is halted" if status == "halted" else "waits for its provider" if code in OUTAGES else "waits for room"
        text = f"job {self.id} {does}: {message}"
        made = of(code, text, hint) if "budget" in code else RunHalted(text, hint=hint, code=code)
        made.hint = typed(self._engine, made.hint)
        return made


class ItemRun(Run):
    """A claimed item: what `outlast.current().run` is in the item's function."""

    def __init__(self, job: JobRun, open_run: "_native.OpenRun", key: str, seq: int, steps_scope: str) -> None:
        # Without `Run.__init__`, which would cost too much for each of many items; the claim has opened the item.
        self._store = job._store
        self._engine = job._engine
        self._id = job.id
        self._no = job._no
        self._parent = job._parent
        self._below = job._is_child
        self._job = job
        self._lock = threading.RLock()
        self._state = "open"
        self._open_run = open_run
        self.key = key
        self._within = seq
        self._scope = steps_scope
        #: The code with which a limit refused a call: the item then goes back.
        self.refused: str | None = None
        #: Answers of this try that came through the proxy.
        self.answers = 0
        self.begin_try()

    @property
    def _identity(self) -> str:
        return f"{self.id}\0{self._scope}"

    @property
    def _past_of(self) -> JobRun:
        return self._job

    @property
    def _is_async(self) -> bool:  # type: ignore[override]
        # Decided by the running event loop, because an item is not opened by `async with`.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def begin_try(self) -> None:
        """Begins another try of the item. Unfinished steps begin anew; finished ones give their recorded results."""
        self.answers = 0
        self.steps = Memory()
        # Recorded steps are looked up when a step begins, not read ahead for each item.
        self.steps.begin(self._engine.unrecorded(self._no))

    def _heard(self, response: Any) -> None:
        code = response.headers.get(CODE_HEADER)
        if code and (response.status_code == 402 or code == "admission_timeout"):
            self.refused = str(code)
        elif response.status_code < 400:
            self.answers += 1

    def close(self) -> None:
        """Ends the item: code that the item's function left running opens nothing more in the item."""
        self._state = "left"
