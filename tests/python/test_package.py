"""The package from outside: its import, its types, its command, its guide."""

import ast
import graphlib
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

import outlast
from conftest import ROOT, SOURCES, outlast_program


def python(*words, **options):
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=60, **options)


def test_importing_it_loads_no_engine_and_no_more_of_itself_than_is_used():
    program = "import sys, outlast; print(sorted(m for m in sys.modules if m.startswith(('outlast.', 'asyncio', 'json'))))"
    assert python("-c", program).stdout.strip() == "[]"


def test_every_public_name_is_there_and_documented():
    for name in outlast.__all__:
        value = getattr(outlast, name)
        assert value.__doc__, name
    with pytest.raises(AttributeError):
        outlast.nothing


def test_no_module_imports_itself_by_way_of_others():
    """Neither when it runs nor for its types; the table of public names in `__init__` names all of them, and counts for none."""
    files = {".".join(f.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): f for f in (SOURCES / "outlast").rglob("*.py")}
    imports = {}
    for name, file in files.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        found = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base for alias in node.names}
        imports[name] = found & files.keys() - {"outlast", name}
    del imports["outlast"]
    order = list(graphlib.TopologicalSorter(imports).static_order())
    assert order.index("outlast.errors") < order.index("outlast.opening") < order.index("outlast.runs") < order.index("outlast.runtime")


def test_the_stub_names_what_the_extension_has():
    from outlast import _native

    stub = ast.parse((SOURCES / "outlast" / "_native.pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            named = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            has = {n for n in vars(getattr(_native, node.name)) if not n.startswith("__")} | {"__len__"} & named
            assert named == has, node.name


def test_every_error_has_a_code_and_is_an_outlast_error():
    from outlast import errors

    for code in ("unknown_run", "run_held", "lease_lost", "store_io", "dollar_budget_exceeded", "forked_handle", "never heard of"):
        error = errors.of(code, "what", "do this")
        assert isinstance(error, outlast.Error) and error.code == code
        assert str(error) == "what\nhint: do this"
    import pickle

    again = pickle.loads(pickle.dumps(errors.of("run_held", "what", "do this")))
    assert (type(again), again.code, str(again)) == (outlast.RunHeld, "run_held", "what\nhint: do this")


def test_the_wheels_command_is_the_binarys(home):
    with outlast.connect().run("seen"):
        pass
    outlast.connect().close()
    ours = python("-m", "outlast", "ls", "--json")
    binary = subprocess.run([outlast_program(), "ls", "--json"], capture_output=True, text=True, timeout=60)
    assert ours.returncode == 0 and json.loads(ours.stdout)
    assert "seen" in ours.stdout and ours.stdout.count("seen") == binary.stdout.count("seen")
    bad = python("-m", "outlast", "show", "nope")
    assert bad.returncode == 1 and "nope" in bad.stderr


def test_the_command_runs_an_agent(home):
    done = python("-m", "outlast", "run", "--run", "r", "--", sys.executable, "-c", "import os; print(os.environ['OUTLAST_RUN_ID'])")
    assert done.returncode == 0 and done.stdout == "r\n", done.stderr


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("page", ["start.md", "guides/python.md"])
def test_the_guides_code_runs(home, page):
    """All blocks of a guide, in order, in one program."""
    provider = subprocess.Popen([outlast_program(), "mock", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        url = provider.stdout.readline().strip()
        program = home / "guide.py"
        program.write_text("\n".join(blocks(page)))
        env = {
            **os.environ, "PYTHONPATH": str(SOURCES), "OPENAI_API_KEY": "sk-of-the-guide", "OPENAI_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-of-the-guide", "ANTHROPIC_BASE_URL": url,
        }  # fmt: skip
        done = subprocess.run([sys.executable, str(program)], env=env, cwd=home, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    finally:
        provider.kill()
        provider.wait()


def test_a_step_is_two_operations_its_opening_and_its_result(rt):
    """Two commits a step and no more: its opening, and its result."""
    from outlast.runs import Run

    class Counting:
        def __init__(self, open_run):
            self.open_run, self.ops = open_run, []

        def __getattr__(self, name):
            self.ops.append(name)
            return getattr(self.open_run, name)

    with rt.run("r") as run:
        assert isinstance(run, Run)
        run._open_run = counted = Counting(run._open_run)
        run.step("s", len, "x")
        ops = [op for op in counted.ops if op != "word"]
        run._open_run = counted.open_run
    assert ops == ["begin", "record"]
