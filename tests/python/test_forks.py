"""Processes that are forked while a store is open: refused, or whole after `kill -9` of either side.

Bug: `outlast.connect()` in a forked child opened the store that its parent had open, as the documentation advised.
Consequence: the child's acknowledged commits were lost when the parent ended, or it waited for ever for a lock.
Cause: SQLite keeps its locks and the index of its log per inode and process; a fork copies what it knows of them, not
the locks.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

import outlast
from conftest import SOURCES, outlast_program

# What a process says of a store that it may not open, and of a handle that is not its own.
REFUSED = "store_forked forked_handle"

PROGRAM = """
import multiprocessing, os, signal, sys, threading, outlast

def tries(rt):
    "What a forked child is told that uses the store all the same."
    told = []
    for use in (lambda: outlast.connect("s.db"), lambda: rt.get("parent"), lambda: rt.run("child").__enter__()):
        try:
            use()
            told.append("taken")
        except outlast.Error as e:
            assert "fork" in e.hint, e.hint
            told.append(e.code)
    # Another store is the child's own.
    with outlast.connect(f"own-{os.getpid()}.db").run("own") as run:
        assert run.step("s", lambda: 1) == 1
    return " ".join(told[:2]) if told[1] == told[2] else " ".join(told)

def writes(name, first=0):
    "Steps that are told once they are recorded."
    rt = outlast.connect("s.db")
    with rt.run(name) as run, open(f"{name}.acked", "a") as acked:
        for i in range(first, first + 30):
            run.step("s", lambda i: i, i, key=str(i))
            acked.write(f"{i}\\n")
            acked.flush()
    return rt

def killed(*pids):
    for pid in (*pids, os.getpid()):
        os.kill(pid, signal.SIGKILL)

def say(words):
    print(words, flush=True)
"""


@pytest.fixture
def program(life, home):
    """Runs a program that ends by `kill -9` of itself. Returns the lines it said."""

    def run(body):
        done = life(PROGRAM + textwrap.dedent(body))
        assert done.returncode == -signal.SIGKILL, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()

    return run


def whole(home, *names):
    """Nothing is damaged, and what was acknowledged is recorded: a run that is opened again does none of it."""
    place = home / "s.db"
    done = subprocess.run([outlast_program(), "--store", place, "verify"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    rt = outlast.connect(place)
    for name in names:
        acked = (home / f"{name}.acked").read_text().split()
        assert len(acked) >= 30
        with rt.run(name, if_held="takeover") as run:
            again = [i for i in acked if run.step("s", lambda i: "again", int(i), key=i) == "again"]
        assert not again, f"{name}: {len(again)} of {len(acked)} acknowledged steps are lost"
    rt.close()


def test_os_fork(program, home):
    said = program("""
        rt = writes("parent")
        if (child := os.fork()) == 0:
            say(tries(rt))
            os._exit(0)
        os.waitpid(child, 0)
        writes("parent-after")
        killed()
    """)
    assert said == [REFUSED]
    whole(home, "parent", "parent-after")


def test_os_fork_of_a_store_that_was_closed_before(program, home):
    program("""
        writes("parent").close()
        done, tell = os.pipe()
        if (child := os.fork()) == 0:
            writes("child")
            os.write(tell, b".")
            signal.pause()
        writes("parent-after")
        os.read(done, 1)
        killed(child)
    """)
    whole(home, "parent", "child", "parent-after")


def test_a_child_forked_within_a_transaction_waits_for_nothing(program, home):
    said = program("""
        rt = outlast.connect("s.db")
        go_on = True

        def busy(n):
            with rt.run(f"busy-{n}") as run:
                while go_on:
                    run.step("s", lambda: n)

        threads = [threading.Thread(target=busy, args=(n,)) for n in range(3)]
        [thread.start() for thread in threads]
        for _ in range(10):
            if (child := os.fork()) == 0:
                say(tries(rt))
                os._exit(0)
            os.waitpid(child, 0)
        go_on = False
        [thread.join() for thread in threads]
        writes("parent")
        killed()
    """)
    assert said == [REFUSED] * 10
    whole(home, "parent")


def test_multiprocessing_with_fork(program, home):
    said = program("""
        def told(n):
            return tries(rt)

        def work(n):
            writes(f"worker-{n}").close()

        fork = multiprocessing.get_context("fork")
        rt = writes("parent")
        with fork.Pool(2) as pool:
            say("\\n".join(pool.map(told, range(4))))
        rt.close()
        with fork.Pool(2) as pool:
            pool.map(work, range(4))
            killed(*(child.pid for child in fork.active_children()))
    """)
    assert said == [REFUSED] * 4
    whole(home, "parent", *(f"worker-{n}" for n in range(4)))


def test_a_parent_that_becomes_a_daemon(program, home):
    said = program("""
        def becomes_a_daemon():
            "The double fork. Returns in the daemon, whose parents have ended."
            if child := os.fork():
                os.waitpid(child, 0)
                return False
            os.setsid()
            if os.fork():
                os._exit(0)
            return True

        told, tell = os.pipe()
        rt = writes("parent")
        if becomes_a_daemon():
            os.write(tell, tries(rt).encode() + b"\\n")
            os._exit(0)
        say(os.read(told, 100).decode().strip())
        rt.close()
        if becomes_a_daemon():
            writes("daemon")
            os.write(tell, b".")
            killed()
        os.read(told, 1)
        killed()
    """)
    assert said == [REFUSED]
    whole(home, "parent", "daemon")


def test_a_notebook_whose_cell_forks(program, home):
    said = program('''
        cells = """rt = writes("cell-1")
        --
        worker = multiprocessing.get_context("fork").Process(target=lambda: say(tries(rt)))
        worker.start(); worker.join()
        --
        child = os.fork()
        if child == 0: say(tries(rt)); sys.exit(0)
        os.waitpid(child, 0)
        --
        assert outlast.connect("s.db") is rt
        writes("cell-4")
        --
        killed()"""
        for cell in cells.split("--\\n"):
            exec(cell, globals())
    ''')
    assert said == [REFUSED] * 2
    whole(home, "cell-1", "cell-4")


class Gunicorn:
    """A gunicorn with two workers, which imports the application before it forks them."""

    def __init__(self, home, app):
        (home / "app.py").write_text(PROGRAM + textwrap.dedent(app) + ANSWERS)
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", "unix:web.sock", "app:app"],
            cwd=home, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), *sys.path])},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for line in self.process.stderr:
            if "Booting worker" in line:
                break
        else:
            raise AssertionError(f"gunicorn ended: {self.process.wait()}")

    def get(self, path):
        connection = http.client.HTTPConnection("gunicorn")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(60)
        connection.sock.connect(str(self.home / "web.sock"))
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


ANSWERS = """
def app(environ, start_response):
    words = environ["PATH_INFO"].strip("/").split("/")
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield str({"tries": lambda: tries(rt), "writes": lambda n: [writes(f"web-{n}"), os.getpid()][1]}[words[0]](*words[1:])).encode()
"""


def test_gunicorn_with_preload(home):
    with Gunicorn(home, 'rt = writes("parent")') as web:
        assert [web.get("/tries") for _ in range(4)] == [REFUSED] * 4
    whole(home, "parent")


def test_gunicorn_whose_workers_connect(home):
    with Gunicorn(home, 'writes("parent").close()') as web:
        for n in range(4):
            worker = int(web.get(f"/writes/{n}"))
            if n % 2:
                os.kill(worker, signal.SIGKILL)
    whole(home, "parent", *(f"web-{n}" for n in range(4)))
