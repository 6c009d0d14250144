"""Values of `OutlastSaver`: each is stored once, is made of what tasks wrote, and is read back whatever else is erased."""

import asyncio
import os
import random
import threading

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph_bed import Talk, checkpoint, config, id_of, put, talk

import outlast
from outlast.langgraph import OutlastSaver, rows
from outlast.langgraph.delta import applied, difference, without_further


def test_values_are_stored_once_and_not_per_checkpoint(home):
    """400 steps of 1 kB: 82 MB with SqliteSaver."""
    rng = random.Random(1)
    said = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=1000)) for _ in range(400)]
    builder = StateGraph(Talk)
    builder.add_node("say", lambda state: {"said": [said[len(state["said"])]]})
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: "say" if len(state["said"]) < 400 else END)
    rt = outlast.connect(home / "bytes.db")
    graph = builder.compile(checkpointer=OutlastSaver(rt))
    # Of tasks, as these store what a task wrote before anything else begins.
    assert asyncio.run(graph.ainvoke({"said": []}, config(), durability="sync"))["said"] == said
    rt.close()
    stored = os.path.getsize(home / "bytes.db")
    # Each text is stored once, as what a task wrote; beside it stands the checkpoint, and 0.2 MB of an empty store.
    assert stored < 3.2 * (400 * 1000), stored
    again = builder.compile(checkpointer=OutlastSaver(home / "bytes.db"))
    sizes = [len(s.values.get("said", [])) for s in again.get_state_history(config())]
    assert sizes == [*range(400, -1, -1), 0] and again.get_state(config()).values["said"] == said


def test_a_step_reads_nothing_of_the_store(rt, monkeypatch):
    """Each read is a round trip to PostgreSQL, and a step waits for it."""
    saver, asked = OutlastSaver(rt), []
    monkeypatch.setattr(saver._rows, "row", lambda *key, row=saver._rows.row: asked.append(key) or row(*key))
    assert len(talk(20, saver).invoke({"said": []}, config(), durability="sync")["said"]) == 20
    assert asked == [("t", "h/")]


@pytest.mark.parametrize("replaced", [False, True])
def test_small_values_of_a_checkpoint_that_another_saver_stored_are_kept(rt, replaced):
    """A saver knows the small values of the checkpoint that it stored last. They are not those of another's."""
    mine, other = OutlastSaver(rt), OutlastSaver(rt)
    first = put(mine, said=["tea"], count=1)
    versions = mine.get_tuple(first).checkpoint["channel_versions"]

    def stored(saver, parent, id=None, **values):
        made = checkpoint(**values)
        made.update({"id": id} if id else {})
        # Channels that stay as they were are named by their version alone.
        made["channel_versions"] = {**versions, **made["channel_versions"]}
        saver._look("t", "")
        news = {name: made["channel_versions"][name] for name in values}
        return saver.put(parent, made, {"source": "loop", "step": 2, "parents": {}}, news), made["channel_versions"]

    second, versions = stored(other, config() if replaced else first, id_of(first) if replaced else None, said=["tea", "cake"])
    third, _ = stored(mine, second, count=3)
    assert OutlastSaver(rt).get_tuple(third).checkpoint["channel_values"] == {"said": ["tea", "cake"], "count": 3}


