"""A clerk of PydanticAI that charges two customers, and outlasts a kill in each charge."""

import openai
import shop
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import outlast
from outlast.pydantic_ai import OutlastDurability


def main() -> None:
    provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(**outlast.openai(aio=True)))
    agent = Agent(OpenAIChatModel("gpt-4.1-mini", provider=provider), name="clerk", capabilities=[OutlastDurability()])

    @agent.tool_plain(metadata={"outlast": "idempotent"})
    def charge(customer: str) -> str:
        """Charges a customer."""
        return shop.charge(customer, outlast.current().idempotency_key)

    print(agent.run_sync(shop.TASK).output)


if __name__ == "__main__":
    with outlast.connect().run("clerk"):
        main()
