"""`OutlastSaver`: LangGraph's checkpoints in a store of Outlast, for its sync and its async interface."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import (  # type: ignore[import-not-found,unused-ignore]
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # type: ignore[import-not-found,unused-ignore]

from .. import runtime
from ..effects import Process, drive, drive_async
from ..errors import Conflict
from ..state.table import Change
from . import prune, rows
from .thread import SMALL, Blob, History, Kept, Lately, Rows, Stored, read_blob

if TYPE_CHECKING:
    from ..runtime import Runtime

# Checkpoints of a list that are read by themselves.
_FEW = 3
# Values kept in memory, as bases of differences.
_BASES = 256
# Checkpoints that were named by their id, and that a thread may go on from.
_NAMED = 4096
# Threads and namespaces whose last checkpoint's small values are kept in memory.
_LAST = 256


class OutlastSaver(BaseCheckpointSaver[str]):
    """Checkpoints in a store of Outlast: a file, PostgreSQL, or the default store. One class for `invoke` and `ainvoke`.

        graph = builder.compile(checkpointer=OutlastSaver())

    A checkpoint is on disk before `put` returns, and a task's writes before `put_writes` does; `aput_writes` commits before
    its first await, so that no later task begins before an earlier one's result is on disk. `put` waits for the writes that
    its checkpoint is made of. Values are stored as their difference from the channel's value before and from those writes.

    Of two workers on one thread, the one whose checkpoint does not follow the newest is refused with `outlast.Conflict`:
    the thread never forks silently. A fork from an older checkpoint that was named by its id is meant, and allowed, as is a
    copy of one (`update_state(…, as_node="__copy__")`). Inside `with rt.run(…)` each write carries the run's fence, too.

    When a checkpoint is read, only LangGraph's and LangChain's own types are built, and the classes in `types`; others come
    as plain data, and LangGraph logs their names. With LANGGRAPH_STRICT_MSGPACK=true in the environment, LangGraph adds
    the types of your graph's state itself. `serde` is a serializer of your own instead.
    """

    def __init__(
        self, store: "str | os.PathLike[str] | Runtime | None" = None, *, types: Sequence[type] = (), serde: Any = None
    ) -> None:
        allowed = [(cls.__module__, cls.__name__) for cls in types] or None
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=allowed))
        self._rows = Rows(runtime.of(store))
        self._lock = threading.Lock()
        # By thread and namespace: the newest checkpoint as this saver has seen it, and the version of that word.
        self._heads: dict[tuple[str, str], tuple[str | None, int]] = {}
        # Checkpoints that were read by their id, or as what stood before one: a program that goes on from there means it.
        self._named: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._bases = Kept(_BASES)
        # By thread and namespace: the checkpoint stored last, and the small values of its row. The next one has most of them.
        self._stored_last: OrderedDict[tuple[str, str], tuple[str, dict[str, Blob]]] = OrderedDict()
        self._lately = Lately()

    # --- reading

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """The checkpoint that the config names, else the thread's newest; None where there is none."""
        thread, ns = _place(config)
        named = get_checkpoint_id(config)
        newest = self._look(thread, ns)
        if named:
            self._name(thread, ns, named)
        id = named or newest
        return None if id is None else self._tuple(thread, ns, id, config if named else None)

    def list(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first: of a thread, of one of its namespaces, or of all threads."""
        named = get_checkpoint_id(config) if config else None
        until = get_checkpoint_id(before) if before else None
        found: list[tuple[str, str, str]] = []
        for thread in [_place(config)[0]] if config else self._rows.agents():
            ns = config["configurable"].get("checkpoint_ns") if config else None
            for key in self._rows.keys(thread, "c/" if ns is None else rows.checkpoints(ns)):
                id = rows.unquoted(key.rpartition("/")[2])
                if (not named or id == named) and (not until or id < until):
                    found.append((id, thread, key))
        given = 0
        histories: dict[str, History] = {}
        for id, thread, key in sorted(found, reverse=True):
            if limit is not None and limit <= 0:
                return
            row = self._rows.get(thread, key)[1]
            if row is None:
                continue
            metadata = self.serde.loads_typed(row["metadata"])
            if filter and any(metadata.get(name) != value for name, value in filter.items()):
                continue
            if limit is not None:
                limit -= 1
            # The first few are read by themselves: most who ask want the newest.
            given += 1
            if given > _FEW and thread not in histories:
                histories[thread] = History(self._rows, thread)
            place = thread, rows.unquoted(key.split("/")[1]), id
            if until:
                # LangGraph asks so where a subgraph of an older checkpoint goes on.
                self._name(*place)
            yield self._made(place, row, metadata, None, histories.get(thread))

    def _tuple(self, thread: str, ns: str, id: str, config: Any) -> CheckpointTuple | None:
        row = self._rows.get(thread, rows.checkpoint(ns, id))[1]
        return None if row is None else self._made((thread, ns, id), row, self.serde.loads_typed(row["metadata"]), config)

    def _made(
        self, place: tuple[str, str, str], row: Any, metadata: Any, config: Any, history: History | None = None
    ) -> CheckpointTuple:
        (thread, ns, id), parent = place, row["parent"]
        checkpoint = self.serde.loads_typed(row["checkpoint"])
        values = {}
        for channel, version in checkpoint["channel_versions"].items():
            stored = self._value(thread, ns, channel, version, rows.small(row), history)
            if stored is not None:
                values[channel] = self.serde.loads_typed(stored)
        return CheckpointTuple(
            config=config or _config(thread, ns, id),
            checkpoint={**checkpoint, "channel_values": values},
            metadata=metadata,
            parent_config=_config(thread, ns, parent) if parent else None,
            pending_writes=self._pending(thread, ns, id),
        )

    def _pending(self, thread: str, ns: str, id: str) -> list[tuple[str, str, Any]]:
        found = []
        for _, _, value in self._rows.scan(thread, rows.writes(ns, id)):
            row = rows.unpack(value)
            found += [(writes_sort_key(row["path"], row["task"], at), row["task"], *write) for at, *write in row["writes"]]
        found.sort(key=lambda write: write[0])
        return [(task, channel, self.serde.loads_typed((kind, data))) for _, task, channel, kind, data in found]

    def _value(
        self, thread: str, ns: str, channel: str, version: Any, small: dict[str, Any], history: History | None = None
    ) -> tuple[str, bytes] | None:
        if channel in small:
            blob: Blob | None = Blob(version, *small[channel])
        elif history is not None:
            blob = history.value(ns, channel, version)
        else:
            blob = self._bases.get((thread, ns, channel))
            if blob is None or blob.version != version:
                blob = read_blob(self._rows, thread, ns, channel, version)
        if blob is None:
            return None
        if history is None:
            self._keep(thread, ns, channel, blob)
        return blob.kind, blob.data

    def _look(self, thread: str, ns: str) -> str | None:
        """Reads the id of the newest checkpoint. From then on this saver writes only if no other has written since."""
        version, newest = self._rows.get(thread, rows.head(ns))
        with self._lock:
            if self._heads.get((thread, ns), (None, -1))[1] != version:
                # Others wrote, and may have pruned what our next difference would be one from.
                for place in [place for place in self._bases if place[:2] == (thread, ns)]:
                    del self._bases[place]
                self._stored_last.pop((thread, ns), None)
                self._lately.forget(thread, ns)
            self._heads[thread, ns] = (newest, version)
        return newest

    def _name(self, thread: str, ns: str, id: str) -> None:
        with self._lock:
            self._named[thread, ns, id] = None
            while len(self._named) > _NAMED:
                self._named.popitem(last=False)

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> dict[str, Any]:
        """The writes of a checkpoint's ancestors to delta channels, for each channel back to the nearest stored value."""
        thread, ns = _place(config)
        writes: dict[str, list[Any]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        id = (get_checkpoint_id(config) or self._rows.get(thread, rows.head(ns))[1]) if channels else None
        row = self._rows.get(thread, rows.checkpoint(ns, id))[1] if id else None
        while row is not None and row["parent"] and len(seeds) < len(channels):
            id = row["parent"]
            row = self._rows.get(thread, rows.checkpoint(ns, id))[1]
            if row is None:
                break
            versions = self.serde.loads_typed(row["checkpoint"])["channel_versions"]
            pending = self._pending(thread, ns, id)
            for channel in [channel for channel in channels if channel not in seeds]:
                writes[channel] += [write for write in reversed(pending) if write[1] == channel]
                blob = read_blob(self._rows, thread, ns, channel, versions[channel]) if channel in versions else None
                if channel in rows.small(row):
                    seeds[channel] = self.serde.loads_typed(tuple(rows.small(row)[channel]))
                elif blob is not None:
                    seeds[channel] = self.serde.loads_typed((blob.kind, blob.data))
        seeded = {channel: {"seed": seed} for channel, seed in seeds.items()}
        return {channel: {"writes": found[::-1], **seeded.get(channel, {})} for channel, found in writes.items()}

    # --- writing

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Stores a checkpoint: on disk before `put` returns. Errors: `Conflict`, `LeaseLost`."""
        return drive(self._put(config, checkpoint, metadata, new_versions))

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return await drive_async(self._put(config, checkpoint, metadata, new_versions))

    def _put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Process[Any]:
        following = self._following(config, checkpoint, metadata, new_versions)
        try:
            yield self._rows.submit(following.thread, following.changes)
        except Conflict:
            raise self._forked(following) from None
        return self._settled(following)

    def _following(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> "_Following":
        thread, ns = _place(config)
        parent, id = config["configurable"].get("checkpoint_id"), checkpoint["id"]
        if (thread, ns) not in self._heads:
            self._look(thread, ns)
        with self._lock:
            newest, seen = self._heads[thread, ns]
            is_meant = metadata.get("source") == "fork" or (thread, ns, parent) in self._named
            # Where no checkpoint was ever stored nobody went on: the parent is in another store.
            follows = parent is None or parent == newest or id == newest or is_meant or not seen
        following = _Following(thread, ns, id, max(newest or "", id), seen)
        if not follows:
            raise self._forked(following)
        small = following.small = self._small(thread, ns, parent, checkpoint, new_versions)
        following.blobs.update(small)
        fresh: list[tuple[str, Any, str, bytes]] = []
        for channel, version in new_versions.items():
            if channel in checkpoint["channel_values"]:
                kind, data = self.serde.dumps_typed(checkpoint["channel_values"][channel])
                if len(data) <= SMALL and channel in checkpoint["channel_versions"]:
                    small[channel] = following.blobs[channel] = Blob(version, kind, data)
                else:
                    fresh.append((channel, version, kind, data))
        bare = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        row = {
            "parent": parent,
            "checkpoint": self.serde.dumps_typed(bare),
            "metadata": self.serde.dumps_typed(get_checkpoint_metadata(config, metadata)),
            "small": {channel: [blob.kind, blob.data] for channel, blob in small.items()},
        }
        following.changes = [
            (rows.head(ns), rows.pack(following.newest), seen),
            (rows.checkpoint(ns, id), rows.pack(row), None),
        ]
        # Writes that this checkpoint is made of come to the disk while it is serialized, and before it.
        written = self._lately.taken((thread, ns, parent)) if parent else {}
        for channel, version, kind, data in fresh:
            blob, packed = Blob.after(self._bases.get((thread, ns, channel)), version, kind, data, written.get(channel))
            following.blobs[channel] = blob
            following.changes.append((rows.blob(ns, channel, version), packed, None))
        return following

    def _small(self, thread: str, ns: str, parent: str | None, checkpoint: Any, new_versions: Any) -> dict[str, Blob]:
        """Small values that stay as they were: each checkpoint's row has them."""
        small, above = {}, None
        for channel, version in checkpoint["channel_versions"].items():
            if channel in new_versions:
                continue
            blob = self._bases.get((thread, ns, channel))
            if blob is None or blob.version != version:
                if above is None:
                    above = self._small_of(thread, ns, parent)
                blob = above.get(channel)
            if blob is None or blob.version != version:
                # A value that is not the parent's, as when two forks are joined: written anew where it is small.
                if channel not in checkpoint["channel_values"]:
                    continue
                blob = Blob(version, *self.serde.dumps_typed(checkpoint["channel_values"][channel]))
            if len(blob.data) <= SMALL:
                small[channel] = blob
        return small

    def _small_of(self, thread: str, ns: str, id: str | None) -> dict[str, Blob]:
        last, small = self._stored_last.get((thread, ns), (None, {}))
        if id and id == last:
            return small
        row = self._rows.get(thread, rows.checkpoint(ns, id))[1] if id else None
        if row is None:
            return {}
        versions = self.serde.loads_typed(row["checkpoint"])["channel_versions"]
        return {channel: Blob(versions[channel], *value) for channel, value in rows.small(row).items()}

    def _settled(self, following: "_Following") -> Any:
        thread, ns = following.thread, following.ns
        with self._lock:
            self._heads[thread, ns] = (following.newest, following.seen + 1)
            self._stored_last[thread, ns] = (following.id, following.small)
            self._stored_last.move_to_end((thread, ns))
            while len(self._stored_last) > _LAST:
                self._stored_last.popitem(last=False)
        for channel, blob in following.blobs.items():
            self._keep(thread, ns, channel, blob)
        return _config(thread, ns, following.id)

    def _forked(self, following: "_Following") -> Conflict:
        self._forget(following.thread)
        return Conflict(
            f"checkpoint {following.id} of thread {following.thread!r} does not follow the newest one: another worker went on with the thread",
            hint="drive a thread by one worker at a time, such as inside `with rt.run(thread_id)`; or invoke the graph again, to go on from the newest",
        )

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Stores the writes of a task: on disk before `put_writes` returns."""
        thread, ns = _place(config)
        id = config["configurable"]["checkpoint_id"]
        self._lately.begin((thread, ns, id))
        stored: list[Stored] = []
        try:
            stored = self._stored(thread, rows.task(ns, id, task_id), writes, task_id, task_path)
        finally:
            self._lately.end((thread, ns, id), stored)

    def _stored(self, thread: str, key: str, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> list[Stored]:
        fresh = {}
        for at, (channel, value) in enumerate(writes):
            fresh[WRITES_IDX_MAP.get(channel, at)] = [channel, *self.serde.dumps_typed(value)]
        seen, before = 0, None
        while True:
            # Results of a task stay; its error, interrupt and answer are replaced.
            known = {at: write for at, *write in before["writes"]} if before else {}
            merged = {**fresh, **known, **{at: write for at, write in fresh.items() if at < 0}}
            row = {"path": task_path, "task": task_id, "writes": [[at, *write] for at, write in sorted(merged.items())]}
            try:
                self._rows.commit(thread, [(key, rows.pack(row), seen)])
                break
            except Conflict:
                seen, before = self._rows.get(thread, key)
        # Only results stay as they are for ever.
        return [
            (writes_sort_key(row["path"], task_id, at), task_id, at, channel, data)
            for at, (channel, _, data) in merged.items()
            if at >= 0
        ]

    async def aput_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        # Not in a thread: the loop starts no later task before this one's result is on disk.
        self.put_writes(config, writes, task_id, task_path)

    # --- whole threads

    def delete_thread(self, thread_id: str) -> None:
        """Erases a thread. Its keys stay as tombstones without values."""
        prune.delete(self._rows, str(thread_id))
        self._forget(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Erases the checkpoints that LangGraph's runs of these ids made, in all threads."""
        wanted = set(map(str, run_ids))
        for thread in self._rows.agents() if wanted else []:
            prune.keep(self._rows, thread, self.serde, lambda ns, found: {
                c.id for c in found if str(c.metadata.get("run_id")) not in wanted
            })  # fmt: skip
            self._forget(thread)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread with its whole history. Errors: `Conflict` when the target is written meanwhile."""
        prune.copy(self._rows, str(source_thread_id), str(target_thread_id))
        self._forget(str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int = 1) -> None:
        """Erases all but the last `keep_last` checkpoints of each namespace of these threads, or with `strategy="delete"` all.

        Older checkpoints stay where delta channels of a kept one are built from their writes.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"prune wants strategy 'keep_latest' or 'delete', had {strategy!r}")
        if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
            raise ValueError(f"prune wants keep_last of 1 or more, had {keep_last!r}")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                prune.delete(self._rows, thread)
            else:
                prune.keep(self._rows, thread, self.serde, lambda ns, found: {c.id for c in found[-keep_last:]})
            self._forget(thread)

    def import_from(self, saver: Any) -> int:
        """Copies all checkpoints and writes of another saver, such as a `SqliteSaver`, that are not here yet.

        Oldest first, so that an interrupted import goes on where it was. Returns the number of checkpoints copied.
        """
        copied = 0
        for found in sorted(saver.list(None), key=lambda found: found.checkpoint["id"]):
            thread, ns = _place(found.config)
            id, parent = found.checkpoint["id"], get_checkpoint_id(found.parent_config) if found.parent_config else None
            place = _config(thread, ns, id)
            for at, (task, channel, value) in enumerate(found.pending_writes or []):
                # A path of its own keeps each write at its place.
                own = (task, "") if channel in WRITES_IDX_MAP else (f"{task}:{at}", f"{at:08}")
                self.put_writes(place, [(channel, value)], *own)
            if self._rows.get(thread, rows.checkpoint(ns, id))[1] is not None:
                continue
            if parent is not None:
                self._name(thread, ns, parent)
            self.put(_config(thread, ns, parent), found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
            copied += 1
        return copied

    # --- the same for tasks

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (tuple := await asyncio.to_thread(next, found, None)) is not None:
            yield tuple

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int = 1) -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy, keep_last=keep_last))

    async def aget_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))

    # --- the rest

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The next version of a channel: a count, and a random part that differs between two forks."""
        number = str(current or 0).partition(".")[0]
        return f"{int(number) + 1:0{max(8, len(number))}}.{random.getrandbits(32):08x}"

    def _keep(self, thread: str, ns: str, channel: str, blob: Blob) -> None:
        with self._lock:
            self._bases[thread, ns, channel] = blob

    def _forget(self, thread: str) -> None:
        """Forgets what was read of a thread, so that the thread is read again."""
        with self._lock:
            # In place: a compiled graph has a shallow copy of the saver.
            known: tuple[dict[Any, Any], ...] = (self._heads, self._named, self._bases, self._stored_last)
            for places in known:
                for place in [place for place in places if place[0] == thread]:
                    del places[place]
            self._lately.forget(thread)


@dataclasses.dataclass
class _Following:
    """A checkpoint that is being written to the disk."""

    thread: str
    ns: str
    id: str
    #: The thread's newest checkpoint once this one is stored.
    newest: str
    #: The version of the word on the newest that this one follows.
    seen: int
    changes: list[Change] = dataclasses.field(default_factory=list)
    blobs: dict[str, Blob] = dataclasses.field(default_factory=dict)
    #: Small values of the checkpoint's row.
    small: dict[str, Blob] = dataclasses.field(default_factory=dict)


def _place(config: Any) -> tuple[str, str]:
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _config(thread: str, ns: str, id: str | None) -> Any:
    made = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": {**made, "checkpoint_id": id} if id else made}
