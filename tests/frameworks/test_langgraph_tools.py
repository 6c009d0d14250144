"""LangGraph's tasks and LangChain's tools: once over all lives, at every kill."""

import pytest
from langgraph.func import entrypoint
from langgraph.types import Command, interrupt

from outlast.langgraph import OutlastSaver, task

AGENT = """
    import os, sys
    import outlast
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from outlast.langgraph import OutlastSaver, OutlastTools

    def asks(n):
        return AIMessage("", tool_calls=[{"name": "charge", "args": {"cents": n}, "id": f"call_{n}"}])

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **options):
            return self

        def _generate(self, messages, *args, **options):
            said = sum(m.type == "ai" for m in messages)
            self.messages = iter([asks(said + 1) if said < 3 else AIMessage("done")])
            return super()._generate(messages, *args, **options)

    def charge(cents: int) -> str:
        "Charges."
        with open("effects", "a") as log:
            print(cents, outlast.current().idempotency_key, file=log)
        if str(cents) == os.environ.get("DIE_IN"):
            os.kill(os.getpid(), 9)
        return f"receipt {cents}"

    rt = outlast.connect("runs.db")
    tools = OutlastTools(effect=sys.argv[1], in_doubt=sys.argv[2])
    agent = create_agent(Model(messages=iter([])), [charge], checkpointer=OutlastSaver(rt), middleware=[tools])
    config = {"configurable": {"thread_id": "t"}}
    with rt.run("r"):
        again = agent.get_state(config).values
        said = agent.invoke(None if again else {"messages": [{"role": "user", "content": "charge"}]}, config)["messages"]
        print([m.content for m in said if m.type == "tool"])
"""


@pytest.mark.parametrize("dies_in", [1, 2, 3])
def test_an_agent_killed_in_a_tool_goes_on_and_repeats_that_tool_alone(life, home, dies_in):
    life(AGENT, "idempotent", "raise", env={"DIE_IN": str(dies_in)}, ok=False)
    assert life(AGENT, "idempotent", "raise", ok=True).stdout == "['receipt 1', 'receipt 2', 'receipt 3']\n"
    effects = (home / "effects").read_text().splitlines()
    assert len(effects) == 4 and len(set(effects)) == 3


def test_a_tool_in_doubt_is_told_or_refused_and_never_repeated(life, home):
    life(AGENT, "once", "raise", env={"DIE_IN": "2"}, ok=False)
    refused = life(AGENT, "once", "raise", ok=False)
    assert "StepInDoubt" in refused.stderr and "tool/charge/call_2" in refused.stderr and "charge(cents=2)" in refused.stderr
    told = life(AGENT, "once", "tell", ok=True).stdout
    assert "outcome unknown: charge was begun before" in told and "receipt 3" in told
    assert [line[0] for line in (home / "effects").read_text().splitlines()] == ["1", "2", "3"]


def test_a_task_of_an_earlier_life_is_not_done_again(rt):
    done = []

    @task
    def work(n):
        done.append(n)
        return n * 2

    @entrypoint()
    def main(_):
        return [work(n).result() for n in range(3)]

    with pytest.raises(ZeroDivisionError):
        with rt.run("r"):
            assert main.invoke(1) == [0, 2, 4]
            raise ZeroDivisionError
    with rt.run("r"):
        assert main.invoke(1) == [0, 2, 4]
    assert done == [0, 1, 2]


def test_an_interrupted_task_runs_again_from_its_top_when_it_is_answered(rt):
    done = []

    @task(effect="once")
    def ask():
        answer = interrupt("may I?")
        done.append(answer)
        return answer

    @entrypoint(checkpointer=OutlastSaver(rt))
    def main(_):
        return ask().result()

    place = {"configurable": {"thread_id": "t"}}
    with rt.run("r"):
        assert main.invoke(1, place)["__interrupt__"][0].value == "may I?"
        assert main.invoke(Command(resume="yes"), place) == "yes"
    assert done == ["yes"]
