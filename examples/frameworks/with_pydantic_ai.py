"""A clerk of PydanticAI that charges three customers, and outlasts a kill in each tool.

    python with_pydantic_ai.py [--die-in CUSTOMER]
"""

import argparse
import os

import openai
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import outlast
from outlast.pydantic_ai import OutlastDurability

CUSTOMERS = ("ann", "bob", "cid")
TASK = "Charge each customer.\n" + "".join(f'mock: tool charge {{"customer": "{c}"}}\n' for c in CUSTOMERS) + "mock: reply all are charged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--die-in", help="the customer in whose charge the process is killed")
    args = parser.parse_args()

    with outlast.connect().run("clerk"):
        provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(**outlast.openai(aio=True)))
        agent = Agent(OpenAIChatModel("gpt-4.1-mini", provider=provider), name="clerk", capabilities=[OutlastDurability()])

        @agent.tool_plain(metadata={"outlast": "idempotent"})
        def charge(customer: str) -> str:
            """Charges a customer."""
            with open("charged", "a") as log:
                print(customer, outlast.current().idempotency_key, file=log)
            if customer == args.die_in:
                os.kill(os.getpid(), 9)
            return f"receipt of {customer}"

        print(agent.run_sync(TASK).output)


if __name__ == "__main__":
    main()
