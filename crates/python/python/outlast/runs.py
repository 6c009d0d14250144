"""A run, opened in this process: its steps, loops, checkpoints and state."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import threading
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Literal, TypeVar, overload

from . import _native, approvals, budget as budgets, codec, doubt, scope, steps
from .beside import Beside
from .budget import Budget
from .errors import BudgetChanged, LeaseLost, RunCompleted, RunEnded, RunHalted, RunHeld, RunNotOpen, StopRequested, StoreError, of
from .retry import Retry
from .say import say
from .state import Context, State
from .views import RunView

if TYPE_CHECKING:
    from .runtime import Runtime

T = TypeVar("T")

#: What a run may spend that is created without a budget.
DEFAULT = Budget(usd=5)


class Run:
    """One agent's task, as this process drives it. Made by `rt.run(id)`; opened by `with` or `async with`.

    Left cleanly, the run is completed; left by an exception, it is `interrupted`, to be resumed by opening it again.
    Its methods may be called from any thread and task.
    """

    def __init__(
        self,
        runtime: "Runtime",
        id: str | None,
        *,
        budget: Budget | None,
        tags: dict[str, str],
        name: str | None,
        on_divergence: Literal["live", "halt"] | None,
        if_held: Literal["raise", "takeover"],
        lazy: bool = False,
        policy: str | None = None,
    ) -> None:
        if on_divergence not in (None, "live", "halt"):
            raise ValueError(f"on_divergence wants 'live' or 'halt', had {on_divergence!r}")
        if if_held not in ("raise", "takeover"):
            raise ValueError(f"if_held wants 'raise' or 'takeover', had {if_held!r}")
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget wants outlast.Budget(usd=…), had {budget!r}")
        for what, text in (("a run's id", id), ("a run's name", name), *((f"tag {tag!r}", text) for tag, text in tags.items())):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{what} wants a text, had {text!r}")
        self._runtime = runtime
        self._engine = runtime._engine
        self._id = id if id is not None else os.environ.get("OUTLAST_RUN_ID") or None
        self._budget = budget
        self._tags = tags
        self._name = name
        self._on_divergence = on_divergence
        self._if_held = if_held
        self._policy = policy
        # Opened by the first step or loop.
        self._lazy = lazy
        # The name of the batch that it is, and where steps of an item are kept.
        self._job: str | None = None
        # The point of run `id` from which this one goes on, until it is open.
        self._from_snapshot: int | str | datetime.datetime | None = None
        self._scope: str | None = None
        self._within: int | None = None
        self._lock = threading.RLock()
        self._state: Literal["new", "open", "left"] = "new"
        self._seat: _native.Seat | None = None
        self._no = 0
        # The supervisor's run, of which this may be a child.
        self._parent: int | None = None
        self._below: bool | None = None
        self._tokens: list[Any] = []
        self.steps = steps.Memory(self)
        self.state = State(self)
        self.context = Context(self)

    # Opened by `async with`.
    _is_async = False
    # Whoever wanted it open was cancelled while it was being opened.
    _unwanted = False
    # The attempt that was left: what is under way in it is still recorded, but nothing is begun.
    _left: "_native.Seat | None" = None
    # Names of checkpoints that this life has saved itself.
    _saved: frozenset[str] = frozenset()

    # --- what it is

    @property
    def id(self) -> str:
        """The run's id. Of a new run without one it is known once the run is open."""
        if self._id is None:
            raise RunNotOpen("the run has no id before it is opened", hint="use `with rt.run() as run:`")
        return self._id

    @property
    def attempt(self) -> int:
        """The number of this life, from 1; 0 while a completed run is replayed."""
        seat = self._seat_or_replay()
        return 0 if seat is None else seat.attempt

    @property
    def is_replay(self) -> bool:
        """Whether the run is completed, and only replays what is recorded."""
        return self._state == "open" and self._seat is None

    @property
    def _is_child(self) -> bool:
        """Whether it spends of the supervisor's budget, however far below: its calls go through that proxy, and are charged there."""
        if self._parent is None:
            return False
        if self._below is None:
            above: Any = self._runtime.get(os.environ["OUTLAST_RUN_ID"]).raw["charges"]
            own: Any = self.view().raw["charges"]
            self._below = above[0] in own[1:]
        return self._below

    def view(self) -> RunView:
        """The run as it is committed."""
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
            # Ctrl-C may come when it is open, and nobody then leaves it.
            if self._state == "open" and not isinstance(e, Exception):
                self._exit_scope()
                self._leave(_how(type(e)), quiet=True)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._exit_scope()
        self._leave(_how(kind), quiet=kind is not None)

    async def __aenter__(self) -> "Run":
        self._is_async = True
        if not self._lazy:
            self._unwanted = False
            try:
                # A run may be held for a lease: the loop goes on meanwhile.
                await asyncio.to_thread(self._open)
            except asyncio.CancelledError:
                # The thread goes on: whoever of the two comes later leaves it.
                self._unwanted = True
                if self._state == "open":
                    self._leave("interrupt", quiet=True)
                raise
        self._enter_scope()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._exit_scope()
        # Not to be cancelled half way, and a matter of milliseconds.
        self._leave(_how(kind), quiet=kind is not None)

    def _enter_scope(self) -> None:
        self.steps.beside = Beside()
        self._tokens.append(scope.variable.set(scope.Current(self)))

    def _exit_scope(self) -> None:
        if self._tokens:
            try:
                scope.variable.reset(self._tokens.pop())
            except ValueError:
                # Entered in another task's context, as fixtures do: that context ends by itself.
                pass

    def _open(self) -> None:
        with self._lock:
            if self._state == "open":
                raise RunNotOpen(f"run {self._id} is open already by this handle")
            status = self._create()
            self._register()
            seat = None
            try:
                seat = None if status == "completed" else self._claim()
                iteration = seat.iteration if seat else int(self.view().raw["iteration"])  # type: ignore[call-overload]
                self.steps.begin(self._engine.recorded(self._no, iteration))
                self._saved = frozenset()
            except BaseException:
                self._unregister()
                if seat is not None:
                    with contextlib.suppress(Exception):
                        seat.end("interrupt")
                raise
            self._seat = seat
            self._state = "open"
        if self._unwanted:
            self._leave("interrupt", quiet=True)

    def _register(self) -> None:
        """One handle of a run in a process: two threads that open it are told apart before either has claimed it."""
        live = self._runtime._live
        while True:
            with self._runtime._opening:
                found = live.get(self.id)
                if found is None or found is self or self._if_held == "takeover":
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
                # It is left as soon as it is open.
                found._leave("interrupt", quiet=True)

    def _unregister(self) -> None:
        with self._runtime._opening:
            if self._runtime._live.get(self.id) is self:
                del self._runtime._live[self.id]

    def _create(self) -> str:
        from .runtime import parent_of

        if self._lazy:
            raw = self.view().raw
            self._no = int(raw["no"])  # type: ignore[call-overload]
            return str(raw["status"])
        parent = parent_of(self._runtime, self._id)
        self._parent = parent
        # Of the supervisor's the nearer one is a child itself.
        parent = self._above() or parent
        budget = self._budget
        if self._from_snapshot is not None:
            # A child of the run it was: it spends what that one has left.
            limits = budget.limits() if budget else {}
            self._id = fork(self._engine, self.id, self._from_snapshot, limits)
            self._from_snapshot = None
        elif budget is None and parent is None:
            budget = DEFAULT
        limits = budget.limits() if budget else {}
        self._no, self._id, created, status = self._engine.start(
            self._id, limits, self._tags, self._name, self._on_divergence, parent, self._job, self._policy, budget is DEFAULT
        )
        if created and budget is DEFAULT and self._policy is None:
            say(f"{'run' if self._job is None else 'job'} {self._id} may spend 5.00 usd (budget=outlast.Budget(usd=…) sets it)")
        if not created and self._budget is not None:
            status = self._compare(self._budget, status)
        return status

    def _above(self) -> int | None:
        """The run of this process that it is created in, and whose budget it spends of, too."""
        return None

    def _compare(self, budget: Budget, status: str) -> str:
        """Holds the limits asked for against the run's own. Returns the run's status, which a raise can change."""
        wanted = budget.limits()
        view = self.view()
        has: dict[str, int | None] = view.raw["limits"]  # type: ignore[assignment]
        other = {unit: value for unit, value in wanted.items() if has[unit] != value}
        if not other:
            return status
        if budget.amend:
            return self._engine.amend(self._no, other)
        asked: dict[str, int | None] | None = view.raw["asked"]  # type: ignore[assignment]
        if asked is not None and {unit: value for unit, value in asked.items() if value is not None} == wanted:
            # The script says what it said; a person has raised the limit since.
            return status
        unit, value = next(iter(other.items()))
        raise BudgetChanged(
            f"run {self.id} has {budgets.shown(unit, has[unit])} as its limit, and {budgets.shown(unit, value)} was asked for",
            hint="a run keeps its limits; Budget(…, amend=True) sets the new total",
        )

    def _claim(self) -> "_native.Seat | None":
        token = os.environ.get("OUTLAST_TOKEN")
        try:
            if token and os.environ.get("OUTLAST_RUN_ID") == self._id:
                return self._engine.adopt(self.id, token)
            return self._engine.claim(self.id, self._if_held == "takeover")
        except RunHalted as e:
            raise self._halted(e) from None
        except RunEnded as e:
            if self.view().status == "completed":
                # Another process finished it between our look and our claim.
                return None
            raise RunEnded(e.message, hint="open a run with another id") from None

    def _halted(self, error: RunHalted) -> RunHalted:
        """The same, with the limit that halted the run as its class and code."""
        if error.code != "run_halted":
            return error
        view = self.view()
        if view.halt_reason is None:
            return error
        halt: dict[str, str] = view.raw["halt"]  # type: ignore[assignment]
        made = of(view.halt_reason, f"run {self.id} is halted: {view.halt_message}", halt["hint"])
        return made if isinstance(made, RunHalted) else error

    def _heard(self, response: Any) -> None:
        """An answer came to a request of this run."""

    def _leave(self, how: str, quiet: bool = False) -> None:
        with self._lock:
            if self._state != "open":
                if self._state == "new":
                    self._state = "left" if not self._lazy else "new"
                return
            self._state = "left"
            seat, self._seat = self._seat, None
            self._left = seat
            self._unregister()
        if seat is None:
            return
        try:
            seat.end(how)
        except Exception:
            # What brought us here is the news; the run is found interrupted when our heartbeat ends.
            if not quiet:
                raise

    def _seat_or_replay(self) -> "_native.Seat | None":
        """The open attempt; None where a completed run is replayed. Errors: `RunNotOpen`, `StopRequested`, `LeaseLost`."""
        if self._state != "open":
            if not (self._lazy and self._state == "new"):
                raise RunNotOpen(
                    f"run {self._id or '(new)'} is not open: it was left, or never entered",
                    hint="work inside `with rt.run(…) as run:`",
                )
            with self._lock:
                # Several threads may do its first steps.
                if self._state == "new":
                    self._open()
                    self.steps.beside = self.steps.beside or Beside()
        seat = self._seat
        if seat is not None:
            word = seat.word()
            if word == "stop":
                raise StopRequested(f"run {self._id} was asked to stop", hint="open it again to go on")
            if word == "vanished":
                raise StoreError(
                    f"the store {self._runtime.place} vanished while run {self._id} was open: its file was removed or replaced",
                    hint="put it back and start again; what is done now could not be kept",
                    code="store_vanished",
                )
            if word == "lost":
                raise LeaseLost(
                    f"the lease of run {self._id} is lost: this process was declared dead",
                    hint="another attempt may drive the run now; open it again",
                )
        return seat

    def _seat_or_raise(self, what: str) -> "_native.Seat":
        seat = self._seat_or_replay()
        if seat is None:
            raise RunCompleted(
                f"run {self._id} is completed, and {what} is not recorded in it",
                hint="open a run with another id, to do more",
            )
        return seat

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
        """Calls `fn(*args, **kwargs)` and records its result; a later life gets the recorded result instead.

        An async function makes the step awaitable. The result is JSON, a dataclass or a pydantic model, and what is
        returned is what was recorded, from the first life on. It is on disk before it is returned.

        A step is known by `key`, else by its name, the digest of its arguments, and its place among equal ones.
        `retries` tries again what raised (see `Retry`); `timeout` is in seconds for each try. With
        `at_most_once=True` it is on disk that the step begins before it does, and it never runs a second time:
        `StepInDoubt`, until `resolve` says what came of it.

        Errors: what `fn` raises (recorded with its traceback; a later life runs the step again), `StepDiverged`,
        `StepInDoubt`, `StepTimeout`, `NotSerializable`, `DuplicateKey`, `BudgetExceeded`, `RunCompleted`, `LeaseLost`.
        """
        return steps.begin(self, name, fn, args, kwargs, key, Retry.of(retries), timeout, at_most_once)

    def resolve(
        self, name: str, *args: Any, key: str | None = None, rerun: bool = False, failed: str | None = None, result: Any = None, **kwargs: Any
    ) -> None:
        """Says what came of an `at_most_once` step in doubt: its result; or why it failed, which it then raises in
        every life, as `StepFailed`; or that it may run again.

        The step is named as `step` names it, without its function. On disk before it returns, and marked as said by a
        person; `outlast resolve RUN` does the same while the run is not open. Errors: code `unknown_step` for a step
        that was never begun; `not_in_doubt` for one that is not `at_most_once`; `StepInDoubt` when it is done.
        """
        doubt.resolve(self, name, args, kwargs, key, rerun, failed, result)

    def loop(self, key: Any = None) -> int:
        """Counts a turn of the agent's loop, and returns how many there are.

        A key counts once over all lives of the run; without one every call counts. On disk before it returns.
        Errors: `BudgetExceeded` at the limit, and the run is halted.
        """
        seat = self._seat_or_replay()
        if seat is None:
            return self.view().loops
        try:
            return seat.count_loop(None if key is None else str(key)).wait()  # type: ignore[no-any-return]
        except RunHalted as e:
            raise self._halted(e) from None

    def approve(
        self, tool: str, arguments: Any = None, *, side_effect: str | None = None, timeout: float | None = None, key: str | None = None
    ) -> Any:
        """Asks a person whether `tool` may be called with these arguments, and waits for the answer: an `Approval`.

        In a run opened by `async with` it is awaitable. A person decides with `outlast approve ID`, or over REST; the
        run is `waiting` meanwhile. The question and the answer are on disk: asked again with the same arguments, also
        by a later life, it finds the pending question, or its answer. `key` asks under a name of its own; the same key
        with other arguments is refused (code `other_arguments`). Nobody has to be asked where the run's policy says so.

        `arguments`: JSON, dataclasses, pydantic models; at most 256 KiB. `timeout`: in seconds, a day without it; nobody
        can decide after it. Errors: `ApprovalDenied`; `RunHalted`, `StopRequested`, `LeaseLost` while it waits.
        """
        question = approvals.Question(self, tool, arguments, side_effect, timeout, key)
        return question.ask_async() if self._is_async else question.ask()

    def checkpoint(self, name: str, value: Any) -> None:
        """Saves a value under a name; the newest one counts. On disk before it returns."""
        text = codec.encode(value)
        seat = self._seat_or_replay()
        # A completed run has its checkpoints.
        if seat is not None:
            seat.checkpoint(name, text.encode()).wait()
            self._saved |= {name}

    def snapshot(self, name: str) -> None:
        """Gives the point where the run is now a name, for `rt.run(id, from_snapshot=name)`. On disk before it returns."""
        _native.snapshot(self._engine, self.id, name)

    def latest_checkpoint(self, name: str, default: Any = None) -> Any:
        """The newest value saved under `name` in any life of the run, or `default`.

        Who asks for what an earlier life saved may go on from there: the steps before it need not be done again.
        """
        self._seat_or_replay()
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


def fork(engine: "_native.Engine", run: str, point: int | str | datetime.datetime, limits: dict[str, int]) -> str:
    """Forks a run from a snapshot's name, an attempt's number (its end) or a time; the fork's id.

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
