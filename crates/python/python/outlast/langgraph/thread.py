"""One thread's rows in the store: read, and changed in commits that its fence guards; with the writes of tasks that are on their
way there, of which the next checkpoint's values are made."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, OrderedDict
from typing import Any

from ..errors import Conflict
from ..opening import Store
from ..state.table import Table
from . import rows
from .delta import applied, difference, without_further

# A chain of differences is as long as this before its length alone asks for the whole value.
_CHAIN = 512
# A value of no more bytes stands in its checkpoint's row: a row of its own would cost more.
SMALL = 64
# Bytes of values that a look through a thread's history holds.
_HELD = 64 << 20
# Links that are read one by one before all of the channel's are read at once.
_STEPS = 4

#: A checkpoint of a thread and namespace.
Place = tuple[str, str, str]
#: A write on the disk: how it is ordered among others, its task, its number, its channel and its bytes.
Stored = tuple[Any, str, int, str, bytes]

# A write of fewer bytes costs less than a reference to it.
_SHORT = 64
# Checkpoints, and bytes of writes at one of them, that are kept until the next checkpoint is stored.
_PLACES = 64
_BYTES = 16 << 20


class Rows(Table):
    """The rows of all threads in a store."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, rows.NAMESPACE)

    def get(self, thread: str, key: str) -> tuple[int, Any]:
        """A row's version and value. The value is None for a deleted row, whose version still counts, and for one never
        written."""
        version, value, _ = self.row(thread, key)
        return version, None if value is None else rows.unpack(value)


@dataclasses.dataclass(slots=True, eq=False)
class Blob:
    """A channel's value as it was stored or read last, against which the next value is stored as a difference."""

    version: Any
    kind: str
    data: bytes
    #: Differences from the whole value to this one, and their bytes.
    links: int = 0
    behind: int = 0
    #: Bytes of the whole value at the chain's start.
    root: int = 0

    def __post_init__(self) -> None:
        self.root = self.root or len(self.data)

    def whole(self) -> bytes:
        return rows.pack([self.kind, self.data])

    @staticmethod
    def after(base: "Blob | None", version: Any, kind: str, data: bytes, written: "Written | None" = None) -> tuple["Blob", bytes]:
        """The value as the next version of the channel, and its row: the whole value, or its difference from the base and
        from what tasks wrote."""
        place, further = (written.place, written.data) if written is not None else (None, b"")
        at = further.find(data)
        if at >= 0 and further:
            return Blob(version, kind, data), rows.pack([kind, place, None, [(at - len(further), len(data))]])
        pieces = None
        # A version that is stored again is no difference from itself, and a small value is in no row of its own.
        if base is not None and base.kind == kind and base.version != version and len(base.data) > SMALL and not base._is_long(len(data)):
            pieces = difference(base.data, data, further)
        if base is None or pieces is None:
            made = Blob(version, kind, data)
            return made, made.whole()
        copied = sum(p[1] for p in pieces if not isinstance(p, bytes) and p[0] < 0)
        row = rows.pack([kind, place if copied else None, base.version, pieces])
        return Blob(version, kind, data, base.links + 1, base.behind + len(row) + copied, base.root), row

    def _is_long(self, length: int) -> bool:
        # The whole value is stored anew when it has doubled: all whole values together are then no more than two of it.
        doubled = self.links >= _CHAIN and self.behind >= self.root
        return doubled or self.behind > 2 * length + 4096


class Written:
    """Writes of tasks at one checkpoint to one channel: the channel's next value is made of their bytes."""

    __slots__ = ("place", "data")

    def __init__(self, parent: str, writes: list[tuple[str, int, bytes]]) -> None:
        #: Where the bytes stand: the checkpoint, then tasks and numbers of their writes.
        self.place = [parent, [[task, at] for task, at, _ in writes]]
        self.data = b"".join(data for *_, data in writes)


