"""The OpenAI Agents SDK on Outlast: `pip install 'outlast[openai-agents]'`.

    from outlast.openai_agents import OutlastSession, durable

    agent = Agent("clerk", tools=[durable(charge)], model=…)
    with rt.run("order-7"):
        Runner.run_sync(agent, "charge ann", session=OutlastSession("ann"))

A tool call is done once over all lives of the run. What a turn adds to the session is added in one commit, and once: a
later life of the run finds it added, and reads the session as the first one did.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from agents import FunctionTool, RunState  # type: ignore[import-not-found,unused-ignore]

from . import codec, runs, runtime, scope
from .errors import ApprovalDenied, NotSerializable
from .state.statehouse import Statehouse, Transaction
from .steps.life import begin
from .steps.spec import StepSpec
from .tools import Effect, InDoubt, ToolSpec

if TYPE_CHECKING:
    import os

    from .runtime import Runtime

__all__ = ["OutlastSession", "durable", "pause", "resumed"]

_NAMESPACE = "openai_agents"
_NEXT = "next"


def durable(tool: FunctionTool, *, effect: Effect = "once", approve: bool | None = None, in_doubt: InDoubt = "raise") -> FunctionTool:
    """The function tool, each call of which is done once over all lives of a run, known by the model's tool-call id.

    `effect` and `in_doubt` are those of `outlast.tool`. With `approve`, which is the tool's own `needs_approval=True` by
    default, a person is asked by `run.approve` and the SDK no longer interrupts the run; the model is told of a denial.
    Outside of `with rt.run(…)` the tool is as it was. Errors: `StepInDoubt`.
    """
    asks = tool.needs_approval is True if approve is None else approve
    spec = ToolSpec(tool.name, effect, asks, in_doubt)
    inner = tool.on_invoke_tool

    async def on_invoke_tool(context: Any, arguments: str) -> Any:
        # The arguments are the model's, for people to read: the call is known by its id.
        async def made(**_: Any) -> Any:
            return _plain(await inner(context, arguments))

        if scope.variable.get() is None:
            return await inner(context, arguments)
        try:
            shown = _shown(arguments)
            return await spec.call(made, (), shown if isinstance(shown, dict) else {}, id=context.tool_call_id, shown=shown)
        except ApprovalDenied as e:
            return e.message

    made = copy.copy(tool)
    made.on_invoke_tool = on_invoke_tool
    if asks:
        made.needs_approval = _outside_of_runs
    return made


async def _outside_of_runs(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
    """Whether the SDK itself interrupts for a person's approval: only outside of runs."""
    return scope.variable.get() is None


def _plain(outcome: Any) -> Any:
    try:
        codec.encode(outcome)
    except NotSerializable:
        # What the SDK makes of it for the model.
        return str(outcome)
    return outcome


def _shown(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


class OutlastSession:
    """A session of the Agents SDK in a store of Outlast. What a turn adds is added in one commit.

    Inside `with rt.run(…)` each operation is a step of the run: a later life finds it done, and does it no second time.
    A session has one writer at a time; another one gets `Conflict`.
    """

    session_settings: Any = None

    def __init__(self, session_id: str, store: "str | os.PathLike[str] | Runtime | None" = None, *, session_settings: Any = None) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        self._runtime = runtime.of(store)
        self._state = Statehouse(namespace=_NAMESPACE, store=self._runtime)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The session's items, or the latest `limit` of them, oldest first."""
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        spans = await self._step("read", self._spans)
        numbers = [n for first, last in spans for n in range(first, last + 1)]
        return self._read(numbers if limit is None else numbers[len(numbers) - limit if limit < len(numbers) else 0 :])

    async def add_items(self, items: list[Any]) -> None:
        """Adds items, all or none. On disk before it returns."""
        if items:
            await self._step("add", self._add, json.loads(json.dumps(items, default=_dumped)))

    async def pop_item(self) -> Any:
        """Removes the session's newest item, and gives the item; None where there is none."""
        return await self._step("pop", self._pop)

    async def clear_session(self) -> None:
        """Removes all items."""
        await self._step("clear", self._clear)

    async def _step(self, what: str, fn: Any, *args: Any) -> Any:
        current = scope.variable.get()
        run = current.run if current is not None else None
        if run is None or run._store is not self._runtime:
            return fn(*args)

        async def done(*args: Any) -> Any:
            return fn(*args)

        # A model decides what a session is told next: a restarted one may tell it something else.
        spec = StepSpec(f"session {self.session_id}: {what}", done, may_diverge=True)
        return await begin(run, spec, args, {})

    # --- what is stored: `item/N` and the number of the next one

    def _spans(self) -> list[list[int]]:
        """Numbers of the session's items, as spans of (first, last)."""
        spans: list[list[int]] = []
        for key in self._keys():
            number = int(key.partition("/")[2])
            if spans and spans[-1][1] == number - 1:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        return spans

    def _read(self, numbers: list[int]) -> list[Any]:
        if not numbers:
            return []
        live = {found.key: found.value for found in self._state.iter_prefix(self.session_id, "item/")} if len(numbers) > 4 else {}
        return [live[key] if key in live else self._first(key) for key in map(_key, numbers)]

    def _first(self, key: str) -> Any:
        # An item is written once. One that was removed since is read by its version.
        return self._state.get_state_at_version(self.session_id, key, 1).value

    def _add(self, items: list[Any]) -> int:
        with self._state.begin_transaction() as tx:
            number = self._following(tx, len(items))
            for item in items:
                tx.write(self.session_id, _key(number), item)
                number += 1
        return number

    def _following(self, tx: Transaction, count: int) -> int:
        found = tx.get(self.session_id, _NEXT)
        tx.write(self.session_id, _NEXT, (found.value or 0) + count, expect_version=found.version)
        return found.value or 0

    def _pop(self) -> Any:
        keys = self._keys()
        if not keys:
            return None
        with self._state.begin_transaction() as tx:
            self._following(tx, 0)
            item = tx.get(self.session_id, keys[-1]).value
            tx.delete(self.session_id, keys[-1])
        return item

    def _clear(self) -> None:
        keys = self._keys()
        if keys:
            with self._state.begin_transaction() as tx:
                self._following(tx, 0)
                for key in keys:
                    tx.delete(self.session_id, key)

    def _keys(self) -> list[str]:
        return self._state.list_keys(self.session_id, prefix="item/")


def _key(number: int) -> str:
    return f"item/{number:012}"


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"an item of a session wants JSON, had {type(value).__name__}")


def pause(result: Any, name: str = "openai_agents") -> None:
    """Keeps the state of an interrupted result in the current run, on disk before it returns: `resumed` gives it back.

    A result that is not interrupted ends the pause.
    """
    state = result.to_state().to_json() if result.interruptions else None
    runs.current().run.checkpoint(name, None if state is None else json.dumps(state))


async def resumed(agent: Any, name: str = "openai_agents") -> RunState | None:
    """The state that `pause` kept, also in an earlier life of the run, to be approved and run on; None without one."""
    kept = runs.current().run.latest_checkpoint(name)
    return None if kept is None else await RunState.from_json(agent, json.loads(kept))
