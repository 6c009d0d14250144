"""The examples of frameworks, killed at each model call and each charge: the guide's table tells what that costs."""

import re
import subprocess
import sys

import pytest

from bed import ROOT, outlast_program

GUIDE = ROOT / "docs/guides/frameworks.md"


FRAMEWORKS = ["langgraph", "openai_agents", "pydantic_ai"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_clerk_that_is_killed_everywhere_pays_and_charges_as_the_guide_tells(framework):
    line = [sys.executable, ROOT / "scripts/effects-table.py", "--outlast", outlast_program(), framework]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_with_outlast_no_clerk_charges_twice_and_under_a_supervisor_none_pays_twice():
    rows = re.findall(r"^\| \w[^|]*" + r"\| (\d+) " * 6 + r"\|$", GUIDE.read_text(), re.M)
    assert len(rows) == len(FRAMEWORKS)
    for *_, alone, calls, supervised in rows:
        assert alone == calls == supervised == "0"
