"""LangGraph's checkpoints: bytes on the disk and checkpoints a second of the savers, in one run.

    OUTLAST_TEST_POSTGRES=$(scripts/private-postgres.sh start /tmp/pg/server) \\
        PYTHONPATH=crates/python/python .venv-clients/bin/python benches/peers/checkpoints.py [--steps 400] [--write]

A graph appends a text of 1,000 letters to its state in each step; `durability="sync"`. Each saver has a process, and a
file or a database of its own. Bytes are counted once the saver is closed: of a file, or of a database beyond an empty
one. The package is built in release for figures that mean something (`maturin develop --release`, or a wheel).
`--write` puts the table into docs/guides/frameworks.md.
"""

from __future__ import annotations

import argparse
import operator
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Iterator, TypedDict
from urllib.parse import urlsplit

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "frameworks.md"
LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Talk(TypedDict):
    said: Annotated[list, operator.add]


@contextmanager
def outlast_saver(place: str) -> Iterator[Any]:
    import outlast
    from outlast.langgraph import OutlastSaver

    rt = outlast.connect(place)
    yield OutlastSaver(rt)
    rt.close()


@contextmanager
def sqlite_saver(place: str) -> Iterator[Any]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    db = sqlite3.connect(place, check_same_thread=False)
    yield SqliteSaver(db)
    db.close()


@contextmanager
def postgres_saver(place: str) -> Iterator[Any]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(place) as saver:
        saver.setup()
        yield saver


#: A row of the table: what makes the saver, and whether its place is a database of PostgreSQL.
SAVERS = {
    "`OutlastSaver`, a file": (outlast_saver, False),
    "`SqliteSaver`": (sqlite_saver, False),
    "`OutlastSaver`, PostgreSQL": (outlast_saver, True),
    "`PostgresSaver`": (postgres_saver, True),
}


def run(name: str, place: str, steps: int) -> None:
    """Prints the seconds that a graph of so many steps takes."""
    from langgraph.graph import END, START, StateGraph

    rng = random.Random(1)
    said = ["".join(rng.choices(LETTERS, k=1000)) for _ in range(steps)]
    builder = StateGraph(Talk)
    builder.add_node("say", lambda state: {"said": [said[len(state["said"])]]})
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: "say" if len(state["said"]) < steps else END)
    with SAVERS[name][0](place) as saver:
        graph = builder.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": steps + 10}
        begun = time.perf_counter()
        assert graph.invoke({"said": []}, config, durability="sync")["said"] == said
        took = time.perf_counter() - begun
        assert graph.get_state(config).values["said"] == said
    print(took)


@contextmanager
def stored(in_postgres: bool) -> Iterator[tuple[str, Any]]:
    """A place for a saver, and a function that counts its bytes."""
    if not in_postgres:
        with tempfile.TemporaryDirectory(prefix="savers-") as directory:
            place = Path(directory) / "saver.db"
            yield str(place), lambda: sum(f.stat().st_size for f in (place, Path(f"{place}-wal")) if f.exists())
        return
    import psycopg

    address, name = os.environ["OUTLAST_TEST_POSTGRES"], f"saver_{random.getrandbits(48):x}"
    with psycopg.connect(address, autocommit=True) as server:

        def size() -> int:
            server.execute("CHECKPOINT")
            return int(server.execute("SELECT pg_database_size(%s)", [name]).fetchone()[0])  # type: ignore[index]

        server.execute(f"CREATE DATABASE {name}")
        try:
            empty = size()
            yield urlsplit(address)._replace(path=f"/{name}").geturl(), lambda: size() - empty
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--write", action="store_true", help="put the table into the guide")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return run(*args.one, args.steps)
    lines = ["| | on the disk | checkpoints a second |", "|---|---|---|"]
    for name, (_, in_postgres) in SAVERS.items():
        with stored(in_postgres) as (place, size):
            again = [sys.executable, __file__, "--steps", str(args.steps), "--one", name, place]
            took = float(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
            lines.append(f"| {name} | {size() / 1e6:.1f} MB | {args.steps / took:.0f} |")
            print(lines[-1], flush=True)
    if args.write:
        table = re.compile(r"^\| \| on the disk \|.*\n(?:\|.*\n)+", re.M)
        text, found = table.subn("\n".join(lines) + "\n", GUIDE.read_text())
        if not found:
            raise SystemExit(f"{GUIDE} has no table of bytes on the disk")
        GUIDE.write_text(text)


if __name__ == "__main__":
    main()
