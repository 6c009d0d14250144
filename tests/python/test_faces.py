"""One run over every face: the command line, REST and Python give its facts one name and one value."""

import json
import subprocess

import pytest

from conftest import outlast_program
from fleet_bed import Server

# What only one face adds to a run's row.
OWN = {"next", "still_since", "tightest"}


@pytest.fixture
def server(rt, home):
    started = Server(home, rt.place)
    yield started
    started.kill()


def test_a_run_has_one_name_and_one_value_for_each_fact_over_every_face(rt, home, server):
    with rt.run("r", name="report", tags={"team": "search"}) as run:
        run.step("one", lambda: 1)
    line = [outlast_program(), "--store", rt.place, "ls", "--json"]
    (listed,) = json.loads(subprocess.run(line, check=True, capture_output=True, cwd=home).stdout)["runs"]
    (answered,) = server.ask("GET", "/v1/runs")["runs"]
    view = rt.get("r")
    facts = set(listed) - OWN
    assert facts == set(answered) - OWN and facts <= set(view.raw)
    for fact in facts:
        assert listed[fact] == answered[fact] == view.raw[fact], fact
    shown = ("id", "name", "tags", "status", "halt_code", "attempts")
    assert tuple(getattr(view, name) for name in shown) == ("r", "report", {"team": "search"}, "completed", None, 1)
    assert view.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z") == listed["created_at"]
    assert view.budget.usd.limit == float(listed["limit_usd"])


def test_a_summary_an_own_story_and_a_view_tell_the_same_settings(rt, home, server):
    with rt.run("r", tags={"team": "search"}) as run:
        run.step("one", lambda: 1)
    line = [outlast_program(), "--store", rt.place, "show", "r", "--json"]
    told = json.loads(subprocess.run(line, check=True, capture_output=True, cwd=home).stdout)
    summary, raw = server.ask("GET", "/v1/runs/r/summary"), rt.get("r").raw
    for fact in ("budget", "command", "error", "halt", "login", "loop", "parent", "plan", "policy", "rules"):
        assert told[fact] == summary[fact] == raw[fact], fact
    entries = server.ask("GET", "/v1/runs/r/entries")["entries"]
    assert told["last_entries"] == entries
    (attempt,) = server.ask("GET", "/v1/runs/r/attempts")["attempts"]
    assert attempt.items() <= told["attempts"][0].items()
