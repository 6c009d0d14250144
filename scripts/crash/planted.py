"""Faults that are planted into a campaign, and have to be found by its oracle: one that it does not find makes it red.

Some are an agent's (CRASH_FAULT, in the programs of `agents`), some are done to the store between two lives, some to the log
of the world outside. The last are programs without Outlast: what it is worth.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import traces
from bed import Bed, Death, Place
from judge import judged
from outside import Broken, Chain
from scenarios import BATCH, BUDGET, LOOP, PLAIN, STEPS, Outcome, Scenario, alone, program, supervised

#: The machine dies when two answers have been acknowledged, and again when three have.
EARLY, LATE = Death("agent.5", "all"), Death("agent.8", "all")
#: Numbers of kinds and states of entries in a trace.
CALL, OPEN, DONE = 0, 0, 1


def of_agent(scenario: Scenario) -> Callable[[Bed, str, str], list[str]]:
    def plant(bed: Bed, run: str, fault: str) -> list[str]:
        place = Place(bed, run, None, scenario.calls, fault)
        return judged(scenario, place, scenario.live(scenario, place, []))[0]

    return plant


def of_store(does: Callable[[Path, int], None]) -> Callable[[Bed, str, str], list[str]]:
    def plant(bed: Bed, run: str, _: str) -> list[str]:
        place = Place(bed, run, None, PLAIN.calls)
        place.between_lives = lambda life: does(Path(place.store), life)
        return judged(PLAIN, place, supervised(PLAIN, place, [EARLY, LATE]))[0]

    return plant


def files(store: Path) -> list[Path]:
    return [path for path in store.parent.glob(f"{store.name}*") if path.is_file()]


def put_back(store: Path, life: int) -> None:
    """The second life goes on, and the third finds what the first had left."""
    kept = store.parent / "kept"
    if life == 1:
        kept.mkdir()
        for path in files(store):
            shutil.copy2(path, kept)
    if life == 2:
        for path in files(store):
            path.unlink()
        for path in kept.iterdir():
            shutil.copy2(path, store.parent)


def cut(store: Path, life: int, mark: bool = True) -> None:
    """Takes the last commits off the log."""
    log = store.with_name(f"{store.name}-wal")
    if life == 2:
        size = log.stat().st_size
        with log.open("r+b") as file:
            # A frame is a page with a head of 24 bytes, behind a head of 32: half of them, whole.
            file.truncate(32 + (size - 32) // 4120 // 2 * 4120)
        if not mark:
            store.with_name(f"{store.name}-mark").unlink()
            store.with_name(f"{store.name}-shm").unlink(missing_ok=True)


def removed(store: Path, life: int) -> None:
    if life == 2:
        for path in files(store):
            path.unlink()


def damaged(store: Path, life: int) -> None:
    """At the end, every page but the first has its middle written over."""
    if life == 3:
        with store.open("r+b") as file:
            for page in range(4096, store.stat().st_size, 4096):
                file.seek(page + 2048)
                file.write(b"damaged ")


def unresumed(bed: Bed, run: str, _: str) -> list[str]:
    place = Place(bed, run, None, PLAIN.calls)
    line = [str(bed.outlast), "run", "--run", run, "--usd", "1", "--", *program(PLAIN, place)]
    place.lived(line, PLAIN.roles, [EARLY])
    return judged(PLAIN, place, Outcome(place))[0]


def observed(bed: Bed, run: str, _: str) -> list[str]:
    """A limit that is only counted is passed."""
    scenario = dataclasses.replace(BUDGET, limit_nano_usd=60_000)
    place = Place(bed, run, None, scenario.calls)
    place.env["OUTLAST_ADMISSION"] = "observe"
    return judged(scenario, place, supervised(scenario, place, []))[0]


def of_log(change: Callable[[list[str]], list[str]]) -> Callable[[Bed, str, str], list[str]]:
    def plant(bed: Bed, _run: str, _: str) -> list[str]:
        rows = bed.log_path.read_text().splitlines()[:20]
        try:
            Chain().lines("\n".join(change(rows)))
        except Broken as broken:
            return [str(broken)]
        return []

    return plant


def of_trace(change: Callable[[dict], list[dict]], state: int = DONE, table: str = "entries") -> Callable[[Bed, str, str], list[str]]:
    """Changes the first row of a table in the trace of a run that nobody killed: of entries a call's, in that state."""

    def plant(bed: Bed, run: str, _: str) -> list[str]:
        place = Place(bed, run, None, PLAIN.calls, traced=True)
        faults, _ = judged(PLAIN, place, supervised(PLAIN, place, []))
        told = [json.loads(row) for row in traces.rows(Path(place.store))]
        is_it = lambda row: row["table"] == table and (table != "entries" or (row["kind"], row["state"]) == (CALL, state))
        at = next(n for n, row in enumerate(told) if is_it(row))
        sound, changed = ([json.dumps(row) for row in trace] for trace in (told, told[:at] + change(told[at]) + told[at + 1 :]))
        acts, wrong = traces.checked(bed.sim, sound, place.home / "sound")
        # A model that allows nothing would find it too.
        return [] if faults or wrong or not acts else [traces.checked(bed.sim, changed, place.home / "changed")[1]]

    return plant


