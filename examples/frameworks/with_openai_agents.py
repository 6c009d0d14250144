"""A clerk of the OpenAI Agents SDK that charges two customers, and outlasts a kill in each charge."""

import openai
import shop
from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

import outlast
from outlast.openai_agents import OutlastSession, durable

set_tracing_disabled(True)


@function_tool
def charge(customer: str) -> str:
    """Charges a customer."""
    return shop.charge(customer, outlast.current().idempotency_key)


def main() -> None:
    model = OpenAIResponsesModel("gpt-4.1-mini", openai.AsyncOpenAI(**outlast.openai(aio=True)))
    agent = Agent("clerk", tools=[durable(charge, effect="idempotent")], model=model)
    session = OutlastSession("clerk")
    print(Runner.run_sync(agent, shop.TASK, session=session).final_output)


if __name__ == "__main__":
    with outlast.connect().run("clerk"):
        main()
