#!/usr/bin/env python3
"""LangGraph's own tests of graphs, with `OutlastSaver` in the place of its `SqliteSaver` and `AsyncSqliteSaver`.

    python scripts/langgraph-suite.py DIR [WORDS FOR PYTEST…]

DIR is a checkout of LangGraph; this Python has its `langgraph`, what its tests need, and `outlast`. Each test that asks for a
checkpointer in SQLite runs twice, with LangGraph's saver and with ours. Exit code 1 where a verdict is not the same.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path


def pytest_configure(config):
    """pytest has loaded this file as a plug-in: the fixtures of SQLite give the saver that is asked for."""
    from tests import conftest_checkpointer as theirs

    import outlast
    from outlast.langgraph import OutlastSaver

    @contextlib.contextmanager
    def saver():
        with tempfile.TemporaryDirectory() as home, contextlib.closing(outlast.connect(f"{home}/runs.db")) as rt:
            yield OutlastSaver(rt)

    @contextlib.asynccontextmanager
    async def async_saver():
        with saver() as made:
            yield made

    if os.environ["LANGGRAPH_SUITE_SAVER"] == "OutlastSaver":
        theirs._checkpointer_sqlite, theirs._checkpointer_sqlite_aio = saver, async_saver


def pytest_collection_modifyitems(items):
    wanted = {"sync_checkpointer": "sqlite", "async_checkpointer": "sqlite_aio"}.items()
    items[:] = [i for i in items if hasattr(i, "callspec") and any(i.callspec.params.get(name) == kind for name, kind in wanted)]


def verdicts(suite: Path, saver: str, words: list[str]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile() as report:
        env = {"NO_DOCKER": "true", "LANGGRAPH_SUITE_SAVER": saver, "PYTHONPATH": f"{Path(__file__).resolve().parent}:{suite}"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem, f"--junitxml={report.name}", *words]
        subprocess.run(command, cwd=suite, env=os.environ | env)
        cases = xml.parse(report.name).iter("testcase")
        return {f"{c.get('classname')}::{c.get('name')}": c[0].tag if len(c) else "passed" for c in cases}


if __name__ == "__main__":
    theirs, ours = (verdicts(Path(sys.argv[1]) / "libs/langgraph", name, sys.argv[2:]) for name in ("SqliteSaver", "OutlastSaver"))
    for name in sorted(name for name in theirs | ours if theirs.get(name) != ours.get(name)):
        print(f"{name}: {theirs.get(name)} with SqliteSaver, {ours.get(name)} with OutlastSaver")
    passed = [list(found.values()).count("passed") for found in (theirs, ours)]
    print(f"{len(ours)} tests; passed: {passed[0]} with SqliteSaver, {passed[1]} with OutlastSaver")
    sys.exit(not ours or theirs != ours)