def cheaper(rows: list[str]) -> list[str]:
    told = [json.loads(row) for row in rows]
    first = next(row for row in told if row["line"]["kind"] == "call")
    first["line"]["cost_nano_usd"] //= 2
    return [json.dumps(row) for row in told]


PLANTED: dict[str, Callable[[Bed, str, str], list[str]]] = {
    "a tool without a key": of_agent(STEPS),
    "a key that changes": of_agent(STEPS),
    "a state that goes back": of_agent(STEPS),
    "a call past the proxy": of_agent(PLAIN),
    "an answer that is another one in the next life": of_agent(PLAIN),
    "a batch under another name": of_agent(BATCH),
    "a loop under another name": of_agent(LOOP),
    "a limit that is only counted": observed,
    "a run that nobody resumes": unresumed,
    "a store that was put back": of_store(put_back),
    "a store whose last commits are cut off": of_store(cut),
    "the same, and its mark is gone": of_store(lambda store, life: cut(store, life, mark=False)),
    "a store that was removed": of_store(removed),
    "a store with damaged pages": of_store(damaged),
    "a line of the provider's log removed": of_log(lambda rows: rows[:9] + rows[10:]),
    "a line of the provider's log added": of_log(lambda rows: rows[:9] + rows[8:]),
    "a price in the provider's log changed": of_log(cheaper),
    "a trace that settles without a reserve": of_trace(lambda _: [], OPEN),
    "a trace that settles twice": of_trace(lambda row: [row, {**row, "spent": [row["spent"][0] + 1, *row["spent"][1:]]}]),
    "a trace whose charge nobody reserved": of_trace(lambda row: [{**row, "spent": [10**9, *row["spent"][1:]]}]),
    "a trace whose reservation passes the limit": of_trace(lambda row: [{**row, "held": [10**10, *row["held"][1:]]}], OPEN),
    "a trace whose attempt acts without its lease": of_trace(lambda row: [{**row, "fence": row["fence"] + 1}], table="leases"),
    "a trace in which a dead process acts": of_trace(lambda row: [row, {**row, "life": 1}], table="instances"),
}

BARE = dataclasses.replace(
    PLAIN, name="bare", title="the same work without Outlast", agent="bare.py", kinds={"agent": ("self",)}, live=alone
)


def bare(bed: Bed, run: str, death: Death) -> dict[str, int]:
    """Counts what a program without Outlast buys and does again after one death."""
    place = Place(bed, run, None, BARE.calls)
    outcome = alone(BARE, place, [death])
    lines = bed.lines(run)
    bought = [line["ask"] for line in lines if line["kind"] == "call"]
    done = [line["name"] for line in lines if line["kind"] == "effect"]
    place.gone()
    return {
        "kills": len(outcome.strikes), "bought": len(bought), "again": len(bought) - len(set(bought)),
        "twice": len(done) - len(set(done)),
    }  # fmt: skip
