"""A run, opened in this process: its steps, loops, checkpoints and state."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Awaitable, Callable, TypeVar, overload

from . import _native, approvals, codec, passing, scope
from .errors import NoRun, RunHalted, StopRequested
from .identity import identity
from .opening import RunHandle, RunSpec, Store
from .retry import Retry
from .scope import Current
from .state.run_state import Context, State
from .steps.life import begin, resolve
from .steps.memory import Beside
from .steps.spec import StepSpec

T = TypeVar("T")


class Run(RunHandle):
    """One agent's task, as this process drives it. Made by `rt.run(id)`; opened by `with` or `async with`.

    Left cleanly, the run is completed. Left by an exception, the run is `interrupted`: opening it again goes on.
    Any thread and task may call its methods.
    """

    # Names of checkpoints that this life has saved itself.
    _saved: frozenset[str] = frozenset()

    def __init__(self, store: Store, spec: RunSpec, *, lazy: bool = False) -> None:
        super().__init__(store, spec, lazy=lazy)
        self._tokens: list[Any] = []

    @functools.cached_property
    def state(self) -> State:
        return State(self)

    @functools.cached_property
    def context(self) -> Context:
        return Context(self)

    def __enter__(self) -> "Run":
        try:
            if not self._lazy:
                self._open()
            self._enter_scope()
            return self
        except BaseException as e:
            # After Ctrl-C in a run that is already open, `__exit__` is not called: leave it here.
            if self._state == "open" and not isinstance(e, Exception):
                self._exit_scope()
                self._leave(_how(type(e)), quiet=True, error=e)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._exit_scope()
        forgotten = self.steps.forgotten(self._id) if kind is None else None
        self._leave("interrupt" if forgotten else _how(kind), quiet=kind is not None, error=error or forgotten)
        if forgotten is not None:
            raise forgotten

    async def __aenter__(self) -> "Run":
        self._is_async = True
        if not self._lazy:
            self._unwanted = False
            try:
                # In a thread, because opening may wait for a lease to end.
                await asyncio.to_thread(self._open)
            except asyncio.CancelledError:
                # The opening thread goes on: the later one of this task and that thread leaves the run.
                self._unwanted = True
                if self._state == "open":
                    self._leave("interrupt", quiet=True)
                raise
        self._enter_scope()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._exit_scope()
        # Synchronous, so that it cannot be cancelled half way; takes milliseconds.
        self._leave(_how(kind), quiet=kind is not None, error=error)

    def _enter_scope(self) -> None:
        passing.watch()
        self.steps.beside = Beside()
        self._tokens.append(scope.variable.set(scope.Current(self)))

    def _exit_scope(self) -> None:
        if self._tokens:
            try:
                scope.variable.reset(self._tokens.pop())
            except ValueError:
                # The run was entered in another task's context, as by fixtures. That context ends by itself.
                pass

    # --- what it does

    @overload
    def step(self, name: str, fn: Callable[..., Awaitable[T]], *args: Any, key: str | None = None, retries: Retry | int | None = None, timeout: float | None = None, at_most_once: bool = False, **kwargs: Any) -> Awaitable[T]: ...
    @overload
    def step(self, name: str, fn: Callable[..., T], *args: Any, key: str | None = None, retries: Retry | int | None = None, timeout: float | None = None, at_most_once: bool = False, **kwargs: Any) -> T: ...
    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        retries: Retry | int | None = None,
        timeout: float | None = None,
        at_most_once: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Calls `fn(*args, **kwargs)` and records the result. A later life gets the recorded result, without a call.

        An async function makes the step awaitable. A result is JSON, a dataclass or a pydantic model of module level, up
        to 1 GiB. The step returns what was recorded, from the first life on: a tuple becomes a list. The result is on
        disk before the step returns.

        `key` names the step. Without it, a step is known by `name`, the digest of its arguments, and its place among
        equal steps. `retries` tries again after an exception (see `Retry`). `timeout` limits each try, in seconds.
        `at_most_once=True` puts on disk that the step begins before it does, and never runs it a second time: a later
        life raises `StepInDoubt`, until `resolve` says what came of it.

        Errors: what `fn` raises, recorded with its traceback (a later life runs the step again); `Unkeyable` for arguments
        whose class leaves out what they hold; `StepDiverged`, `StepInDoubt`, `StepTimeout`, `NotSerializable`,
        `DuplicateKey`, `BudgetExceeded`, `RunCompleted`, `LeaseLost`.
        """
        retry = None if retries is None else Retry.of(retries)
        return begin(self, StepSpec(name, fn, key, retry, timeout, at_most_once), args, kwargs)

    def resolve(
        self, name: str, *args: Any, key: str | None = None, rerun: bool = False, failed: str | None = None, result: Any = None, **kwargs: Any
    ) -> None:
        """Says what came of an `at_most_once` step in doubt.

        `result`: the step had its effect, and this is its result. `failed`: why the step failed; every life then raises
        `StepFailed`. `rerun=True`: the step had no effect, and runs again.

        `name`, the arguments and `key` are those of `step`. The word is on disk before `resolve` returns, marked as a
        person's. `outlast resolve RUN` says the same while the run is not open. Errors: code `unknown_step` for a step
        that never began; `not_in_doubt` for a step that is not `at_most_once`; `StepInDoubt` for one that is done.
        """
        resolve(self, name, args, kwargs, key, rerun, failed, result)

    def loop(self, key: Any = None) -> int:
        """Counts a turn of the agent's loop. Returns the number of turns so far.

        A `key` counts once over all lives of the run; without a key, every call counts. The turn is on disk before
        `loop` returns. Errors: `BudgetExceeded` at the limit; the run is halted then. `Unkeyable` for a key that is another
        one in each life.
        """
        open_run = self._open_run_or_replay()
        if open_run is None:
            return self.view().loops
        if key is not None and type(key) not in (str, int):
            # Refused where its text is another one in the next life.
            identity((key,), {})
        try:
            return open_run.count_loop(None if key is None else str(key)).wait()
        except RunHalted as e:
            raise self._halted(e) from None

    def approve(
        self, tool: str, arguments: Any = None, *, side_effect: str | None = None, timeout: float | None = None, key: str | None = None
    ) -> Any:
        """Asks a person whether `tool` may be called with these arguments. Waits for the answer, an `Approval`.

        In a run opened by `async with`, `approve` is awaitable. A person decides with `outlast approve ID` or over REST;
        the run is `waiting` meanwhile. Question and answer are on disk: the same question, also in a later life, finds
        the pending question or its answer. `key` gives the question a name of its own; the same key with other arguments
        is refused (code `other_arguments`). The run's policy may say that nobody has to be asked.

        `arguments`: JSON, dataclasses, pydantic models; at most 256 KiB. `timeout`: seconds until the question expires, a
        day by default. `side_effect=""` says that the tool only reads: a person is asked only where the run's policy names it.
        Errors: `ApprovalDenied`; `RunHalted`, `StopRequested`, `LeaseLost` during the wait.
        """
        return approvals.ask(self, approvals.Question(tool, arguments, side_effect, timeout, key), self._is_async)

    def checkpoint(self, name: str, value: Any) -> None:
        """Saves a value under a name; the newest one counts. The value is on disk before `checkpoint` returns."""
        text = codec.encode(value)
        open_run = self._open_run_or_replay()
        # A completed run has its checkpoints.
        if open_run is not None:
            open_run.checkpoint(name, text.encode()).wait()
            self._saved |= {name}

    def snapshot(self, name: str) -> None:
        """Names the point where the run is now, for `rt.run(id, from_snapshot=name)`. On disk before `snapshot` returns."""
        _native.snapshot(self._engine, self.id, name)

    def latest_checkpoint(self, name: str, default: Any = None) -> Any:
        """The newest value saved under `name` in any life of the run, or `default`.

        A program that asks for the checkpoint of an earlier life may go on from there: the steps before it count as done.
        """
        self._open_run_or_replay()
        found = self._engine.latest_checkpoint(self._no, name)
        if found is None:
            return default
        seq, value = found
        if name not in self._saved and self.steps.recorded is not None:
            self.steps.recorded.pass_over(seq)
        return codec.decode(value)


def _how(kind: type[BaseException] | None) -> "_native.End":
    if kind is None:
        return "complete"
    return "stopped" if issubclass(kind, (KeyboardInterrupt, StopRequested)) else "interrupt"


def current() -> Current[Run]:
    """The run, the step and the try that the caller runs in. Errors: `NoRun` outside of a run."""
    found = scope.variable.get()
    if found is None:
        raise NoRun(
            "there is no current run: this was called outside of one",
            hint="call it inside `with rt.run(…):`; a new thread needs contextvars.copy_context().run(…)",
        )
    return found
