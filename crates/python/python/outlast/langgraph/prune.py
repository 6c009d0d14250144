"""Rows of a thread removed or copied: what is kept can still be read, whatever it was stored as a difference from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable

from ..errors import Conflict
from . import rows
from .thread import Kept, Writes, is_whole, made, without_writes

if TYPE_CHECKING:
    from ..state.table import Change
    from .thread import Rows


@dataclasses.dataclass
class Found:
    """A stored checkpoint, without the values of its channels."""

    id: str
    parent: str | None
    versions: dict[str, Any]
    #: Channels whose values stand in the checkpoint's row.
    small: set[str]
    metadata: dict[str, Any]


def delete(store: "Rows", thread: str) -> None:
    """Removes a thread: its heads and checkpoints first, so that after a crash no half of the thread is found."""
    order = {"h": 0, "c": 1}
    keys = sorted(store.keys(thread, ""), key=lambda key: order.get(key[0], 2))
    store.remove(thread, keys, [])


def copy(store: "Rows", source: str, target: str) -> None:
    """Copies a thread: its heads last, so that after a crash no half of the copy is found."""
    taken = sorted(store.scan(source, ""), key=lambda row: "bwch".index(row[0][0]))
    changes: list[Change] = []
    for key, _, value in taken:
        if key.startswith("h/"):
            version, newest = store.get(target, key)
            changes.append((key, rows.pack(max(newest or "", rows.unpack(value))), version))
        else:
            changes.append((key, value, None))
    store.remove(target, [], changes)


def keep(store: "Rows", thread: str, serde: Any, choose: Callable[[str, list[Found]], set[str]]) -> None:
    """Passes the checkpoints of each namespace, oldest first, to `choose`. Keeps those that `choose` returns, and whatever
    is needed to read their values; removes the others."""
    namespaces = sorted({key.split("/")[1] for key in store.keys(thread, "c/")})
    for ns in namespaces:
        # A writer was first: what is to be kept is another set now.
        while not _kept(store, thread, serde, ns, choose):
            pass


def _kept(store: "Rows", thread: str, serde: Any, quoted: str, choose: Callable[[str, list[Found]], set[str]]) -> bool:
    ns = rows.unquoted(quoted)
    seen, _ = store.get(thread, rows.head(ns))
    found = sorted((_found(serde, key, value) for key, _, value in store.scan(thread, rows.checkpoints(ns))), key=lambda c: c.id)
    blobs = {key: rows.unpack(value) for key, _, value in store.scan(thread, f"b/{quoted}/")}
    stays = _with_ancestors(ns, found, choose(ns, found), blobs)
    gone = [c.id for c in found if c.id not in stays]
    if not gone:
        return True
    needed = {(channel, str(v)) for c in found if c.id in stays for channel, v in c.versions.items()}
    needed_keys = {rows.blob(ns, channel, version) for channel, version in needed}
    newest = max(stays, default=None)
    writes = Writes(store, thread, ns)

    def whole(channel: str, version: str) -> bytes:
        blob = made(blobs.get, writes, (ns, channel), version, Kept(1))
        assert blob is not None, "its row was found"
        return blob.whole()

    first: list[Change] = [(rows.head(ns), None if newest is None else rows.pack(newest), seen)]
    for channel, version in sorted(needed):
        row = blobs.get(rows.blob(ns, channel, version))
        if row is None or is_whole(row):
            continue
        if row[2] is not None and rows.blob(ns, channel, row[2]) not in needed_keys:
            first.append((rows.blob(ns, channel, version), whole(channel, version), None))
        elif row[1] is not None and row[1][0] not in stays:
            alone = whole(channel, version) if row[2] is None else rows.pack(without_writes(row, writes))
            first.append((rows.blob(ns, channel, version), alone, None))
    removed = [rows.checkpoint(ns, id) for id in gone]
    removed += [key for id in gone for key in store.keys(thread, rows.writes(ns, id))]
    removed += [key for key in blobs if key not in needed_keys]
    try:
        store.remove(thread, removed, first)
    except Conflict:
        return False
    return True


def _found(serde: Any, key: str, value: bytes) -> Found:
    row = rows.unpack(value)
    checkpoint = serde.loads_typed(row["checkpoint"])
    return Found(rows.unquoted(key.rpartition("/")[2]), row["parent"], checkpoint["channel_versions"], set(rows.small(row)), serde.loads_typed(row["metadata"]))


def _with_ancestors(ns: str, found: list[Found], chosen: set[str], blobs: dict[str, Any]) -> set[str]:
    """The chosen checkpoints, with those ancestors whose writes are needed to rebuild their delta channels."""
    by_id = {c.id: c for c in found}
    stays = set(chosen)
    for id in chosen:
        for channel in by_id[id].metadata.get("counters_since_delta_snapshot") or {}:
            at: Found | None = by_id[id]
            while at is not None and channel not in at.small and rows.blob(ns, channel, at.versions.get(channel)) not in blobs:
                stays.add(at.id)
                at = by_id.get(at.parent or "")
            if at is not None:
                stays.add(at.id)
    return stays
