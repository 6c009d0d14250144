"""The progress of a batch, for people: by tqdm or rich where they are installed, else in plain lines."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any, Protocol

from .. import budget
from ..say import is_terminal, say

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
    #: Since the start, in seconds.
    seconds: float = 0.0

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.dead + self.skipped

    @property
    def pending(self) -> int:
        return self.total - self.ended


class Shown(Protocol):
    def update(self, stats: Stats, last: bool = False) -> None: ...


def make(wanted: bool | None, total: int, before: int, spent_usd: float, name: str) -> Shown | None:
    """Makes the display of the progress; None where nothing is to be shown. `wish` None: on a terminal only."""
    tty = is_terminal()
    if wanted is False or (wanted is None and not tty):
        return None
    for kind in (_Tqdm, _Rich) if tty else ():
        try:
            return kind(total, before, spent_usd, name)
        except ImportError:
            continue
    return _Lines(total, before, spent_usd, name)


def line(stats: Stats, before: int, spent_before: float) -> str:
    """A line with rate, time left, counts, and the cost so far and projected."""
    worked = max(0, stats.ended - before)
    rate = worked / stats.seconds if stats.seconds > 0 else 0.0
    left = f"{_time(stats.pending / rate)} left" if rate > 0 else "-"
    parts = [f"{stats.ended:,} of {stats.total:,}", f"{rate:.1f}/s", left, f"{stats.done:,} done"]
    parts += [f"{stats.cached:,} cached"] if stats.cached else []
    parts += [f"{stats.failed + stats.dead:,} failed"] if stats.failed + stats.dead else []
    if stats.cost_usd > 0:
        whole = stats.cost_usd
        if worked:
            whole += (stats.cost_usd - spent_before) / worked * stats.pending
        so_far, in_all = (budget.about(round(usd * budget.NANO)) for usd in (stats.cost_usd, whole))
        parts.append(f"{so_far} usd, {in_all} in all")
    return ", ".join(parts)


def _time(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


class _Lines:
    def __init__(self, total: int, before: int, spent_usd: float, name: str) -> None:
        self._before, self._spent, self._name = before, spent_usd, name
        self._next = time.monotonic() + _LINE_S

    def update(self, stats: Stats, last: bool = False) -> None:
        now = time.monotonic()
        if last or now >= self._next:
            self._next = now + _LINE_S
            say(f"{self._name}: {line(stats, self._before, self._spent)}")


class _Tqdm:
    def __init__(self, total: int, before: int, spent_usd: float, name: str) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

        self._before, self._spent, self._next = before, spent_usd, 0.0
        self._bar = tqdm(total=total, initial=before, desc=name, file=sys.stderr, dynamic_ncols=True)

    def update(self, stats: Stats, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now < self._next:
            return
        self._next = now + _BAR_S
        self._bar.n = stats.ended
        told = line(stats, self._before, self._spent).split(", ")[3:]
        self._bar.set_postfix_str(", ".join(told), refresh=True)
        if last:
            self._bar.close()


class _Rich:
    def __init__(self, total: int, before: int, spent_usd: float, name: str) -> None:
        from rich.console import Console  # type: ignore[import-not-found,unused-ignore]
        from rich.progress import Progress  # type: ignore[import-not-found,unused-ignore]

        self._before, self._spent, self._next = before, spent_usd, 0.0
        self._progress: Any = Progress(console=Console(stderr=True))
        self._task = self._progress.add_task(name, total=total, completed=before)
        self._progress.start()

    def update(self, stats: Stats, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now < self._next:
            return
        self._next = now + _BAR_S
        told = line(stats, self._before, self._spent)
        self._progress.update(self._task, completed=stats.ended, description=told)
        if last:
            self._progress.stop()
