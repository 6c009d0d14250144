"""`outlast.tool` in frameworks without a plug-in: the guide's own programs, killed in a tool and started again."""

import json
import os
import re
import subprocess
import sys

import pytest

from bed import ROOT, SOURCES, outlast_program

GUIDE = (ROOT / "docs/guides/tools.md").read_text()
#: Frameworks of the guide that `requirements-clients.txt` has.
FRAMEWORKS = ["Google ADK", "Strands", "smolagents"]
IN_DOUBT = "outcome unknown: charge was begun before"
PEOPLE = ("ann", "bob", "cy")
#: smolagents' agent whose model writes a program, and what the guide says of its thread.
CODE = "CodeAgent"
IN_MY_THREAD = re.search(r"`CodeAgent\(…, (.*?)\)`", GUIDE).group(1)
PEOPLE_CHARGED = ["said = []", *(f"said.append(charge('{name}', 5))" for name in PEOPLE)]
#: The tool and the task that the guide's programs take for granted. The first life dies behind Bob's charge.
TOOL = """
import os
import outlast

task = open("task").read()

@outlast.tool(effect=os.environ["EFFECT"], in_doubt="tell")
def charge(customer: str, cents: int) -> str:
    '''Charges a customer.

    Args:
        customer: Who pays.
        cents: How much.
    '''
    with open("charged", "a") as log:
        print(customer, outlast.current().idempotency_key, file=log, flush=True)
    if customer == "bob" and os.environ["OUTLAST_ATTEMPT"] == "1":
        os.kill(os.getpid(), 9)
    return f"receipt of {customer}"

"""


def programs():
    """The guide's programs by framework."""
    return dict(re.findall(r"^\*\*([^*\n]+)\*\*\n\n```python\n(.*?)^```", GUIDE, re.M | re.S))


def script(framework, effect):
    """The model's script: it charges one after the other."""
    if framework == CODE:
        return "\n".join(f"mock: reply {line}" for line in ["<code>", *PEOPLE_CHARGED, "final_answer(said)", "</code>"])
    calls = [f"tool charge {json.dumps({'customer': name, 'cents': 5})}" for name in PEOPLE]
    if framework == "smolagents":
        # Results of tools come as the person's words here, behind which no turns are counted. The end is a tool of its own.
        given = ["receipt of ann", IN_DOUBT if effect == "once" else "receipt of bob", "receipt of cy"]
        calls = [f'unless "{words}" {call}' for words, call in zip(given, calls)] + ['tool final_answer {"answer": "done"}']
    else:
        calls.append("reply done")
    return "".join(f"mock: {call}\n" for call in calls)


def tried(home, framework, effect):
    """Runs the framework's program to its end: the lines of charges, the number of requests paid, and the last of them."""
    says, program = script(framework, effect), programs()[framework.replace(CODE, "smolagents")]
    if framework == CODE:
        program = program.replace("ToolCallingAgent", "CodeAgent").replace("tools=", f"{IN_MY_THREAD}, tools=")
    elif framework == "smolagents":
        # The mock looks for its script in the system's words, too.
        program = program.replace("ToolCallingAgent(", f"ToolCallingAgent(instructions={says!r}, ")
        says = "Charge them."
    (home / "task").write_text(says)
    (home / "agent.py").write_text(TOOL + program)
    paid = home / "paid.log"
    line = [outlast_program(), "mock", "--listen", "127.0.0.1:0", "--log", paid]
    mock = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = mock.stdout.readline().strip()
        keys = {"OPENAI_API_KEY": "k", "GEMINI_API_KEY": "k", "OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url}
        environment = {**os.environ, **keys, "PYTHONPATH": str(SOURCES), "EFFECT": effect, "OTEL_SDK_DISABLED": "true"}
        outlast(home, environment, "run", "--run", "r", "--restarts", "1", "--", sys.executable, "agent.py")
    finally:
        mock.kill()
        mock.wait()
    entries = json.loads(outlast(home, os.environ, "--json", "journal", "r"))
    last = [entry["seq"] for entry in entries["entries"] if entry["kind"] == "call"][-1]
    charges = [tuple(line.split()) for line in (home / "charged").read_text().splitlines()]
    sent = [line for line in outlast(home, os.environ, "journal", "r", str(last)).splitlines() if "mock: " not in line]
    return charges, len(paid.read_text().splitlines()), "\n".join(sent)


def outlast(home, environment, *words):
    done = subprocess.run([outlast_program(), *words], cwd=home, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "UnrecordedWarning" not in done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_tool_that_a_kill_cut_off_is_told_of_and_no_call_is_paid_twice(home, framework):
    charges, paid, last = tried(home, framework, "once")
    assert [name for name, _ in charges] == list(PEOPLE)
    assert paid == len(PEOPLE) + 1
    assert last.count(IN_DOUBT) == 1 and "receipt of bob" not in last and "receipt of cy" in last


def test_a_program_that_the_model_wrote_does_what_is_left(home):
    charges, paid, _ = tried(home, CODE, "once")
    assert [name for name, _ in charges] == list(PEOPLE) and paid == 1


def test_an_idempotent_tool_is_called_again_with_its_key(home):
    charges, paid, last = tried(home, "smolagents", "idempotent")
    assert [name for name, _ in charges] == ["ann", "bob", "bob", "cy"] and len(set(charges)) == 3
    assert paid == len(PEOPLE) + 1
    assert IN_DOUBT not in last and "receipt of bob" in last


def test_the_guide_shows_each_framework_in_less_than_ten_lines():
    shown = programs()
    assert set(shown) == {*FRAMEWORKS, "LlamaIndex", "CrewAI"}
    assert all(len(program.strip().splitlines()) < 10 for program in shown.values())
