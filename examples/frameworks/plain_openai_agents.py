"""A clerk of the OpenAI Agents SDK that charges two customers."""

import openai
import shop
from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def charge(customer: str) -> str:
    """Charges a customer."""
    return shop.charge(customer)


def main() -> None:
    model = OpenAIResponsesModel("gpt-4.1-mini", openai.AsyncOpenAI())
    agent = Agent("clerk", tools=[charge], model=model)
    session = SQLiteSession("clerk", "clerk.db")
    print(Runner.run_sync(agent, shop.TASK, session=session).final_output)


if __name__ == "__main__":
    main()
