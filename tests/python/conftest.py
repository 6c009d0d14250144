"""The package as it is built here: the extension of the workspace's own build, beside its Python sources."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "crates" / "python" / "python"


def outlast_program() -> Path:
    named = os.environ.get("OUTLAST_BIN")
    if named:
        return Path(named).resolve()
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "debug" / "outlast"


def link_extension() -> None:
    """Links what `cargo build` made: nothing is compiled for the tests alone."""
    built = outlast_program().parent / "lib_native.so"
    if not built.exists():
        raise pytest.UsageError(f"{built} is not there: run `cargo build --workspace` first")
    place = SOURCES / "outlast" / "_native.abi3.so"
    if not (place.is_symlink() and place.resolve() == built):
        # Put in place at once: other workers may be importing it.
        made = place.with_name(f"{place.name}.{os.getpid()}")
        made.symlink_to(built)
        made.replace(place)


link_extension()
sys.path.insert(0, str(SOURCES))

from outlast import scope  # noqa: E402


def pytest_configure(config):
    # A shell's background job ignores SIGINT, and so would all that the tests start: they would not hear a Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "xdist_group(name): tests of a group run one after another, in one worker")
    config.addinivalue_line("markers", "clients: needs programs of others, which `make test-clients` installs")
    # What is typed decides; without it these tests are left out.
    if not config.option.markexpr:
        config.option.markexpr = "not clients"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of its own: no test sees another's store, keys, settings or run."""
    for name in [n for n in os.environ if n.startswith("OUTLAST_") and n not in ("OUTLAST_BIN",)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    yield tmp_path
    left = scope.variable.get()
    scope.variable.set(None)
    # Bug: a script that a test called never left its run. Consequence: tests of the same worker worked in that run.
    assert left is None, f"{left.run} was entered and not left"


@pytest.fixture
def rt(home):
    import outlast

    runtime = outlast.connect(home / "runs.db")
    yield runtime
    runtime.close()


@pytest.fixture
def lives(rt):
    """`lives(first, then)`: a life that ends by an exception, and the next one; gives what `then` gave."""

    def play(first, then, **options):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r") as run:
                first(run)
                raise ZeroDivisionError
        with rt.run("r", **options) as run:
            return then(run)

    return play


@pytest.fixture
def supervised(home):
    """Runs an agent's program under a supervisor to its end: the run `sup` in mine.db."""

    def run(program):
        (home / "agent.py").write_text(textwrap.dedent(program))
        done = subprocess.run(
            [outlast_program(), "--store", "mine.db", "run", "--run", "sup", "--", sys.executable, "agent.py"],
            cwd=home, env={**os.environ, "PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def life(home):
    """Runs a program as a life of its own: `life("…", ok=True)` gives what became of it."""

    def run(program, *args, ok=None, env=None, timeout=60):
        path = home / "program.py"
        path.write_text(textwrap.dedent(program))
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), **(env or {})}
        done = subprocess.run(
            [sys.executable, str(path), *map(str, args)],
            cwd=home, env=environment, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        if ok is not None:
            assert (done.returncode == 0) == ok, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
