"""A tool call that its server answers with a task: the task's id is on disk, so that a later life asks what came of it."""

import sys
from pathlib import Path

import pytest
from conftest import outlast_program
from test_mcp import Client

SERVER = Path(__file__).with_name("mcp_tasks_server.py")


@pytest.mark.parametrize("asked", [{"task": {"ttl": 60_000}}, {}], ids=["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("id", ["toolu_1", None])
def test_a_later_life_learns_the_outcome_by_the_tasks_id(home, asked, id):
    def life():
        recorder = [outlast_program(), "--store", home / "runs.db", "mcp", "--run", "r", "--name", "t"]
        client = Client([*recorder, "--", sys.executable, SERVER, home])
        client.initialize()
        meta = {"_meta": {"claudecode/toolUseId": id}} if id else {}
        return client, client.ask("tools/call", {"name": "bake", "arguments": {"of": "rye"}, **asked, **meta})["result"]

    first, task = life()
    number = (task.get("task") or task)["taskId"]
    assert first.ask("tasks/get", {"taskId": number})["result"]["status"] == "working"
    first.kill()
    (home / "finished").touch()
    then, again = life()
    assert again == task and [file.name for file in home.glob("task-*")] == [number]
    known = then.ask("tasks/get", {"taskId": number})["result"]
    assert known["status"] == "completed" and "rye" in known["result"]["content"][0]["text"]
    assert then.ask("tasks/result", {"taskId": number})["result"] == known["result"]
    then.close()
