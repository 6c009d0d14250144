"""PydanticAI on Outlast: `pip install 'outlast[pydantic-ai]'`.

    from outlast.pydantic_ai import OutlastDurability

    agent = Agent("openai:gpt-4.1", name="clerk", capabilities=[OutlastDurability()])
    with rt.run("order-7"):
        agent.run_sync("charge ann")

Each model request, tool call and discovery of an agent's run is a step of the current run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError
from pydantic_ai.durable_exec import (  # type: ignore[import-not-found,unused-ignore]
    JSON_CODEC,
    BaseDurabilityCapability,
    CallToolResult,
    DurabilityEngineSpec,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
)

from . import scope
from .steps.life import begin
from .steps.spec import StepSpec
from .tools import Effect, ToolSpec

__all__ = ["OutlastDurability"]

# Key of a tool's metadata that says its effect.
_METADATA = "outlast"


class OutlastDurability(BaseDurabilityCapability[Any]):  # type: ignore[misc,unused-ignore]
    """Makes each run of an agent durable inside `with rt.run(…)`; elsewhere it does nothing.

    Model requests, tool calls and discoveries are recorded on disk before the agent sees what came of them; the next life of
    the run replays them. The agent needs a `name`, which is part of what is recorded, as are the ids of added toolsets.
    Tools run one after the other.

    `effect` says what becomes of a tool call that a death cut off, as in `outlast.tool`; a tool's own
    `metadata={"outlast": "read"}` (or `"idempotent"`, `"once"`) counts more, and `False` leaves a tool unrecorded. A call
    in doubt raises `StepInDoubt`.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Outlast",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        sequential_tools_in_durable_context=True,
        tool_config_key=_METADATA,
    )

    def __init__(self, *, effect: Effect = "once", **options: Any) -> None:
        """`options` are those of PydanticAI's capability: `models`, `event_stream_handler`, `name`."""
        super().__init__(**options)
        # Refuses what is no effect.
        self._effect = ToolSpec("a tool", effect).effect

    @property
    def in_durable_context(self) -> bool:
        # Inside a step, that step is what is recorded.
        current = scope.variable.get()
        return current is not None and current.step is None

    def get_durable_operation_backend(self) -> "_Backend":
        effect = self._effect

        def of_tool(operation_id: Any, tool: Any, tool_name: str) -> Any:
            metadata = getattr(getattr(tool, "tool_def", None), "metadata", None) or {}
            found = metadata.get(_METADATA, effect)
            return found if found is False else ToolSpec(tool_name, found).effect

        config = RoleBasedOperationConfig(model=effect, event=effect, capability=effect, tool=effect, resolve_tool=of_tool)
        return _Backend(agent_name=self.name, default_model_id=self._default_model_id, config=config)


class _Backend(JournalCallableOperationBackend[Any]):  # type: ignore[misc,unused-ignore]
    """Runs each durable unit as a step. A tool call is known by the model's tool-call id, all else by its name and place."""

    async def execute(
        self, *, operation_id: Any, name: str, body: Callable[[], Awaitable[object]], cache_key: tuple[object, ...], config: Any
    ) -> object:
        current = scope.variable.get()
        if current is None or current.step is not None:
            return await body()
        if isinstance(operation_id, ToolsetCallToolId):
            id = next((part.tool_call_id for part in cache_key if getattr(part, "tool_call_id", None)), None)
            args = next((part for part in cache_key if isinstance(part, dict)), {}) if id is not None else {}

            # The arguments are the model's, for people to read: the call is known by its id.
            async def made(**_: Any) -> object:
                return await body()

            return _payload(await ToolSpec(name, config).call(made, (), args, id=id))
        return await begin(current.run, StepSpec(name, body, may_diverge=True), (), {})


def _payload(outcome: object) -> object:
    """A recorded payload as it is. What a person said of a call in doubt is the tool's plain result: the payload of one."""
    try:
        JSON_CODEC.load(CallToolResult, outcome)
    except ValidationError:
        return {"kind": "tool_content_result", "result": outcome}
    return outcome
