"""Graphs and checkpoints of which the tests of `OutlastSaver` are made."""

import itertools
import operator
from typing import Annotated, TypedDict

from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph


class Talk(TypedDict):
    said: Annotated[list, operator.add]


def talk(turns, saver, **options):
    """A graph that says so many things, each a step."""
    builder = StateGraph(Talk)
    builder.add_node("say", lambda state: {"said": [f"{len(state['said'])}: " + "tea and cake " * 80]})
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: "say" if len(state["said"]) < turns else END)
    return builder.compile(checkpointer=saver, **options)


def config(thread="t", **more):
    return {"configurable": {"thread_id": thread, **more}, "recursion_limit": 1000}


VERSIONS = itertools.count(1)


def checkpoint(**values):
    return {
        "v": 1, "id": str(uuid6()), "ts": "2026-11-22T00:00:00+00:00", "channel_values": values,
        "channel_versions": {name: f"{next(VERSIONS):08}.x" for name in values}, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip


def put(saver, parent=None, thread="t", **values):
    made = checkpoint(**values)
    place = {"thread_id": thread, "checkpoint_ns": "", **({"checkpoint_id": parent} if parent else {})}
    return saver.put({"configurable": place}, made, {"source": "loop", "step": 1, "parents": {}}, made["channel_versions"])


def id_of(config):
    return config["configurable"]["checkpoint_id"]
