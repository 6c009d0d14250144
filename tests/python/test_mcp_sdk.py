"""The official SDK's client and server, direct and through `outlast mcp`: the same results, in both eras."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from pathlib import Path

import mcp
import pytest
from conftest import outlast_program
from ports import free_port

SERVER = Path(__file__).with_name("mcp_sdk_server.py")


async def everything(server, mode):
    """Everything that the client sees of a server, which is a command or a URL."""
    if isinstance(server, list):
        words = [str(word) for word in server]
        server = mcp.StdioServerParameters(command=words[0], args=words[1:])
    progress, told = [], {}

    async def on_progress(done, total, message):
        progress.append((done, total, message))

    async with mcp.Client(server, mode=mode) as client:
        told["tools"] = (await client.list_tools()).model_dump()
        told["add"] = (await client.call_tool("add", {"a": 1, "b": 2})).model_dump()
        told["again"] = (await client.call_tool("add", {"a": 1, "b": 2})).model_dump()
        told["fails"] = (await client.call_tool("fails", {})).model_dump()
        told["slow"] = (await client.call_tool("slow", {"steps": 3}, progress_callback=on_progress)).model_dump()
        told["resource"] = (await client.read_resource("note://ann")).model_dump()
        told["prompts"] = (await client.list_prompts()).model_dump()
        told["prompt"] = (await client.get_prompt("greet", {"name": "ann"})).model_dump()
        told["bad"] = (await client.call_tool("add", {"a": "x"})).model_dump()
        told["version"] = client.protocol_version
        try:
            await client.read_resource("other://x")
        except mcp.MCPError as e:
            told["error"] = str(e)
    return told, progress


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_sdk_sees_the_same_direct_through_and_replayed(home, mode):
    server = [sys.executable, SERVER]
    recorder = [outlast_program(), "--store", home / "runs.db", "mcp", "--run", "r", "--name", "sdk", "--"]
    direct = asyncio.run(everything(server, mode))
    assert direct[0]["add"]["structured_content"] == {"result": 3} and direct[0]["fails"]["is_error"]
    assert len(direct[1]) == 3
    assert asyncio.run(everything([*recorder, *server], mode)) == direct
    replayed = asyncio.run(everything([*recorder, *server], mode))
    assert replayed == (direct[0], []), "recorded answers have no progress"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_sdk_sees_the_same_over_http(home, mode, sdk_server):
    recorder = [outlast_program(), "--store", home / "runs.db", "mcp", "--run", "r", "--name", "sdk"]
    direct = asyncio.run(everything(sdk_server, mode))
    assert direct[0]["add"]["structured_content"] == {"result": 3} and len(direct[1]) == 3
    through = [*recorder, "--url", sdk_server]
    assert asyncio.run(everything(through, mode)) == direct
    assert asyncio.run(everything(through, mode)) == (direct[0], [])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_sdk_is_told_of_a_call_in_doubt(home, mode):
    """Bug: what Outlast answers itself had no `resultType`. Consequence: the SDK, which chooses 2026-07-28 by itself,
    raised, and no model was told to look before it repeats a call. Cause: one shape for both eras."""
    recorder = [outlast_program(), "--store", home / "runs.db", "mcp", "--run", "r", "--name", "sdk", "--"]
    words = [str(word) for word in [*recorder, sys.executable, SERVER]]

    async def dies():
        async with mcp.Client(mcp.StdioServerParameters(command=words[0], args=words[1:]), mode=mode) as client:
            return await client.call_tool("dies", {})

    result = asyncio.run(dies())
    assert result.is_error and "outcome unknown" in result.content[0].text


@contextlib.contextmanager
def listening(start):
    """A free port, at which the server that `start(port)` has started answers; ended behind the block."""
    # None of those that connections are made from: a connection to such a port may be answered by itself.
    port = free_port()
    process = start(port)
    pause = threading.Event()
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None
            pause.wait(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def sdk_server(home):
    with listening(lambda port: subprocess.Popen([sys.executable, SERVER, str(port)])) as port:
        yield f"http://127.0.0.1:{port}/mcp"
