"""Named budgets: runs of Python are charged to those in the store, by their tags."""

import json
import os
import subprocess
import sys
import threading

import outlast

from conftest import SOURCES, outlast_program


def command(home, *words):
    line = [str(outlast_program()), *words]
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SOURCES),
        "OUTLAST_STORE": str(home / "runs.db"),
    }
    return subprocess.run(line, capture_output=True, text=True, check=True, env=env, cwd=home).stdout


def budgets(home, *words):
    return json.loads(command(home, "budgets", *words, "--json"))["budgets"]


def spent(home):
    return budgets(home)[0]["units"][0]["spent"]


def test_a_run_with_the_tag_is_charged_and_another_is_not(rt, home):
    budgets(home, "set", "team-search", "--usd", "1", "--per", "day", "--tag", "team=search")
    for team, charged in [("ads", 0), ("search", 250_000_000)]:
        with rt.run(team, tags={"team": team}):
            outlast.reserve(usd=0.5).settle(usd=0.25)
        assert spent(home) == charged


def test_a_run_in_a_supervised_one_is_charged_to_the_budgets_of_that_one(home):
    budgets(home, "set", "team-search", "--usd", "1", "--tag", "team=search")
    program = home / "program.py"
    program.write_text(
        "import os, outlast\n"
        "with outlast.connect(os.environ['OUTLAST_STORE']).run('below', tags={'team': 'ads'}):\n"
        "    outlast.reserve(usd=0.5).settle(usd='0.125')\n"
    )
    command(home, "run", "--run", "top", "--tag", "team=search", "--", sys.executable, str(program))
    assert spent(home) == 125_000_000


def test_a_reservation_waits_for_room_and_goes_on_when_there_is_some(rt, home):
    budgets(home, "set", "team-search", "--usd", "0.10", "--tag", "team=search")
    with rt.run("one", tags={"team": "search"}) as run:

        def raise_when_it_waits():
            while rt.get("one").status != "waiting":
                pass
            budgets(home, "raise", "team-search", "--add-usd", "1")

        person = threading.Thread(target=raise_when_it_waits)
        person.start()
        outlast.reserve(usd=0.5).settle(usd=0.5)
        person.join()
        assert run.view().status == "running"
    view = rt.get("one")
    assert (view.status, view.halt_code, spent(home)) == ("completed", None, 500_000_000)
