"""Messages about a batch: at its start, its progress (by tqdm or rich where they are installed, else in plain lines),
and when it is left."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import sys
import time
from typing import Any, Mapping

from .. import budget
from ..say import is_terminal, say
from .plan import Plan

#: File systems that lose their files with the machine or the container.
FLEETING = {"tmpfs": "is in memory", "ramfs": "is in memory", "overlay": "goes with its container"}

#: Seconds between two lines, or two looks at a bar.
_LINE_S = 5.0
_BAR_S = 0.1


@dataclasses.dataclass
class Stats:
    """Counts of a batch. `done` includes `cached`, which an earlier life or another process did.

    `pending` were left when it ended; `vanished` are recorded and not in the input any more.
    """

    total: int = 0
    done: int = 0
    cached: int = 0
    failed: int = 0
    dead: int = 0
    skipped: int = 0
    vanished: int = 0
    cost_usd: float = 0.0
    #: Calls whose part of `cost_usd` is an estimate, because no usage came.
    estimated: int = 0
    #: Items that other processes ended meanwhile, and that this one has not come to yet.
    elsewhere: int = 0
    #: Since the start, in seconds.
    seconds: float = 0.0
    #: Why nothing ends at present, in words: its provider answers no call, or a budget has no room.
    waits_for: str | None = None

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.dead + self.skipped

    @property
    def pending(self) -> int:
        return self.total - self.ended


def start(job: str, stats: Stats, plan: Plan, spent_nano: int, place: str, resumes: bool) -> list[str]:
    """The lines printed when a batch starts: one that is always printed, and warnings before anything is paid for."""
    where = f"store {place}"
    if not resumes:
        lines = [f"new job {job}: {some(stats.total, 'item')}, {where}"]
    else:
        text = f"resuming: {stats.done:,} of {stats.total:,} done, {budget.usd(spent_nano)} usd spent, {where}"
        others = [(stats.dead, "dead"), (stats.skipped, "skipped"), (plan.vanished, "not in the input any more")]
        lines = [text + "".join(f"; {count:,} {what}" for count, what in others if count)]
    if plan.old_code:
        keep = "1 item keeps" if plan.old_code == 1 else f"{plan.old_code:,} items keep"
        run = "1 runs" if plan.left == 1 else f"{plan.left:,} run"
        lines.append(f"the function changed: {keep} the result of its old code, and {run} with the new (version=… decides it)")
    kind = fleeting(place)
    if kind is not None:
        lines.append(f"the store is on {kind}, which {FLEETING[kind]}: name another with store=…")
    return lines


def dropped(job: str, stats: Stats, running: int) -> str:
    """The message for a batch whose handle was dropped before the batch was over, while so many items run."""
    left = stats.pending - running
    runs = f"what runs ({some(running, 'item')}) is finished, and " if running else ""
    then = f"{left:,} of {some(stats.total, 'item')} are left. Start it again to go on; out.wait() waits for all of them"
    return f"job {job}: nobody holds its results any more: {runs}{then if left else 'nothing is left'}"


def resume_hint() -> str:
    """The command that continues the job, for people at a terminal."""
    if not sys.argv or not os.path.isfile(sys.argv[0]) or "ipykernel" in sys.argv[0]:
        # No script to name: a notebook, an interactive interpreter, or python -c.
        return "start it again to go on"
    return "start it again to go on: " + shlex.join([os.path.basename(sys.executable or "python"), *sys.argv])


def some(count: int, one: str) -> str:
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def fleeting(place: str) -> str | None:
    """The file system that holds a store's file, if files there do not survive a reboot or the container: tmpfs, ramfs or
    overlay. None for any other."""
    if "://" in place:
        return None
    path = os.path.realpath(place)
    best, found = "", None
    try:
        with open("/proc/self/mounts") as mounts:
            for mount in mounts:
                _, at, fs = mount.split(" ")[:3]
                at = at.replace("\\040", " ")
                if len(at) >= len(best) and (path == at or path.startswith(at.rstrip("/") + "/")):
                    best, found = at, fs
    except OSError:
        return None
    return found if found in FLEETING else None


# --- while it runs


def make(wanted: bool | None, total: int, before: int, spent_usd: float, name: str) -> "_Display | None":
    """Makes the display of the progress; None where nothing is to be shown. `wanted` None: on a terminal only."""
    tty = is_terminal()
    if wanted is False or (wanted is None and not tty):
        return None
    for kind in (_Tqdm, _Rich) if tty else ():
        try:
            return kind(total, before, spent_usd, name)
        except ImportError:
            continue
    return _Lines(total, before, spent_usd, name)


def line(stats: Stats, before: int, spent_before: float) -> list[str]:
    """The parts of a line: how many items ended, at what pace or what the job waits for, the counts, and the cost so far and
    projected."""
    ended, pending = stats.ended + stats.elsewhere, stats.pending - stats.elsewhere
    worked = max(0, ended - before)
    rate = worked / stats.seconds if stats.seconds > 0 else 0.0
    left = f"{_time(pending / rate)} left" if rate > 0 else "-"
    pace = f"waits: {stats.waits_for}" if stats.waits_for else f"{rate:.1f}/s, {left}"
    parts = [f"{ended:,} of {stats.total:,}", pace, f"{stats.done + stats.elsewhere:,} done"]
    parts += [f"{stats.cached:,} cached"] if stats.cached else []
    parts += [f"{stats.failed + stats.dead:,} failed"] if stats.failed + stats.dead else []
    parts += [f"{stats.skipped:,} skipped"] if stats.skipped else []
    if stats.cost_usd > 0:
        parts.append(spent(stats.cost_usd, stats.estimated))
        if worked and pending:
            whole = stats.cost_usd + (stats.cost_usd - spent_before) / worked * pending
            parts[-1] += f", about {_usd(round(whole, max(2, 1 - math.floor(math.log10(whole)))))} in all"
    return parts


def counts(job: Mapping[str, int]) -> list[str]:
    """The counts of a job's items in words, without those that are zero."""
    others = {"failed": "failed", "dead": "dead", "skipped": "skipped", "open": "not ended", "vanished": "not in the input any more"}
    items = ("at least " if job.get("is_at_least") else "") + some(job["items"], "item")
    return [f"{job['done']:,} of {items} done", *(f"{job[count]:,} {what}" for count, what in others.items() if job[count])]


