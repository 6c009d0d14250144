"""The errors of the package: one class for each fact, all of them `Error`.

`code` is the same in every face of Outlast (HTTP, the command line, Python); `hint` says what to do.
"""

from __future__ import annotations


class Error(Exception):
    """The base of all errors. `str(e)` is the fact and, on a second line, a hint what to do about it."""

    code: str = "error"
    hint: str | None = None

    def __init__(self, message: str = "", *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Pools of processes pickle exceptions.
        return (type(self), (self.message,), self.__dict__)


#: The name that the Statehouse client gives to the base of its errors.
StatehouseError = Error


class UnknownRun(Error):
    """No run has the given id."""

    code = "unknown_run"


class UnknownSnapshot(Error):
    """The run has no snapshot of this name, or no such attempt."""

    code = "unknown_snapshot"


class RunHeld(Error):
    """Another live process drives the run; the message says which."""

    code = "run_held"


class RunEnded(Error):
    """The run is completed, failed or cancelled: nothing more can be opened in it."""

    code = "run_ended"


class RunCompleted(RunEnded):
    """A new step was asked for in a completed run, which only replays what is recorded."""

    code = "run_completed"


class RunHalted(Error):
    """The run is halted: by a limit, or by what its rules refuse. `code` says which."""

    code = "run_halted"


class BudgetExceeded(RunHalted):
    """A limit of the run's budget refused something; `code` names it, for example `loop_budget_exceeded`."""

    code = "budget_exceeded"


class ApprovalDenied(Error):
    """A tool call that was asked about may not be made. `code` and `status` say why: `approval_denied` by a person,
    `approval_timeout` when nobody decided in time, `approval_blocked` where the run's policy has no such tool."""

    code = "approval_denied"

    def __init__(
        self,
        message: str = "",
        *,
        status: str = "denied",
        reason: str | None = None,
        by: str | None = None,
        id: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code or f"approval_{status}")
        #: `denied`, `timeout` or `blocked`.
        self.status = status
        #: The reason that the person gave.
        self.reason = reason
        #: The person who decided.
        self.by = by
        #: The question's id, as `outlast approvals --all` prints it.
        self.id = id


class BudgetChanged(Error):
    """The run has another limit than the one asked for; nothing was changed."""

    code = "budget_changed"


class BadLimit(Error):
    """A limit of a budget is negative, or no number."""

    code = "bad_limit"


class LeaseLost(Error):
    """Another attempt drives the run now, or may do so because the store cannot be reached: this process opens nothing more
    in the run."""

    code = "lease_lost"


class StopRequested(Error):
    """A person asked the run to stop (`outlast stop`)."""

    code = "stop_requested"


class RunNotOpen(Error):
    """The handle of a run was used before `with`, or after the run was left."""

    code = "run_not_open"


class NoRun(Error):
    """The code was called outside of a run."""

    code = "no_run"


class ForkedHandle(Error):
    """The handle was opened by another process, from which this one was forked."""

    code = "forked_handle"


class Conflict(Error):
    """The state has another version than the one expected; nothing was written."""

    code = "conflict"


class ReadOnlyNamespace(Error):
    """A namespace `run:<id>` is written by its own run only."""

    code = "read_only_namespace"


class TransactionError(Error):
    """The transaction cannot go on: it expired, ended, or is too large; `code` says which."""

    code = "transaction"


class Compacted(Error):
    """Compaction has removed the version of a key that was asked for."""

    code = "compacted"


class NoServer(Error):
    """The server of a `Statehouse(url=…)` cannot be reached."""

    code = "no_server"


class AlreadySettled(Error):
    """The entry is closed already."""

    code = "already_settled"


class AlreadyTaken(Error):
    """Another process began the step anew: its result counts, this one's is dropped."""

    code = "already_taken"


class NotSerializable(Error, TypeError):
    """The result cannot be recorded as JSON. The step is recorded as failed."""

    code = "not_serializable"


class DuplicateKey(Error):
    """Two steps of one life of the run have the same `key=`; or two items of a batch have the same key."""

    code = "duplicate_key"


class Unkeyable(Error, TypeError):
    """An argument or an item has no key: its class does not show everything that its values hold, so that two different ones
    could look equal."""

    code = "unkeyable"


class StepDiverged(Error):
    """The program did a step that earlier lives did not do, while recorded steps of its name are left over."""

    code = "step_diverged"


class StepInDoubt(Error):
    """An `at_most_once` step was begun before, and its outcome is not known: it is not run again."""

    code = "step_in_doubt"


class StepFailed(Error):
    """The step failed in an earlier life, or a person said that it failed."""

    code = "step_failed"


class ToolFailed(Error):
    """A tool raised an exception in an earlier life that cannot be made again. The text is that exception's own."""

    code = "tool_failed"


class StepTimeout(Error, TimeoutError):
    """A step or an item took longer than its `timeout`."""

    code = "step_timeout"


class ItemFailed(Error):
    """The item failed in an earlier life of the job."""

    code = "item_failed"
    #: The traceback of the item's exception, as text; None where there was none.
    traceback: str | None = None


class JobChanged(Error):
    """Done items would run again for other content or code; nothing was called."""

    code = "job_changed"


class NothingMetered(Error):
    """Items are finished under a limit of money or tokens, and none of their calls came through Outlast."""

    code = "nothing_metered"


class RepeatedFailure(Error):
    """The batch stopped: many items in a row failed alike."""

    code = "repeated_failure"


class StoreError(Error):
    """The store cannot be opened, read or written; `code` says which."""

    code = "store"


class WouldRepay(Error):
    """A resume would compute `count` results again, and pay for them again; nothing was called."""

    code = "would_repay"

    def __init__(self, message: str = "", count: int = 0, what: str = "", *, hint: str | None = None, code: str | None = None) -> None:
        if what:
            message = f"job {message} cannot leave out what is done: its generator {what}; {count:,} results would be paid for again"
            hint = "redrive=True computes them again; or make the generator's calls steps (outlast.step), which are not repeated"
        super().__init__(message, hint=hint, code=code)
        #: Results that would be computed again.
        self.count = count


class Skip(Exception):
    """To be raised by an item's function: the item is skipped, without a result."""


class CompactedWarning(UserWarning):
    """Compaction has removed some versions of what is replayed."""


class DivergenceWarning(UserWarning):
    """With `on_divergence="live"`: the program did a step that earlier lives did not do, and the step is executed."""


class OtherShape(UserWarning):
    """The results of a generator do not each follow one pull of an input: a resume would compute all of them again."""


class UnrecordedWarning(UserWarning):
    """An `@outlast.step` function was called where there is no current run, while a run is open."""


#: Codes for which a run waits for its provider.
OUTAGES = frozenset({"provider_unreachable", "provider_failing", "key_refused", "quota_ended"})

_BY_CODE: dict[str, type[Error]] = {
    cls.code: cls
    for cls in (
        UnknownRun, UnknownSnapshot, RunHeld, RunEnded, RunHalted, BadLimit, LeaseLost, StopRequested, ForkedHandle, Conflict,
        AlreadySettled, AlreadyTaken, ReadOnlyNamespace, Compacted,
    )
}  # fmt: skip
_BY_CODE["label_ended"] = LeaseLost
_BY_CODE["instance_dead"] = LeaseLost
_BY_CODE["not_running"] = LeaseLost
_BY_CODE["price_unknown"] = RunHalted
_BY_CODE["diverged"] = RunHalted


def reason(error: BaseException | None) -> str | None:
    """Why a program leaves its run, in one line: the error that ended the work. None where there is none."""
    match error:
        case None:
            return None
        case KeyboardInterrupt():
            return "a person interrupted it (Ctrl-C)"
        case Error():
            text = error.message
        case _:
            try:
                text = f"{type(error).__name__}: {error}".removesuffix(": ")
            except Exception:
                text = type(error).__name__
    line = text.split("\n", 1)[0]
    return line if len(line) <= 300 else line[:299] + "…"


def of(code: str, message: str, hint: str | None = None) -> Error:
    """Makes the exception for an error code of the engine."""
    if code.endswith("_budget_exceeded"):
        cls: type[Error] = BudgetExceeded
    elif code.startswith("store_") or code == "commit_unknown":
        cls = StoreError
    elif code.startswith("transaction_") or code == "too_many_transactions":
        cls = TransactionError
    else:
        cls = _BY_CODE.get(code, Error)
    if code == "not_running":
        # The engine's hint names a command, which starts a supervisor's program only.
        hint = "open the run again, or start the program again"
    if hint is not None:
        # The engine's hint names a flag of the command line.
        hint = hint.replace("--store", 'outlast.connect("FILE")')
    return cls(message, hint=hint, code=code)


__all__ = [name for name, value in list(globals().items()) if isinstance(value, type)]

# Names of the Statehouse client's `exceptions`, for code whose import alone is changed. `from .errors import *` leaves them
# out: one of them is a name of Python's own.
ConnectionError = NoServer
NotFoundError = UnknownRun
