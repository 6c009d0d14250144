"""A clerk of PydanticAI that charges two customers."""

import openai
import shop
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def main() -> None:
    provider = OpenAIProvider(openai_client=openai.AsyncOpenAI())
    agent = Agent(OpenAIChatModel("gpt-4.1-mini", provider=provider), name="clerk")

    @agent.tool_plain
    def charge(customer: str) -> str:
        """Charges a customer."""
        return shop.charge(customer)

    print(agent.run_sync(shop.TASK).output)


if __name__ == "__main__":
    main()
