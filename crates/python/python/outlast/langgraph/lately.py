"""Writes of tasks that are on their way to the disk, or came there lately: the next checkpoint's values are made of them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Any

from .thread import Written

#: A checkpoint of a thread and namespace.
Place = tuple[str, str, str]
#: A write on the disk: how it is ordered among others, its task, its number, its channel and its bytes.
Stored = tuple[Any, str, int, str, bytes]

# A write of fewer bytes costs less than a reference to it.
_SHORT = 64
# Checkpoints, and bytes of writes at one of them, that are kept until the next checkpoint is stored.
_PLACES = 64
_BYTES = 16 << 20


class Lately:
    """Writes at the newest checkpoints. One object for all copies of a saver."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[Place] = Counter()
        self._stored: OrderedDict[Place, list[Stored]] = OrderedDict()

    def begin(self, place: Place) -> None:
        """A task's writes are on their way: `taken` waits for them, until `end`."""
        with self._changed:
            self._running[place] += 1

    def end(self, place: Place, stored: list[Stored]) -> None:
        """The writes are on the disk, as far as `stored` tells."""
        with self._changed:
            self._running[place] -= 1
            if not self._running[place]:
                del self._running[place]
            known = self._stored.setdefault(place, [])
            known += [write for write in stored if len(write[-1]) >= _SHORT]
            if sum(len(write[-1]) for write in known) > _BYTES or not known:
                del self._stored[place]
            while len(self._stored) > _PLACES:
                self._stored.popitem(last=False)
            self._changed.notify_all()

    def taken(self, place: Place) -> dict[str, Written]:
        """Waits until all writes that are on their way to a checkpoint are on the disk, and gives them by channel, once."""
        with self._changed:
            self._changed.wait_for(lambda: place not in self._running)
            stored = self._stored.pop(place, [])
        by_channel: dict[str, dict[tuple[str, int], bytes]] = {}
        for _, task, at, channel, data in sorted(stored, key=lambda write: write[0]):
            by_channel.setdefault(channel, {})[task, at] = data
        return {channel: Written(place[2], [(*where, data) for where, data in found.items()]) for channel, found in by_channel.items()}

    def forget(self, thread: str, ns: str | None = None) -> None:
        """Forgets the writes of a thread, or of one of its namespaces: others may have removed them."""
        with self._changed:
            for place in [place for place in self._stored if place[0] == thread and ns in (None, place[1])]:
                del self._stored[place]