class Writes:
    """Writes of the tasks of a namespace, read when a value is made of them."""

    def __init__(self, store: Rows, thread: str, ns: str) -> None:
        self._store = store
        self._thread = thread
        self._ns = ns
        self._all: dict[str, bytes] | None = None
        self._reads = 0

    def data(self, place: Any) -> bytes:
        """The bytes at a `Written.place`. Errors: `Conflict` when they were pruned meanwhile."""
        return b"" if place is None else b"".join(self._write(place[0], task, at) for task, at in place[1])

    def _write(self, parent: str, task: str, at: int) -> bytes:
        key = rows.task(self._ns, parent, task)
        self._reads += 1
        if self._all is None and self._reads > _STEPS:
            self._all = {key: value for key, _, value in self._store.scan(self._thread, rows.writes_of(self._ns))}
        if self._all is None:
            row = self._store.get(self._thread, key)[1]
        else:
            row = rows.unpack(self._all[key]) if key in self._all else None
        for number, _, _, data in row["writes"] if row is not None else []:
            if number == at:
                return bytes(data)
        raise _pruned(f"what task {task!r} wrote", self._thread)


def is_whole(row: Any) -> bool:
    """Whether a channel's row holds the value itself: (kind, bytes). Others are (kind, `Written.place`, base, pieces)."""
    return isinstance(row[1], bytes)


def made_of(base: bytes, row: Any, writes: Writes) -> bytes:
    """The value of a row that is a difference."""
    return applied(base, row[3], writes.data(row[1]))


def without_writes(row: Any, writes: Writes) -> list[Any]:
    """A row that is a difference, made of its base alone."""
    return [row[0], None, row[2], without_further(row[3], writes.data(row[1]))]


def read_blob(store: Rows, thread: str, ns: str, channel: str, version: Any) -> Blob | None:
    """A channel's value at a version; None where it has none. Errors: `Conflict` when it was pruned meanwhile."""
    row = store.get(thread, rows.blob(ns, channel, version))[1]
    if row is None:
        return None
    chain, all_rows = [(version, row)], None
    while not is_whole(chain[-1][1]) and chain[-1][1][2] is not None:
        base = chain[-1][1][2]
        key = rows.blob(ns, channel, base)
        if len(chain) < _STEPS:
            row = store.get(thread, key)[1]
        else:
            if all_rows is None:
                all_rows = {key: value for key, _, value in store.scan(thread, rows.blobs(ns, channel))}
            row = rows.unpack(all_rows[key]) if key in all_rows else None
        if row is None:
            raise _pruned(f"channel {channel!r}", thread)
        chain.append((base, row))
    writes = Writes(store, thread, ns)
    first, row = chain.pop()
    blob = Blob(first, row[0], row[1] if is_whole(row) else made_of(b"", row, writes))
    for version, row in reversed(chain):
        blob = Blob(version, row[0], made_of(blob.data, row, writes), blob.links + 1, blob.behind + _size(row[3]), blob.root)
    return blob


class History:
    """Values of a thread's channels at many versions: each channel's rows are read once, newest versions first."""

    def __init__(self, store: Rows, thread: str) -> None:
        self._store = store
        self._thread = thread
        self._rows: dict[str, dict[str, bytes]] = {}
        self._writes: dict[str, Writes] = {}
        self._values: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._held = 0

    def value(self, ns: str, channel: str, version: Any) -> tuple[str, bytes] | None:
        """A channel's value at a version, as (kind, bytes); None where it has none."""
        prefix, key = rows.blobs(ns, channel), rows.blob(ns, channel, version)
        if prefix not in self._rows:
            self._rows[prefix] = {key: packed for key, _, packed in self._store.scan(self._thread, prefix)}
        found = self._rows[prefix]
        if key not in found:
            return None
        chain = []
        while key not in self._values and key in found:
            chain.append((key, rows.unpack(found[key])))
            if is_whole(chain[-1][1]) or chain[-1][1][2] is None:
                break
            key = rows.blob(ns, channel, chain[-1][1][2])
        value = self._values.get(key)
        writes = self._writes.setdefault(ns, Writes(self._store, self._thread, ns))
        for key, row in reversed(chain):
            if is_whole(row):
                value = (row[0], row[1])
            elif row[2] is None or value is not None:
                value = (row[0], made_of(b"" if row[2] is None else value[1], row, writes))  # type: ignore[index]
            else:
                raise _pruned(f"channel {channel!r}", self._thread)
            self._values[key] = value
            self._held += len(value[1])
        while self._held > _HELD and len(self._values) > 1:
            self._held -= len(self._values.popitem(last=False)[1][1])
        return value


def _size(pieces: list[Any]) -> int:
    return sum(len(p) if isinstance(p, bytes) else 8 if p[0] >= 0 else p[1] for p in pieces)


def _pruned(name: str, thread: str) -> Conflict:
    return Conflict(f"{name} of thread {thread!r} was pruned while it was read", hint="read it again")


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
