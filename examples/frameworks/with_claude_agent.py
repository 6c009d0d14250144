"""A clerk of the Claude Agent SDK that charges two customers, and outlasts a kill in each charge."""

import asyncio

import shop
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, tool

import outlast
from outlast.claude_agent import query


@tool("charge", "Charges a customer.", {"customer": str})
@outlast.tool(effect="idempotent")
async def charge(args: dict) -> dict:
    return {"content": [{"type": "text", "text": shop.charge(args["customer"], outlast.current().idempotency_key)}]}


async def main() -> None:
    server = create_sdk_mcp_server("shop", tools=[charge])
    options = ClaudeAgentOptions(
        system_prompt=shop.SCRIPT.replace("tool charge", "tool mcp__shop__charge"),
        mcp_servers={"shop": server},
        allowed_tools=["mcp__shop__charge"],
        model="claude-sonnet-4-5",
    )
    effects = {"mcp__shop__charge": "idempotent"}
    async for message in query(prompt="Charge each customer.", options=options, effects=effects):
        if isinstance(message, ResultMessage):
            print(message.result)


if __name__ == "__main__":
    with outlast.connect().run("clerk"):
        asyncio.run(main())
