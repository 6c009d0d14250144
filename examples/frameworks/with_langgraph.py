"""A clerk of LangGraph that charges two customers, and outlasts a kill in each charge."""

import json
import operator
from typing import Annotated, TypedDict

import openai
import shop
from langgraph.graph import END, START, StateGraph

import outlast
from outlast.langgraph import OutlastSaver

TOOL = {"name": "charge", "parameters": {"type": "object", "properties": {"customer": {"type": "string"}}}}


class State(TypedDict):
    messages: Annotated[list, operator.add]


def model(state: State) -> State:
    client = openai.OpenAI(**outlast.openai())
    answer = client.chat.completions.create(
        model="gpt-4.1-mini", messages=state["messages"], tools=[{"type": "function", "function": TOOL}]
    )
    return {"messages": [answer.choices[0].message.model_dump(exclude_none=True)]}


@outlast.tool(effect="idempotent")
def charge(customer: str) -> str:
    return shop.charge(customer, outlast.current().idempotency_key)


def tools(state: State) -> State:
    calls = state["messages"][-1]["tool_calls"]
    said = [(call["id"], charge(**json.loads(call["function"]["arguments"]))) for call in calls]
    return {"messages": [{"role": "tool", "tool_call_id": id, "content": text} for id, text in said]}


def main() -> None:
    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].get("tool_calls") else END)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=OutlastSaver())

    config = {"configurable": {"thread_id": "clerk"}}
    first = {"messages": [{"role": "user", "content": shop.TASK}]}
    begun = graph.get_state(config).values
    print(graph.invoke(None if begun else first, config, durability="sync")["messages"][-1]["content"])


if __name__ == "__main__":
    with outlast.connect().run("clerk"):
        main()
