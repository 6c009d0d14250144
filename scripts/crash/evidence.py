"""docs/evidence.md and README's figure, made of docs/evidence.json, which a campaign has written.

    .venv/bin/python scripts/crash/evidence.py          writes both anew
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FACTS, PAGE, README = ROOT / "docs/evidence.json", ROOT / "docs/evidence.md", ROOT / "README.md"


def page(told: dict) -> str:
    faults, planted, bare = told["faults"], told["planted"], told["bare"]
    scenarios, machine = told["scenarios"], told["machine"]
    lost = "Nothing was lost." if not faults else f"{len(faults)} runs have faults."
    found = sum(one["found"] for one in planted)
    cpu = f"; {told['cpu_seconds'] / max(told['kills'], 1):.2f} s of one core for each, with its resumption and its verdict" if told["cpu_seconds"] else ""
    runs, seconds = sum(one["runs"] for one in scenarios), max(told["seconds"], 1)
    lines = [
        "# Evidence",
        "",
        "After reading this page you know how often the real programs were killed, where, what was lost, and how to do it again.",
        "It is written by `make crash`; what a resumption promises is [the contract](contract.md).",
        "",
        f"**{number(told['kills'])} deaths in {number(runs)} runs. {lost}** {found} of {len(planted)} planted faults were found.",
        "",
        "| | |",
        "|---|---|",
        f"| date | {told['date']} |",
        f"| program | {told['version']}, {told['profile']} build of {told['commit']} |",
        f"| machine | {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']} |",
        f"| again | `make crash KILLS={told['kills']} SEED={told['seed']}` |",
        f"| took | {number(seconds)} s, {told['kills'] / seconds:.1f} deaths a second, {told['at_once']} runs at a time{cpu} |",
        "",
        "## What was killed",
        "",
        "| scenario | runs | on PostgreSQL | deaths | writes where one died | answers sold | sold again, in flight | told as in doubt | lost |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    bad = {}
    for fault in faults:
        name = fault["only"].partition(":")[0]
        bad[name] = bad.get(name, 0) + 1
    for one in scenarios:
        lines.append(
            f"| {one['title']} | {number(one['runs'])} | {number(one['on_postgres'])} | {number(one['kills'])} | "
            f"{number(one['hit'])} of {number(one['points'])} | {number(one.get('bought', 0))} | {number(one.get('again', 0))} | "
            f"{number(one.get('told', 0))} | {bad.get(one['name'], 'nothing')} |"
        )
    kinds = sorted({kind for one in scenarios for kind in one["kinds"]})
    lines += [
        "",
        "A write is a system call by which a process changes a file or sends bytes: `write`, `pwrite`, `send`, `fsync`, `rename`,",
        "`unlink` and 20 more, each before it is done. Writes of a clean run are counted for each role and tried with each kind of",
        "death; a run dies at one of them, and once more, at random, while it recovers.",
        "",
        "| died | " + " | ".join(one["name"] for one in scenarios) + " | all |",
        "|---|" + "---|" * (len(scenarios) + 1),
    ]
    for kind in kinds:
        counts = [one["kinds"].get(kind, 0) for one in scenarios]
        lines.append(f"| {kind} | " + " | ".join(number(count) if count else "" for count in counts) + f" | {number(sum(counts))} |")
    calls: dict[str, int] = {}
    for one in scenarios:
        for call, count in one["calls"].items():
            calls[call] = calls.get(call, 0) + count
    ordered = sorted(calls.items(), key=lambda item: -item[1])
    lines += [
        "",
        "`machine` is every process at once; `database` is a process of PostgreSQL, which ends all others of it and recovers. Deaths before a system call: "
        + ", ".join(f"`{call}` {number(count)}" for call, count in ordered)
        + "; the others came at a random instant.",
        "",
        "## What is held",
        "",
        "The oracle stands outside: a provider that bills, and a service for effects, in a process of their own, which write one",
        "log. Each of its lines bears a digest of itself and the one before. After a run's end:",
        "",
        "- no answer, step, tool's receipt, item or stage that the agent had acknowledged was lost, or is another one;",
        "- no answer was sold twice but one that was in flight when its proxy died, and none after it was acknowledged;",
        "- each effect of an `outlast.tool` was done once, or its model was told that its outcome is unknown;",
        "- what may be done again was, with the same key, and only where a death had cut it off;",
        "- what Outlast charged is what the provider sold; calls lost in flight are charged besides, and marked;",
        "- no limit was passed; the run completed; no process was left; `outlast verify` is sound.",
        *model(scenarios),
        "",
        "## Planted faults",
        "",
        "A campaign that does not find each of them is red.",
        "",
        "| planted | found by |",
        "|---|---|",
    ]
    lines += [f"| {one['name']} | {cell(one['by']) if one['found'] else '**not found**'} |" for one in planted]
    lines += [
        "",
        "## Without Outlast",
        "",
        f"The same kind of work as a plain program, killed once at each of its writes and started again: {bare['kills']} deaths,",
        f"{bare['again']} answers were bought again (of {bare['bought'] - bare['again']}), and {bare['twice']} effects were done twice.",
        "",
        "## What is not in it",
        "",
        "Hosts that lose each other, and databases that come back without their last commits, are in `make test` and `make sim`;",
        "the power is taken by `make power-loss`. Files and CLI agents are killed by tests of their own, which",
        "[the contract](contract.md) names. Peers (LangGraph, DBOS) have not been run beside it.",
    ]
    if faults:
        lines += ["", "## Faults", ""]
        lines += [f"- `--only {one['only']}`: {cell('; '.join(one['faults']))}" for one in faults]
    return "\n".join(lines) + "\n"


def model(scenarios: list[dict]) -> list[str]:
    """The sentence about traces, where a campaign had some."""
    traces, acts = (sum(one.get(what, 0) for one in scenarios) for what in ("traces", "acts"))
    if not traces:
        return []
    return [
        "",
        f"**{number(traces)} traces were checked**, of {number(acts)} acts: every row that a run's SQLite store wrote of processes, leases,",
        "attempts, entries and envelopes, in its order, is replayed through a model of reserve, send and settle, of lease, fence and",
        "takeover (`crates/sim/src/trace`), which shares no code with the engine. A row that the model does not allow is a fault.",
    ]


def number(count: int) -> str:
    return f"{count:,}"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(told: dict) -> None:
    """Writes the page, and the figure that README takes from it."""
    PAGE.write_text(page(told))
    figure = rf"[{number(told['kills'])} deaths](docs/evidence.md)"
    README.write_text(re.sub(r"\[[0-9,]+ deaths\]\(docs/evidence\.md\)", figure, README.read_text()))


if __name__ == "__main__":
    write(json.loads(FACTS.read_text()))
