"""LangGraph on Outlast: `pip install 'outlast[langgraph]'`.

    from outlast.langgraph import OutlastSaver

    graph = builder.compile(checkpointer=OutlastSaver())

`OutlastTools` is middleware of LangChain's `create_agent`, and needs the package `langchain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .saver import OutlastSaver as OutlastSaver
from .store import OutlastStore as OutlastStore

if TYPE_CHECKING:
    from .tools import OutlastTools as OutlastTools, task as task

__all__ = ["OutlastSaver", "OutlastStore", "OutlastTools", "task"]


def __getattr__(name: str) -> Any:
    if name not in ("OutlastTools", "task"):
        raise AttributeError(f"module 'outlast.langgraph' has no attribute {name!r}")
    from . import tools

    return getattr(tools, name)
