"""A clerk of LangGraph that charges three customers, and outlasts a kill in each tool.

    python with_langgraph.py [--die-in CUSTOMER]
"""

import argparse
import json
import operator
import os
from typing import Annotated, TypedDict

import openai
from langgraph.graph import END, START, StateGraph

import outlast
from outlast.langgraph import OutlastSaver

CUSTOMERS = ("ann", "bob", "cid")
TASK = "Charge each customer.\n" + "".join(f'mock: tool charge {{"customer": "{c}"}}\n' for c in CUSTOMERS) + "mock: reply all are charged"
TOOL = {"name": "charge", "parameters": {"type": "object", "properties": {"customer": {"type": "string"}}}}


class State(TypedDict):
    messages: Annotated[list, operator.add]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--die-in", help="the customer in whose charge the process is killed")
    args = parser.parse_args()

    rt = outlast.connect()
    with rt.run("clerk"):
        client = openai.OpenAI(**outlast.openai())

        def model(state: State) -> State:
            answer = client.chat.completions.create(
                model="gpt-4.1-mini", messages=state["messages"], tools=[{"type": "function", "function": TOOL}]
            )
            return {"messages": [answer.choices[0].message.model_dump(exclude_none=True)]}

        @outlast.tool(effect="idempotent")
        def charge(customer: str) -> str:
            with open("charged", "a") as log:
                print(customer, outlast.current().idempotency_key, file=log)
            if customer == args.die_in:
                os.kill(os.getpid(), 9)
            return f"receipt of {customer}"

        def tools(state: State) -> State:
            calls = state["messages"][-1]["tool_calls"]
            said = [(call["id"], charge(**json.loads(call["function"]["arguments"]))) for call in calls]
            return {"messages": [{"role": "tool", "tool_call_id": id, "content": text} for id, text in said]}

        builder = StateGraph(State)
        builder.add_node("model", model)
        builder.add_node("tools", tools)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].get("tool_calls") else END)
        builder.add_edge("tools", "model")
        graph = builder.compile(checkpointer=OutlastSaver(rt))

        config = {"configurable": {"thread_id": "clerk"}}
        begun = graph.get_state(config).values
        done = graph.invoke(None if begun else {"messages": [{"role": "user", "content": TASK}]}, config)
        print(done["messages"][-1]["content"])


if __name__ == "__main__":
    main()