def spent(usd: float, estimated: int) -> str:
    """The cost in words, with the number of calls whose part of it is an estimate."""
    return f"{_usd(usd)} usd" + (f" ({some(estimated, 'call')} estimated)" if estimated else "")


def _usd(usd: float) -> str:
    return budget.usd(round(usd * budget.NANO))


def _time(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


class _Display:
    """A display that is drawn anew every so many seconds, and at the end."""

    _every_s = _BAR_S

    def __init__(self, total: int, before: int, spent_usd: float, name: str) -> None:
        self._before, self._spent, self._name, self._next = before, spent_usd, name, 0.0
        self._begin(total)

    def update(self, stats: Stats, last: bool = False) -> None:
        now = time.monotonic()
        if last or now >= self._next:
            self._next = now + self._every_s
            self._draw(stats, line(stats, self._before, self._spent), last)

    def _begin(self, total: int) -> None:
        raise NotImplementedError

    def _draw(self, stats: Stats, parts: list[str], last: bool) -> None:
        raise NotImplementedError


class _Lines(_Display):
    _every_s = _LINE_S

    def _begin(self, total: int) -> None:
        self._next = time.monotonic() + _LINE_S

    def _draw(self, stats: Stats, parts: list[str], last: bool) -> None:
        say(f"{self._name}: {', '.join(parts)}")


class _Tqdm(_Display):
    def _begin(self, total: int) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

        self._bar = tqdm(total=total, initial=self._before, desc=self._name, file=sys.stderr, dynamic_ncols=True)

    def _draw(self, stats: Stats, parts: list[str], last: bool) -> None:
        self._bar.n = stats.ended + stats.elsewhere
        # The bar has a pace of its own.
        self._bar.set_postfix_str(", ".join(parts[1 if stats.waits_for else 2 :]), refresh=True)
        if last:
            self._bar.close()


class _Rich(_Display):
    def _begin(self, total: int) -> None:
        from rich.console import Console  # type: ignore[import-not-found,unused-ignore]
        from rich.progress import Progress  # type: ignore[import-not-found,unused-ignore]

        self._progress: Any = Progress(console=Console(stderr=True))
        self._task = self._progress.add_task(self._name, total=total, completed=self._before)
        self._progress.start()

    def _draw(self, stats: Stats, parts: list[str], last: bool) -> None:
        self._progress.update(self._task, completed=stats.ended + stats.elsewhere, description=", ".join(parts))
        if last:
            self._progress.stop()
