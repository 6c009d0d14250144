"""Traces of real stores: every row that one writes of what the contract speaks of, in its order, for the model to check.

Triggers write them, in the transaction of the row itself; `outlast-sim trace` replays them (crates/sim/src/trace). A store is
armed before its first run: SQLite only.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from pathlib import Path


def sums(*names: str) -> str:
    return f"json_array({', '.join(f'NEW.{name}' for name in names)})"


def detail(name: str) -> str:
    return f"NEW.detail -> '$.{name}'"


#: What is written of each table's row, by name.
ROWS = {
    "instances": {"no": "NEW.no", "life": "NEW.life"},
    "envelopes": {
        "no": "NEW.no", "limits": "json_array(NEW.limits -> '$[0]', NEW.limits -> '$[1]', NEW.limits -> '$[2]')",
        "reserved": sums("reserved_cost", "reserved_tokens", "reserved_calls"), "doubt": sums("doubt_cost", "doubt_tokens"),
        "spent": sums("spent_cost", "spent_tokens", "spent_calls"),
    },
    "runs": {"no": "NEW.no", "charges": "json(NEW.charges)"},
    "attempts": {
        "run": "NEW.run_no", "no": "NEW.no", "slot": "NEW.slot", "instance": "NEW.instance", "fence": "NEW.fence",
        "ended": "json(iif(NEW.ended_at IS NULL, 'false', 'true'))",
    },
    "leases": {"run": "NEW.run_no", "slot": "NEW.slot", "instance": "NEW.instance", "fence": "NEW.fence"},
    "entries": {
        "run": "NEW.run_no", "seq": "NEW.seq", "kind": "NEW.kind", "state": "NEW.state", "attempt": "NEW.attempt",
        "instance": "NEW.instance", "opened_by": "NEW.opened_by", "held": sums("held_cost", "held_tokens", "held_calls"),
        "spent": sums("spent_cost", "spent_tokens", "spent_calls"),
        "overrun": f"json_array({detail('overrun_nano_usd')}, {detail('overrun_tokens')})", "windows": detail("windows"),
        "sends": detail("sends"), "repeatable": detail("repeatable"), "at_most_once": detail("at_most_once"),
    },
}  # fmt: skip


def arm(store: Path) -> None:
    """Lets a new store write its trace. Nothing may have it open."""
    with contextlib.closing(sqlite3.connect(store)) as armed:
        armed.execute("CREATE TABLE trace (no INTEGER PRIMARY KEY, row TEXT NOT NULL)")
        for table, cells in ROWS.items():
            told = ", ".join(f"'{name}', {cell}" for name, cell in {"table": f"'{table}'", **cells}.items())
            for when in ("INSERT", "UPDATE"):
                does = f"INSERT INTO trace (row) VALUES (json_object({told}))"
                armed.execute(f"CREATE TRIGGER trace_{table}_{when} AFTER {when} ON {table} BEGIN {does}; END")
        armed.commit()


def rows(store: Path) -> list[str]:
    """The trace of an armed store. Changes nothing of it."""
    with contextlib.closing(sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)) as read:
        return [row for (row,) in read.execute("SELECT row FROM trace ORDER BY no")]


def checked(program: Path, trace: list[str], file: Path) -> tuple[int, str]:
    """How many acts a trace has, and the row that the model does not allow. Leaves it in the file."""
    file.write_text("".join(f"{row}\n" for row in trace))
    done = subprocess.run([str(program), "trace", str(file)], stdout=subprocess.PIPE, text=True, check=False)
    said = done.stdout.removeprefix(f"{file}: ").strip()
    return (int(said.split()[0]), "") if done.returncode == 0 else (0, said or f"{program} ended with {done.returncode}")
