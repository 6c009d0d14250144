"""One thread's rows in the store: read, and changed in commits that its fence guards."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ..errors import Conflict
from ..state.table import Table
from . import rows
from .delta import applied, difference

if TYPE_CHECKING:
    from ..runtime import Runtime

# A chain of differences is as long as this before its length alone asks for the whole value.
_CHAIN = 256
# Bytes of values that a look through a thread's history holds.
_HELD = 64 << 20
# Links that are read one by one before all of the channel's are read at once.
_STEPS = 4


class Rows(Table):
    """The rows of all threads in a store."""

    def __init__(self, runtime: "Runtime") -> None:
        super().__init__(runtime, rows.NAMESPACE)

    def get(self, thread: str, key: str) -> tuple[int, Any]:
        """A row's version and value. The value is None for a deleted row, whose version still counts, and for one never
        written."""
        version, value, _ = self.row(thread, key)
        return version, None if value is None else rows.unpack(value)


class Blob:
    """A channel's value as it was stored or read last, against which the next value is stored as a difference."""

    __slots__ = ("version", "kind", "data", "links", "behind", "root")

    def __init__(self, version: Any, kind: str, data: bytes, links: int = 0, behind: int = 0, root: int = 0) -> None:
        self.version = version
        self.kind = kind
        self.data = data
        #: Differences from the whole value to this one, and their bytes.
        self.links = links
        self.behind = behind
        #: Bytes of the whole value at the chain's start.
        self.root = root or len(data)

    def whole(self) -> bytes:
        return rows.pack([self.kind, self.data])

    @staticmethod
    def after(base: "Blob | None", version: Any, kind: str, data: bytes) -> tuple["Blob", bytes]:
        """The value as the next version of the channel, and its row: the whole value, or its difference from the base."""
        pieces = None
        # A version that is stored again is no difference from itself.
        if base is not None and base.kind == kind and base.version != version and not base._is_long(len(data)):
            pieces = difference(base.data, data)
        if base is None or pieces is None:
            made = Blob(version, kind, data)
            return made, made.whole()
        row = rows.pack([kind, None, base.version, pieces])
        return Blob(version, kind, data, base.links + 1, base.behind + len(row), base.root), row

    def _is_long(self, length: int) -> bool:
        # The whole value is stored anew when it has doubled: all whole values together are then no more than two of it.
        doubled = self.links >= _CHAIN and self.behind >= self.root
        return doubled or self.behind > 2 * length + 4096


def read_blob(store: Rows, thread: str, ns: str, channel: str, version: Any) -> Blob | None:
    """A channel's value at a version; None where it has none. Errors: `Conflict` when it was pruned meanwhile."""
    row = store.get(thread, rows.blob(ns, channel, version))[1]
    if row is None:
        return None
    chain, all_rows = [(version, row)], None
    while chain[-1][1][1] is None:
        base = chain[-1][1][2]
        key = rows.blob(ns, channel, base)
        if len(chain) < _STEPS:
            row = store.get(thread, key)[1]
        else:
            if all_rows is None:
                all_rows = {key: value for key, _, value in store.scan(thread, rows.blobs(ns, channel))}
            row = rows.unpack(all_rows[key]) if key in all_rows else None
        if row is None:
            raise Conflict(f"channel {channel!r} of thread {thread!r} was pruned while it was read", hint="read it again")
        chain.append((base, row))
    _, (kind, data) = chain.pop()
    blob = Blob(None, kind, data)
    for version, row in reversed(chain):
        blob = Blob(version, row[0], applied(blob.data, row[3]), blob.links + 1, blob.behind + _size(row[3]), blob.root)
    blob.version = version
    return blob


class History:
    """Values of a thread's channels at many versions: each channel's rows are read once, newest versions first."""

    def __init__(self, store: Rows, thread: str) -> None:
        self._store = store
        self._thread = thread
        self._rows: dict[str, dict[str, bytes]] = {}
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
            if chain[-1][1][1] is not None:
                break
            key = rows.blob(ns, channel, chain[-1][1][2])
        value = self._values.get(key)
        for key, row in reversed(chain):
            if row[1] is None and value is None:
                raise Conflict(f"channel {channel!r} of thread {self._thread!r} was pruned while it was read", hint="read it again")
            value = (row[0], applied(value[1], row[3]) if row[1] is None else row[1])  # type: ignore[index]
            self._values[key] = value
            self._held += len(value[1])
        while self._held > _HELD and len(self._values) > 1:
            self._held -= len(self._values.popitem(last=False)[1][1])
        return value


def _size(pieces: list[Any]) -> int:
    return sum(len(p) if isinstance(p, bytes) else 8 for p in pieces)