def test_a_checkpoint_is_stored_after_the_writes_that_it_is_made_of(rt, monkeypatch):
    """LangGraph stores both in threads: a value that named a write not yet stored could be lost with it."""
    saver = OutlastSaver(rt)
    first = put(saver, said=["a" * 200])
    order, waits = [], threading.Event()
    commit, submit, taken = saver._rows.commit, saver._rows.submit, saver._lately.taken

    def slow(thread, changes):
        assert changes[-1][0].startswith("w/") and waits.wait(60)
        commit(thread, changes)
        order.append("w")

    def begins(thread, changes):
        order.extend(["b"] if changes[-1][0].startswith("b/") else [])
        return submit(thread, changes)

    def told(place):
        waits.set()
        return taken(place)

    monkeypatch.setattr(saver._rows, "commit", slow)
    monkeypatch.setattr(saver._rows, "submit", begins)
    monkeypatch.setattr(saver._lately, "taken", told)
    begun, begin = threading.Event(), saver._lately.begin
    monkeypatch.setattr(saver._lately, "begin", lambda place: (begin(place), begun.set()))
    writes = threading.Thread(target=saver.put_writes, args=(first, [("said", ["b" * 200])], "task"))
    writes.start()
    assert begun.wait(60)
    second = put(saver, id_of(first), said=["a" * 200, "b" * 200])
    writes.join()
    assert order == ["w", "b"]
    row = next(row for key, row in blobs(saver) if key.endswith(versions_of(saver, second)["said"]))
    assert row[1] == [id_of(first), [["task", 0]]] and len(rows.pack(row)) < 200
    assert OutlastSaver(rt).get_tuple(second).checkpoint["channel_values"]["said"] == ["a" * 200, "b" * 200]


