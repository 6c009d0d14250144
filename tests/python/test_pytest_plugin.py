"""`@pytest.mark.outlast_crash`, as its users have it: tests in a directory, played by a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import outlast
import pytest

TESTS = '''
import os

import outlast
import pytest


def pay(note):
    with outlast.connect().run("pay", budget=outlast.Budget(usd=1)) as run:
        run.step("a", lambda: 1)
        note("paid\\n")
        run.step("b", lambda: 2)


def append(line):
    with open("ledger", "a") as ledger:
        ledger.write(line)


def replace(line):
    with open("ledger.part", "w") as part:
        part.write(line)
    os.replace("ledger.part", "ledger")


@pytest.fixture
def place():
    with open("fixtures", "w") as file:
        file.write("set up")


@pytest.mark.outlast_crash(kinds=["agent"], max=4)
def test_appended():
    pay(append)


@pytest.mark.outlast_crash(kinds=["machine"], max=2)
def test_replaced(place):
    pay(replace)


@pytest.mark.outlast_crash
def test_without_a_run():
    pass


@pytest.mark.outlast_crash(3)
def test_of_a_wrong_mark():
    pass


@pytest.mark.outlast_crash
def test_that_fails():
    assert 1 == 2
'''


@pytest.fixture
def played(tmp_path: Path):
    """Runs the tests of this file that `which` names, with further `options`; returns pytest's exit code and what it printed."""
    place, programs, home = (tmp_path / name for name in ("place", "bin", "home"))
    for directory in (place, programs, home):
        directory.mkdir()
    (place / "test_it.py").write_text(TESTS)
    (place / "pytest.ini").write_text("[pytest]\n")
    (programs / "outlast").symlink_to(os.environ["OUTLAST_BIN"])

    def play(which: str, *options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outlast.pytest_plugin"]
        paths = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(Path(outlast.__file__).parents[1])}
        env = os.environ | {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"} | paths
        ended = subprocess.run([*command, *options, f"test_it.py::{which}"], cwd=place, env=env, capture_output=True, text=True)
        kept = {path.name for path in place.iterdir()} - {"test_it.py", "pytest.ini"}
        # What a test writes is in the copies of its lives only.
        assert kept == (set() if not options else {"ledger"}), ended.stdout
        return ended.returncode, ended.stdout

    return play


def test_a_marked_test_that_a_death_breaks_fails_with_the_findings(played):
    code, said = played("test_appended")
    assert code == 1, said
    assert ':agent: ledger has 1 line more than after the clean run: "paid"' in said
    assert "make it an outlast.tool, or a step with at_most_once" in said


def test_a_marked_test_that_is_right_over_every_death_passes_and_sets_its_fixtures_up_in_its_lives(played):
    code, said = played("test_replaced")
    assert (code, "1 passed" in said) == (0, True), said


@pytest.mark.parametrize(
    "which, wanted",
    [
        ("test_without_a_run", "the test has no boundary: let it use outlast.connect() without a store of its own"),
        ("test_of_a_wrong_mark", "outlast_crash takes kinds, max, ignore, effects, recording by name, had a position"),
        ("test_that_fails", "pytest --outlast-crash-off test_it.py::test_that_fails"),
    ],
)
def test_a_marked_test_that_cannot_be_played_says_why(played, which, wanted):
    code, said = played(which)
    assert (code, wanted in said) == (1, True), said


def test_a_marked_test_is_an_ordinary_one_where_the_plug_in_is_off(played, tmp_path):
    code, said = played("test_appended", "--outlast-crash-off")
    assert (code, "1 passed" in said) == (0, True), said
    assert (tmp_path / "place" / "ledger").read_text() == "paid\n"
