"""One thread's rows in the store: read, and changed in commits that its fence guards; with the writes of tasks that are on their
way there, of which the next checkpoint's values are made."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import Counter, OrderedDict
from typing import Any, Callable

from ..errors import Conflict
from ..opening import Store
from ..state.table import Table
from . import rows
from .delta import applied, difference, without_further

# A chain of differences is as long as this before its length alone asks for the whole value.
_CHAIN = 512
# A value of no more bytes stands in its checkpoint's row: a row of its own would cost more.
SMALL = 64
# Bytes of values that are kept in memory: as bases of differences, or by a look through a thread's history.
_HELD = 64 << 20
# Links that are read one by one before all of the channel's are read at once.
_STEPS = 4

#: A channel of a namespace.
Channel = tuple[str, str]
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


class Kept(OrderedDict[Any, Blob]):
    """Values in memory: those kept last, as far as they are few and short enough."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._held = 0

    def __setitem__(self, key: Any, blob: Blob) -> None:
        if key in self:
            del self[key]
        super().__setitem__(key, blob)
        self._held += len(blob.data)
        while len(self) > 1 and (len(self) > self._most or self._held > _HELD):
            del self[next(iter(self))]

    def __delitem__(self, key: Any) -> None:
        self._held -= len(self[key].data)
        super().__delitem__(key)


class Reader:
    """Rows of a thread below a prefix: the first `steps` are read one by one, and then all at once."""

    def __init__(self, store: Rows, thread: str, prefix: str, steps: int = _STEPS) -> None:
        self._store = store
        self._thread = thread
        self._prefix = prefix
        self._steps = steps
        self._all: dict[str, bytes] | None = None

    def row(self, key: str) -> Any:
        """A row of this key; None where there is none."""
        self._steps -= 1
        if self._steps >= 0:
            return self._store.get(self._thread, key)[1]
        if self._all is None:
            self._all = {key: packed for key, _, packed in self._store.scan(self._thread, self._prefix)}
        return rows.unpack(self._all[key]) if key in self._all else None


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
        self.thread = thread
        self._ns = ns
        self._reader = Reader(store, thread, rows.writes_of(ns))

    def data(self, place: Any) -> bytes:
        """The bytes at a `Written.place`. Errors: `Conflict` when they were pruned meanwhile."""
        return b"" if place is None else b"".join(self._write(place[0], task, at) for task, at in place[1])

    def _write(self, parent: str, task: str, at: int) -> bytes:
        row = self._reader.row(rows.task(self._ns, parent, task))
        for number, _, _, data in row["writes"] if row is not None else []:
            if number == at:
                return bytes(data)
        raise pruned(f"what task {task!r} wrote", self.thread)


def is_whole(row: Any) -> bool:
    """Whether a channel's row holds the value itself: (kind, bytes). Others are (kind, `Written.place`, base, pieces)."""
    return isinstance(row[1], bytes)


def without_writes(row: Any, writes: Writes) -> list[Any]:
    """A row that is a difference, made of its base alone."""
    return [row[0], None, row[2], without_further(row[3], writes.data(row[1]))]


def made(row: Callable[[str], Any], writes: Writes, place: Channel, version: Any, known: "Kept | dict[str, Blob]") -> Blob | None:
    """A channel's value at a version, made of its row and of those that it is a difference from; None where it has none.

    `row` gives the row of a key. Values are taken from `known`, and stay there. Errors: `Conflict` when a row was pruned
    meanwhile."""
    chain: list[tuple[Any, str, Any]] = []
    key = rows.blob(*place, version)
    while key not in known:
        found = row(key)
        if found is None and not chain:
            return None
        if found is None:
            raise pruned(f"channel {place[1]!r}", writes.thread)
        chain.append((version, key, found))
        if is_whole(found) or found[2] is None:
            break
        version, key = found[2], rows.blob(*place, found[2])
    blob = known.get(key)
    for version, key, found in reversed(chain):
        if is_whole(found):
            blob = Blob(version, found[0], found[1])
        else:
            data = applied(blob.data if blob else b"", found[3], writes.data(found[1]))
            further = (blob.links + 1, blob.behind + _size(found[3]), blob.root) if blob else ()
            blob = Blob(version, found[0], data, *further)
        known[key] = blob
    return blob


def read_blob(store: Rows, thread: str, ns: str, channel: str, version: Any) -> Blob | None:
    """A channel's value at a version; None where it has none. Errors: `Conflict` when it was pruned meanwhile."""
    row = Reader(store, thread, rows.blobs(ns, channel)).row
    return made(row, Writes(store, thread, ns), (ns, channel), version, Kept(1))


class History:
    """Values of a thread's channels at many versions: each channel's rows are read once, newest versions first."""

    def __init__(self, store: Rows, thread: str) -> None:
        self._store = store
        self._thread = thread
        self._readers: dict[Channel, Reader] = {}
        self._writes: dict[str, Writes] = {}
        self._known = Kept(sys.maxsize)

    def value(self, ns: str, channel: str, version: Any) -> Blob | None:
        """A channel's value at a version; None where it has none."""
        reader = self._readers.setdefault((ns, channel), Reader(self._store, self._thread, rows.blobs(ns, channel), 0))
        writes = self._writes.setdefault(ns, Writes(self._store, self._thread, ns))
        return made(reader.row, writes, (ns, channel), version, self._known)


def _size(pieces: list[Any]) -> int:
    return sum(len(p) if isinstance(p, bytes) else 8 if p[0] >= 0 else p[1] for p in pieces)


def pruned(name: str, thread: str) -> Conflict:
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
