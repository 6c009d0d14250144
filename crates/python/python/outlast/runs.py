"""A run, opened in this process: its steps, loops, checkpoints and state."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import threading
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Literal, TypeVar, overload

from . import _native, approvals, codec, opening, scope, steps
from .errors import LeaseLost, RunCompleted, RunHalted, RunHeld, RunNotOpen, StopRequested
from .identity import identity
from .opening import RunSpec
from .retry import Retry
from .state.run_state import Context, State
from .steps import StepSpec, doubt
from .steps.beside import Beside
from .views import RunView

if TYPE_CHECKING:
    from .runtime import Runtime

T = TypeVar("T")


class Run:
    """One agent's task, as this process drives it. Made by `rt.run(id)`; opened by `with` or `async with`.

    Left cleanly, the run is completed. Left by an exception, the run is `interrupted`: opening it again goes on.
    Any thread and task may call its methods.
    """

    def __init__(self, runtime: "Runtime", spec: RunSpec, *, lazy: bool = False) -> None:
        self._runtime = runtime
        self._engine = runtime._engine
        self._spec = spec
        self._id = spec.id if spec.id is not None else os.environ.get("OUTLAST_RUN_ID") or None
        # Whether the first step or loop opens the run.
        self._lazy = lazy
        self._on_divergence = spec.on_divergence
        # Scope in which an item of a batch records its steps; None for the run's own steps.
        self._scope: str | None = None
        self._within: int | None = None
        self._lock = threading.RLock()
        self._state: Literal["new", "open", "left"] = "new"
        self._open_run: _native.OpenRun | None = None
        self._no = 0
        # Number of the supervisor's run, if this one is its child.
        self._parent: int | None = None
        self._below: bool | None = None
        self._tokens: list[Any] = []
        self.steps = steps.Memory(self)
        self.state = State(self)
        self.context = Context(self)

    # Whether the run was opened by `async with`.
    _is_async = False
    # Whether the task that opens the run was cancelled meanwhile.
    _unwanted = False
    # Attempt that was left. Steps under way in it are still recorded; new ones cannot begin.
    _left: "_native.OpenRun | None" = None
    # Names of checkpoints that this life has saved itself.
    _saved: frozenset[str] = frozenset()

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
            above: Any = self._runtime.get(os.environ["OUTLAST_RUN_ID"]).raw["charges"]
            own: Any = self.view().raw["charges"]
            self._below = above[0] in own[1:]
        return self._below

    def view(self) -> RunView:
        """The run as the store has it now."""
        return RunView.parse(self._engine.view(self.id))

    def __repr__(self) -> str:
        return f"<outlast.Run {self._id or '(new)'} {self._state}>"

    # --- opening and leaving

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
                self._leave(_how(type(e)), quiet=True)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._exit_scope()
        forgotten = self.steps.forgotten() if kind is None else None
        self._leave("interrupt" if forgotten else _how(kind), quiet=kind is not None)
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
        self._leave(_how(kind), quiet=kind is not None)

    def _enter_scope(self) -> None:
        self.steps.beside = Beside()
        self._tokens.append(scope.variable.set(scope.Current(self)))

    def _exit_scope(self) -> None:
        if self._tokens:
            try:
                scope.variable.reset(self._tokens.pop())
            except ValueError:
                # The run was entered in another task's context, as by fixtures. That context ends by itself.
                pass

    def _open(self) -> None:
        with self._lock:
            if self._state == "open":
                raise RunNotOpen(f"run {self._id} is open already by this handle")
            status = self._create()
            self._register()
            open_run = None
            try:
                open_run = None if status == "completed" else opening.claim(self)
                iteration = open_run.iteration if open_run else int(self.view().raw["iteration"])  # type: ignore[call-overload]
                self.steps.begin(self._engine.recorded(self._no, iteration))
                self._saved = frozenset()
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
        live = self._runtime._live
        while True:
            with self._runtime._opening:
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
        with self._runtime._opening:
            if self._runtime._live.get(self.id) is self:
                del self._runtime._live[self.id]

    def _is_open_here(self) -> bool:
        """Whether any handle of this process has the run open."""
        return self._runtime._live.get(self.id) is not None

    def _create(self) -> str:
        """Creates the run, or finds an existing one, and gives the run's status."""
        if self._lazy:
            raw = self.view().raw
            self._no = int(raw["no"])  # type: ignore[call-overload]
            return str(raw["status"])
        self._parent = opening.supervisor_of(self._runtime, self._id)
        # A run of this process is the nearer parent: it is itself a child of the supervisor's run.
        self._no, self._id, status = opening.create(self, self._above() or self._parent)
        self._spec = dataclasses.replace(self._spec, from_snapshot=None)
        return status

    def _above(self) -> int | None:
        """Returns the number of the enclosing run of this process, whose budget this run also spends; None without one."""
        return None

    def _halted(self, error: RunHalted) -> RunHalted:
        return opening.halted(self, error)

    def _heard(self, response: Any) -> None:
        """Records that a request of this run was answered."""

    def _leave(self, how: str, quiet: bool = False) -> None:
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
            open_run.end(how)
        except Exception:
            # The original error counts more. The run is found interrupted when our heartbeat ends.
            if not quiet:
                raise

    def _open_run_or_replay(self) -> "_native.OpenRun | None":
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
            if word == "stop":
                raise StopRequested(f"run {self._id} was asked to stop", hint="open it again to go on")
            if word == "lost":
                raise LeaseLost(
                    f"the lease of run {self._id} is lost: this process was declared dead",
                    hint="another attempt may drive the run now; open it again",
                )
            if word == "away":
                raise LeaseLost(
                    f"run {self._id} begins nothing now: its store has taken no heartbeat of this process for a while, and another one may drive the run",
                    hint="try again when the store answers: the run goes on if its lease is still held; what is open is recorded then",
                )
        return open_run

    def _open_run_or_raise(self, what: str) -> "_native.OpenRun":
        open_run = self._open_run_or_replay()
        if open_run is None:
            raise self._completed(what)
        return open_run

    def _completed(self, what: str) -> RunCompleted:
        return RunCompleted(
            f"run {self._id} is completed, and {what} is not recorded in it",
            hint="open a run with another id, to do more",
        )

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
        return steps.begin(self, StepSpec(name, fn, key, retry, timeout, at_most_once), args, kwargs)

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
        doubt.resolve(self, name, args, kwargs, key, rerun, failed, result)

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
            return open_run.count_loop(None if key is None else str(key)).wait()  # type: ignore[no-any-return]
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


def _how(kind: type[BaseException] | None) -> str:
    if kind is None:
        return "complete"
    return "stopped" if issubclass(kind, (KeyboardInterrupt, StopRequested)) else "interrupt"

