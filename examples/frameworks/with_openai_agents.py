"""A clerk of the OpenAI Agents SDK that charges three customers, and outlasts a kill in each tool.

    python with_openai_agents.py [--die-in CUSTOMER]
"""

import argparse
import os

import openai
from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

import outlast
from outlast.openai_agents import OutlastSession, durable

CUSTOMERS = ("ann", "bob", "cid")
TASK = "Charge each customer.\n" + "".join(f'mock: tool charge {{"customer": "{c}"}}\n' for c in CUSTOMERS) + "mock: reply all are charged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--die-in", help="the customer in whose charge the process is killed")
    args = parser.parse_args()
    set_tracing_disabled(True)

    @function_tool
    def charge(customer: str) -> str:
        """Charges a customer."""
        with open("charged", "a") as log:
            print(customer, outlast.current().idempotency_key, file=log)
        if customer == args.die_in:
            os.kill(os.getpid(), 9)
        return f"receipt of {customer}"

    with outlast.connect().run("clerk"):
        model = OpenAIResponsesModel("gpt-4.1-mini", openai.AsyncOpenAI(**outlast.openai(aio=True)))
        agent = Agent("clerk", tools=[durable(charge, effect="idempotent")], model=model)
        result = Runner.run_sync(agent, TASK, session=OutlastSession("clerk"))
        print(result.final_output)


if __name__ == "__main__":
    main()
