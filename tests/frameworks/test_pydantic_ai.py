"""PydanticAI: model requests and tools are done once over all lives, under names that stay."""

import json
import sqlite3

import pytest
from pydantic_ai import Agent, ModelResponse, ModelRetry, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import outlast
from outlast.pydantic_ai import OutlastDurability


class Bed:
    """An agent that calls two tools, and what was asked of its model and its tools."""

    def __init__(self, die_at=None, **options):
        self.asked, self.done, self.die_at = 0, [], die_at
        self.agent = Agent(FunctionModel(self._answer), name="clerk", capabilities=[OutlastDurability(**options)])

        @self.agent.tool_plain(metadata={"outlast": "read"})
        def look(name: str) -> str:
            return self._tool("look", name)

        @self.agent.tool_plain
        def charge(cents: int) -> str:
            return self._tool("charge", cents)

    def _answer(self, messages, info):
        self.asked += 1
        said = sum(m.kind == "response" for m in messages)
        calls = [ToolCallPart("look", {"name": "ann"}), ToolCallPart("charge", {"cents": 5})]
        return ModelResponse([calls[said]] if said < 2 else [TextPart("done")])

    def _tool(self, name, argument):
        self.done.append((name, argument))
        if self.die_at == name:
            raise KeyboardInterrupt
        return f"{name} {argument}"


def lives(rt, *beds):
    for bed in beds:
        try:
            with rt.run("r"):
                assert bed.agent.run_sync("go").output == "done"
                raise ZeroDivisionError
        except (ZeroDivisionError, KeyboardInterrupt):
            pass


def test_a_later_life_asks_no_model_and_calls_no_tool(rt):
    first, then = Bed(), Bed()
    lives(rt, first, then)
    assert (first.asked, first.done) == (3, [("look", "ann"), ("charge", 5)]) and (then.asked, then.done) == (0, [])


def test_the_names_that_are_persisted_stay_what_they_are(rt):
    """They are what a run of yesterday is found by: a change strands it."""
    lives(rt, Bed())
    with sqlite3.connect(f"file:{rt.place}?mode=ro", uri=True) as db:
        keys = [key for (key,) in db.execute("SELECT key FROM entries WHERE key IS NOT NULL ORDER BY seq")]
    names = [key.partition("(")[0].rpartition("/")[0] if key.startswith("tool/") else key.partition("(")[0] for key in keys]
    assert names == NAMES


NAMES = [
    "clerk__model.request",
    "tool/clerk__function_toolset__<agent>.call_tool:look",
    "clerk__model.request",
    "tool/clerk__function_toolset__<agent>.call_tool:charge",
    "clerk__model.request",
]


def test_a_tool_that_a_death_cut_off_is_repeated_only_if_it_reads(rt):
    first, then = Bed(die_at="look"), Bed(die_at="charge")
    lives(rt, first, then)
    assert first.done == [("look", "ann")] and then.done == [("look", "ann"), ("charge", 5)] and then.asked == 1
    with pytest.raises(outlast.StepInDoubt):
        with rt.run("r"):
            Bed().agent.run_sync("go")


def test_a_retry_that_a_tool_asks_for_is_replayed_too(rt):
    calls = []

    def agent():
        def answer(messages, info):
            calls.append("model")
            said = sum(m.kind == "response" for m in messages)
            return ModelResponse([ToolCallPart("charge", {"cents": said})] if said < 2 else [TextPart("done")])

        made = Agent(FunctionModel(answer), name="clerk", capabilities=[OutlastDurability()])

        @made.tool_plain
        def charge(cents: int) -> str:
            calls.append(cents)
            if cents == 0:
                raise ModelRetry("more than that")
            return "receipt"

        return made

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r"):
                assert agent().run_sync("go").output == "done"
                raise ZeroDivisionError
    assert calls == ["model", 0, "model", 1, "model"]


def test_outside_of_a_run_nothing_is_recorded(rt):
    bed = Bed()
    assert bed.agent.run_sync("go").output == bed.agent.run_sync("go").output == "done" and bed.asked == 6


def test_an_effect_that_is_none_is_refused():
    with pytest.raises(ValueError, match="'twice'"):
        OutlastDurability(effect="twice")