def test_a_value_is_made_of_no_writes_that_could_not_be_stored(rt, monkeypatch):
    saver = OutlastSaver(rt)
    first = put(saver, said=["a" * 200])
    with monkeypatch.context() as broken:
        broken.setattr(saver._rows, "commit", lambda thread, changes: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            saver.put_writes(first, [("said", ["b" * 200])], "task")
    second = put(saver, id_of(first), said=["a" * 200, "b" * 200])
    assert OutlastSaver(rt).get_tuple(second).checkpoint["channel_values"]["said"] == ["a" * 200, "b" * 200]


def test_a_value_is_made_of_the_write_that_was_stored_first(rt):
    """Two workers do one task: the first result counts, and the second one's bytes are nowhere."""
    saver, other = OutlastSaver(rt), OutlastSaver(rt)
    first = put(saver, said=["a" * 200])
    other.put_writes(first, [("said", ["first" * 50])], "task")
    saver.put_writes(first, [("said", ["later" * 50])], "task")
    for value in (["later" * 50], ["a" * 200, "later" * 50], ["first" * 50]):
        made = put(saver, id_of(first), said=value)
        assert OutlastSaver(rt).get_tuple(made).checkpoint["channel_values"]["said"] == value
        first = made
        saver.put_writes(first, [("said", ["later" * 50])], "task")


@pytest.mark.parametrize("cold", [False, True])
def test_a_small_value_stays_with_all_checkpoints_that_follow(rt, cold):
    saver = OutlastSaver(rt)
    place = put(saver, count=7, said=["a" * 200])
    versions = versions_of(saver, place)
    for turn in range(3):
        if cold:
            saver = OutlastSaver(rt)
            saver.get_tuple(place if turn == 1 else config())
        made = checkpoint(said=["a" * 200, turn])
        made["channel_versions"]["count"] = versions["count"]
        if turn == 2:
            made["channel_versions"].pop("count")
        place = saver.put(place, made, {"source": "loop", "step": turn, "parents": {}}, {"said": made["channel_versions"]["said"]})
        for reader in (saver, OutlastSaver(rt)):
            values = reader.get_tuple(place).checkpoint["channel_values"]
            assert values == {"said": ["a" * 200, turn], **({"count": 7} if turn < 2 else {})}
            assert [t.checkpoint["channel_values"].get("count") for t in reader.list(config())][-2:] == [7, 7][: turn + 2]
    assert not [key for key, _ in blobs(saver) if "/count/" in key]


def test_values_stay_when_the_writes_that_they_are_made_of_are_erased(rt):
    saver = OutlastSaver(rt)
    kept = put(saver, said=["a" * 200])
    erased = made_by(saver, kept, run="gone", other=["b" * 200])
    # One is made of an earlier value and of what was written at the erased checkpoint, one of what was written alone.
    saver.put_writes(erased, [("said", ["c" * 200]), ("last", "d" * 200)], "task")
    newest = made_by(saver, erased, run="stays", said=["a" * 200, "c" * 200], last="d" * 200)
    assert sorted(row[1:3] for key, row in blobs(saver) if isinstance(row[1], list)) == [
        [[id_of(erased), [["task", 0]]], versions_of(saver, kept)["said"]],
        [[id_of(erased), [["task", 1]]], None],
    ]
    saver.delete_for_runs(["gone"])
    for reader in (saver, OutlastSaver(rt)):
        assert reader.get_tuple(newest).checkpoint["channel_values"] == {"said": ["a" * 200, "c" * 200], "last": "d" * 200}
        assert [id_of(t.config) for t in reader.list(config())] == [id_of(newest), id_of(kept)]


def made_by(saver, parent, run, **values):
    made = checkpoint(**values)
    metadata = {"source": "loop", "step": 1, "parents": {}, "run_id": run}
    return saver.put(parent, made, metadata, made["channel_versions"])


def test_a_row_of_an_earlier_build_is_read_and_gone_on_from(rt):
    """Threads of earlier builds have no small values: each value had a row of its own, and a difference was made of its base
    alone."""
    saver = OutlastSaver(rt)
    first = put(saver, said=["a" * 200], count=7)
    second = put(saver, id_of(first), said=["a" * 200, "b" * 200], count=8)
    versions, changes = {}, []
    for place, value in ((first, 7), (second, 8)):
        key = rows.checkpoint("", id_of(place))
        row = saver._rows.get("t", key)[1]
        versions[value] = versions_of(saver, place)["count"]
        del row["small"]
        changes.append((key, rows.pack({**row, "ns": "", "id": id_of(place)}), None))
        changes.append((rows.blob("", "count", versions[value]), rows.pack(["msgpack", bytes([value])]), None))
    saver._rows.commit("t", changes)
    fresh = OutlastSaver(rt)
    assert fresh.get_tuple(config()).checkpoint["channel_values"] == {"said": ["a" * 200, "b" * 200], "count": 8}
    made = checkpoint(said=["c" * 200])
    made["channel_versions"]["count"] = versions[8]
    third = fresh.put(second, made, {"source": "loop", "step": 3, "parents": {}}, {"said": made["channel_versions"]["said"]})
    fresh.prune(["t"], keep_last=2)
    for reader in (fresh, OutlastSaver(rt)):
        assert reader.get_tuple(third).checkpoint["channel_values"] == {"said": ["c" * 200], "count": 8}
        assert reader.get_tuple(second).checkpoint["channel_values"]["said"] == ["a" * 200, "b" * 200]


def blobs(saver):
    return [(key, rows.unpack(value)) for key, _, value in saver._rows.scan("t", "b/")]


def versions_of(saver, place):
    return saver.get_tuple(place).checkpoint["channel_versions"]


@pytest.mark.parametrize("seed", range(20))
def test_a_difference_gives_back_every_byte(seed):
    rng = random.Random(seed)
    base = rng.randbytes(rng.randrange(5000))
    for _ in range(20):
        new = bytearray(base)
        for _ in range(rng.randrange(4)):
            at, length = rng.randrange(len(new) + 1), rng.randrange(300)
            new[at : at + rng.choice([0, length])] = rng.randbytes(rng.choice([0, 1, length]))
        further = rng.randbytes(rng.choice([0, 10, 500]))
        at = rng.randrange(len(new) + 1)
        new[at:at] = further
        for more in (b"", further):
            pieces = difference(base, bytes(new), more)
            assert pieces is None or applied(base, pieces, more) == bytes(new), f"seed {seed}"
            assert pieces is None or applied(base, without_further(pieces, more)) == bytes(new), f"seed {seed}"
        base = bytes(new)


def test_a_growing_value_costs_what_it_grew_by():
    base = b"\xdc\x01\x00" + b"".join(b"%d: tea and cake. " % n for n in range(5000))
    new = b"\xdc\x01\x01" + base[3:] + b"and the last word"
    pieces = difference(base, new)
    assert sum(len(p) for p in pieces if isinstance(p, bytes)) < 30
