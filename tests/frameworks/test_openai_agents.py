"""The OpenAI Agents SDK: sessions whose turns are added once, tools that are done once, pauses that survive the process."""

import asyncio
import json

import pytest
from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import outlast
from outlast.openai_agents import OutlastSession, durable, pause, resumed

set_tracing_disabled(True)


def items(*words):
    return [{"role": "user", "content": word} for word in words]


def test_a_session_keeps_its_items_in_order(rt):
    async def main():
        session = OutlastSession("s", rt)
        await session.add_items(items(*"abcdef"))
        assert await session.pop_item() == items("f")[0]
        await session.add_items(items("g"))
        again = OutlastSession("s", rt)
        assert await again.get_items() == items(*"abcdeg")
        assert await again.get_items(2) == items(*"eg") and await again.get_items(0) == []
        await again.clear_session()
        assert await session.get_items() == [] and await session.pop_item() is None

    asyncio.run(main())


def test_a_turn_is_added_once_and_the_session_read_as_the_first_life_did(rt):
    """A life that died after a turn was added would add it again, and its model would be asked something else."""

    async def turn(session):
        seen = [len(await session.get_items())]
        await session.add_items(items("hello"))
        await session.add_items(items("call", "output"))
        seen.append(await session.pop_item())
        return [*seen, await session.get_items()]

    session = OutlastSession("s", rt)
    told = []
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r"):
                told.append(asyncio.run(turn(session)))
                raise ZeroDivisionError
    assert told[0] == told[1] == told[2] == [0, items("output")[0], items("hello", "call")]
    assert asyncio.run(session.get_items()) == items("hello", "call")
    with rt.run("another"):
        assert asyncio.run(turn(session))[0] == 2


def test_two_writers_of_a_session_lose_nothing(rt):
    async def main():
        one, two = OutlastSession("s", rt), OutlastSession("s", rt)
        begun = one._state.begin_transaction()
        one._following(begun, 1)
        await two.add_items(items("two"))
        with pytest.raises(outlast.Conflict):
            begun.commit()

    asyncio.run(main())


def script():
    return ScriptedModel([[function_call("charge", {"cents": 5}, call_id="call_1")], [assistant_message("done")]])


def test_a_tool_call_is_done_once_over_all_lives(rt):
    done = []

    @function_tool
    def charge(cents: int) -> str:
        done.append(cents)
        return "receipt"

    for life in range(3):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r"):
                agent = Agent("a", tools=[durable(charge)], model=script())
                assert Runner.run_sync(agent, "charge", session=OutlastSession("s", rt)).final_output == "done"
                raise ZeroDivisionError
    assert done == [5]
    asyncio.run(OutlastSession("s", rt).get_items())
    assert [i.get("type", i.get("role")) for i in asyncio.run(OutlastSession("s", rt).get_items())] == [
        "user", "function_call", "function_call_output", "message"
    ]  # fmt: skip


def test_a_fork_calls_no_tool_again_that_its_origin_called(rt):
    done = []

    @function_tool
    def charge(cents: int) -> str:
        done.append(cents)
        return "receipt"

    def turn():
        agent = Agent("a", tools=[durable(charge)], model=script())
        assert Runner.run_sync(agent, "charge").final_output == "done"

    with rt.run("r") as run:
        turn()
        run.snapshot("after")
    with rt.run("r", from_snapshot="after"):
        turn()
    assert done == [5]


def test_a_tool_that_needs_an_approval_asks_by_the_run(rt):
    asked = []

    @function_tool(needs_approval=True)
    def charge(cents: int) -> str:
        raise AssertionError("it was denied")

    def deny(*args):
        asked.append(args)
        raise outlast.ApprovalDenied("charge was denied by ann: too much")

    with rt.run("r"):
        model = script()
        tool = durable(charge)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("outlast.tools.approvals.asked", deny)
            assert Runner.run_sync(Agent("a", tools=[tool], model=model), "charge").final_output == "done"
    assert json.loads(asked[0][1].raw) == {"cents": 5}
    assert "denied by ann: too much" in str(model.last_call.input)
    # Outside of a run it is the SDK that interrupts.
    assert Runner.run_sync(Agent("a", tools=[tool], model=script()), "charge").interruptions


def test_a_pause_survives_the_process(rt):
    done = []

    @function_tool(needs_approval=True)
    def charge(cents: int) -> str:
        done.append(cents)
        return "receipt"

    def agent():
        return Agent("a", tools=[charge], model=ScriptedModel([[assistant_message("done")]]))

    with pytest.raises(ZeroDivisionError):
        with rt.run("r"):
            pause(Runner.run_sync(Agent("a", tools=[charge], model=script()), "charge"))
            raise ZeroDivisionError
    with rt.run("r"):
        state = asyncio.run(resumed(agent()))
        state.approve(state.get_interruptions()[0])
        result = Runner.run_sync(agent(), state)
        pause(result)
        assert result.final_output == "done" and asyncio.run(resumed(agent())) is None
    assert done == [5]
