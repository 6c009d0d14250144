"""`@pytest.mark.outlast_crash`: a test that has to be right over every death of its process.

A marked test is played by `outlast crashtest`, each time in a fresh copy of pytest's directory: twice whole, then once for each
boundary of its run at which its process can die (a step, a tool, a call, an item, a commit), where the test is begun again.
Each life has to end well, and to leave the files that the whole test leaves. pytest finds this module by itself where the
package is installed; it starts nothing for tests without the mark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Iterator

import pytest

from outlast.__main__ import program

#: The option of pytest with which marked tests are ordinary ones, as they are in their lives.
OFF = "--outlast-crash-off"
#: Options of `outlast crashtest` that the mark takes, with what they are without it.
DEFAULTS: dict[str, Any] = {"kinds": ("agent", "machine"), "max": 50, "ignore": (), "effects": None, "recording": None}


class Unsound(Exception):
    """The findings of `outlast crashtest`, or why it could not test, as they are printed."""


class CrashTest(pytest.Item):
    """A marked test, in whose place `outlast crashtest` plays it. Its fixtures are set up in each life, and not here."""

    def __init__(self, *, test: pytest.Item, mark: pytest.Mark, **rest: Any) -> None:
        super().__init__(**rest)
        self.test, self.mark = test, mark
        self.own_markers = test.own_markers

    def runtest(self) -> None:
        unknown = sorted(self.mark.kwargs.keys() - DEFAULTS)
        if self.mark.args or unknown:
            raise TypeError(f"outlast_crash takes {', '.join(DEFAULTS)} by name, had {', '.join(unknown) or 'a position'}")
        command = program()
        if command is None:
            raise Unsound("no outlast command is beside this Python or on PATH; hint: pip install outlast")
        words = [command, "crashtest", "--json", *options(DEFAULTS | self.mark.kwargs), "--", *self.life()]
        # Byte code and pytest's cache would be files of the test.
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(words, cwd=self.config.rootpath, env=env, capture_output=True, text=True)
        if ended.returncode not in (0, 1):
            alone = f"hint: see it run by itself: pytest {OFF} {self.nodeid}"
            raise Unsound(f"{json.loads(ended.stderr.splitlines()[-1])['error']['message']}\n{alone}")
        report = json.loads(ended.stdout)
        if not report["boundaries"]:
            raise Unsound("the test has no boundary: let it use outlast.connect() without a store of its own")
        if not report["sound"]:
            raise Unsound("\n".join(findings(report, self.nodeid)))

    def life(self) -> list[str]:
        """The command line of one life: the same test, by itself."""
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", __name__, OFF, self.test.nodeid]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, (Unsound, TypeError)) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> Any:
        return self.test.reportinfo()


def options(chosen: dict[str, Any]) -> Iterator[str]:
    """The options of `outlast crashtest` for those of a mark."""
    recording, effects = chosen["recording"], chosen["effects"]
    yield f"--recording={recording}" if recording else "--mock"
    yield f"--max={chosen['max']}"
    yield from (f"--kind={kind}" for kind in chosen["kinds"])
    yield from (f"--ignore={path}" for path in chosen["ignore"])
    yield from [f"--effects={effects}"] if effects else []


def findings(report: dict[str, Any], test: str) -> Iterator[str]:
    """The lines of a report that say what is wrong: each fault once, at the first death that brought it to light."""
    told = set()
    deaths = [(f"{tried['at']}:{tried['kind']}", tried["findings"]) for tried in report["deaths"]]
    for death, found in [("without a death", report["clean"]), *deaths]:
        for fault in found:
            if fault["what"] not in told:
                told.add(fault["what"])
                yield f"{test}, {death}: {fault['what']}"
                yield f"  why: {fault['why']}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("outlast").addoption(OFF, action="store_true", help="run tests with the mark outlast_crash as they are")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"outlast_crash({', '.join(f'{name}={value!r}' for name, value in DEFAULTS.items())}): "
        "plays the test once for each boundary at which its process can die",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(OFF):
        return
    for place, item in enumerate(items):
        mark = item.get_closest_marker("outlast_crash")
        if mark and item.parent:
            items[place] = CrashTest.from_parent(item.parent, name=item.name, test=item, mark=mark)
