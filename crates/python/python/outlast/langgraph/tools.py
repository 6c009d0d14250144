"""LangGraph's tasks, and the tools of LangChain's agents, each call once over all lives of a run."""

from __future__ import annotations

import base64
from typing import Any, Callable, Mapping

from langchain.agents.middleware import AgentMiddleware  # type: ignore[import-not-found,unused-ignore]
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # type: ignore[import-not-found,unused-ignore]
from langgraph.errors import GraphBubbleUp  # type: ignore[import-not-found,unused-ignore]
from langgraph.func import task as langgraph_task  # type: ignore[import-not-found,unused-ignore]

from .. import scope
from ..tools import IN_DOUBT, Effect, InDoubt, ToolSpec

_serde = JsonPlusSerializer(allowed_msgpack_modules=None)


def task(fn: Any = None, *, name: str | None = None, effect: Effect = "idempotent", approve: bool = False, **options: Any) -> Any:
    """LangGraph's `@task`, whose result is on disk before the next task begins, and is replayed to the next life of the run.

    Inside `with rt.run(…)`; elsewhere it is LangGraph's own `@task`. `effect` and `approve` are those of `outlast.tool`;
    `options` are LangGraph's. An interrupted task runs again from its top, as in LangGraph. A result is JSON, a dataclass
    or a pydantic model.
    """

    def decorate(fn: Any) -> Any:
        spec = ToolSpec(name or fn.__name__, effect, approve, pauses=(GraphBubbleUp,))
        return langgraph_task(name=name, **options)(spec.wrap(fn))

    return decorate(fn) if fn is not None else decorate


class OutlastTools(AgentMiddleware):  # type: ignore[misc,unused-ignore]
    """Middleware of `create_agent`: each tool call is done once over all lives of a run, known by the model's tool-call id.

        create_agent(model, tools, checkpointer=OutlastSaver(), middleware=[OutlastTools(effects={"search": "read"})])

    `effects` says of each tool what becomes of a call that a death cut off (see `outlast.tool`); `effect` is that of the
    others. `approve` names the tools before which a person is asked. `in_doubt="tell"`: the model is told of a call in
    doubt; by default `StepInDoubt` is raised. Outside of `with rt.run(…)` a call is a plain call.
    """

    def __init__(
        self,
        *,
        effects: Mapping[str, Effect] | None = None,
        effect: Effect = "once",
        approve: tuple[str, ...] | list[str] = (),
        in_doubt: InDoubt = "raise",
    ) -> None:
        super().__init__()
        self._effects = dict(effects or {})
        self._effect = effect
        self._approve = frozenset(approve)
        self._in_doubt = in_doubt

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        if scope.variable.get() is None:
            return handler(request)

        # The arguments are the model's, for people to read: the call is known by its id.
        def made(**_: Any) -> str:
            return _text(handler(request))

        args, id = request.tool_call["args"], request.tool_call["id"]
        return self._given(request, self._spec(request).call(made, (), args, id=id, shown=args))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        if scope.variable.get() is None:
            return await handler(request)

        async def made(**_: Any) -> str:
            return _text(await handler(request))

        args, id = request.tool_call["args"], request.tool_call["id"]
        return self._given(request, await self._spec(request).call(made, (), args, id=id, shown=args))

    def _spec(self, request: Any) -> ToolSpec:
        name = request.tool_call["name"]
        effect = self._effects.get(name, self._effect)
        return ToolSpec(name, effect, name in self._approve, self._in_doubt, pauses=(GraphBubbleUp,))

    def _given(self, request: Any, text: str) -> Any:
        name, id = request.tool_call["name"], request.tool_call["id"]
        if text == IN_DOUBT.format(name) or not text.startswith(_MARK):
            # In doubt, or what a person said of it: words for the model.
            from langchain_core.messages import ToolMessage  # type: ignore[import-not-found,unused-ignore]

            return ToolMessage(content=str(text), name=name, tool_call_id=id)
        kind, _, data = text[len(_MARK) :].partition(":")
        return _serde.loads_typed((kind, base64.b64decode(data)))


# The beginning of a recorded message or command. A person who resolves a call in doubt gives words without it.
_MARK = "langgraph:"


def _text(outcome: Any) -> str:
    kind, data = _serde.dumps_typed(outcome)
    return f"{_MARK}{kind}:{base64.b64encode(data).decode()}"
