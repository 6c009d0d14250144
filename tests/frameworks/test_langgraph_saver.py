"""`OutlastSaver`: the published conformance suite, restarts, second writers and prunes."""

import asyncio
import dataclasses
import os
import random
import sqlite3
from typing import Annotated, TypedDict

import psycopg
import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_bed import Talk, checkpoint, config, id_of, put, talk
from psycopg import conninfo

import outlast
from outlast.langgraph import OutlastSaver

# Read when the module is loaded: each test's environment is cleared of ours.
POSTGRES = os.environ.get("OUTLAST_TEST_POSTGRES")
NO_POSTGRES = "OUTLAST_TEST_POSTGRES is not set: run `make test-clients`, or scripts/private-postgres.sh"


def test_the_published_conformance_suite_is_passed_in_full(home):
    count = iter(range(100))

    @checkpointer_test(name="OutlastSaver")
    async def saver():
        yield OutlastSaver(home / f"{next(count)}.db")

    report = asyncio.run(validate(saver))
    assert report.conformance_level() == "FULL" and len(report.results) == 8
    assert all(r.passed for r in report.results.values())


def test_postgres_passes_the_suite_too(home):
    assert POSTGRES, NO_POSTGRES

    @checkpointer_test(name="OutlastSaver on PostgreSQL")
    async def saver():
        yield OutlastSaver(POSTGRES)

    report = asyncio.run(validate(saver))
    assert {name: r for name, r in report.results.items() if not r.passed} == {} and len(report.results) == 8


def test_another_process_goes_on_where_the_thread_was(home, rt):
    talk(5, OutlastSaver(rt), interrupt_after=["say"]).invoke({"said": []}, config())
    rt.close()
    again = talk(5, OutlastSaver(home / "runs.db"))
    assert len(again.get_state(config()).values["said"]) == 1
    assert [s[:2] for s in again.invoke(None, config())["said"]] == ["0:", "1:", "2:", "3:", "4:"]


def test_sync_and_async_are_one_class(rt):
    saver = OutlastSaver(rt)
    asyncio.run(talk(3, saver).ainvoke({"said": []}, config()))
    assert len(talk(3, saver).get_state(config()).values["said"]) == 3

    async def listed():
        return [c.checkpoint["id"] async for c in saver.alist(config())]

    assert asyncio.run(listed()) == [c.checkpoint["id"] for c in saver.list(config())] and len(asyncio.run(listed())) == 5


def test_a_second_writer_is_refused_and_the_thread_does_not_fork(rt):
    """Two workers read the same newest checkpoint, and both go on from it: with other savers both are stored."""
    one, two = OutlastSaver(rt), OutlastSaver(rt)
    first = put(one, said=["a"])
    assert id_of(one.get_tuple(config()).config) == id_of(two.get_tuple(config()).config)
    then = put(one, id_of(first), said=["a", "b"])
    with pytest.raises(outlast.Conflict, match="does not follow the newest"):
        put(two, id_of(first), said=["a", "c"])
    assert id_of(two.get_tuple(config()).config) == id_of(then)
    put(two, id_of(then), said=["a", "b", "d"])
    with pytest.raises(outlast.Conflict):
        put(one, id_of(then), said=["a", "b", "e"])
    assert len(list(one.list(config()))) == 3


def test_a_version_that_is_stored_again_is_read_back(rt):
    """Bug: a value under its own version again was stored as a difference from itself, and read for ever."""
    saver = OutlastSaver(rt)
    made = checkpoint(said=["tea " * 50])
    for word in ("b", "c"):
        made["channel_values"]["said"] = ["tea " * 50, word]
        saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, made, {}, made["channel_versions"])
    assert OutlastSaver(rt).get_tuple(config()).checkpoint["channel_values"]["said"][1] == "c"


def test_two_threads_of_one_process_do_not_fork_either(rt):
    saver = OutlastSaver(rt)
    first = put(saver, said=["a"])
    saver.get_tuple(config()), saver.get_tuple(config())
    put(saver, id_of(first), said=["a", "b"])
    with pytest.raises(outlast.Conflict):
        put(saver, id_of(first), said=["a", "c"])


def test_a_fork_from_a_named_checkpoint_is_meant(rt):
    graph = talk(4, OutlastSaver(rt))
    graph.invoke({"said": []}, config())
    old = [s for s in graph.get_state_history(config()) if len(s.values["said"]) == 2][0]
    graph.invoke(None, old.config)
    assert len(graph.get_state(config()).values["said"]) == 4
    graph.update_state(old.config, {"said": ["another"]})
    assert graph.get_state(config()).values["said"][-1] == "another"


def test_a_copy_of_a_checkpoint_is_meant(rt):
    """Bug: `as_node="__copy__"`, which is Studio's fork button, raised `Conflict`. Cause: a copy stands beside its
    checkpoint, under a parent that nobody had named."""
    graph = talk(4, OutlastSaver(rt))
    graph.invoke({"said": []}, config())
    old = [s for s in graph.get_state_history(config()) if len(s.values["said"]) == 2][0]
    for origin in (old.config, config()):
        copy = graph.update_state(origin, None, as_node="__copy__")
        assert id_of(copy) == id_of(graph.get_state(config()).config)
        assert len(graph.invoke(None, copy)["said"]) == 4
    assert [s.metadata["source"] for s in graph.get_state_history(config())].count("fork") == 2


def test_a_threads_first_checkpoint_may_follow_one_that_is_elsewhere(rt):
    saver = OutlastSaver(rt)
    first = put(saver, parent="in-another-store", said=["tea"])
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"said": ["tea"]} and id_of(found.parent_config) == "in-another-store"
    saver.delete_thread("t")
    for other in (saver, OutlastSaver(rt)):
        with pytest.raises(outlast.Conflict):
            put(other, id_of(first), said=["cake"])


def test_an_older_checkpoint_is_replayed_with_the_subgraph_that_it_had(rt):
    """Bug: a replay raised `Conflict` in a subgraph that keeps its state. Cause: LangGraph finds the subgraph's checkpoint by
    what stood before the replayed one, and does not name it."""

    def counted(saver):
        inner = StateGraph(Talk).add_node("count", lambda s: {"said": [f"inner {len(s['said'])}"]})
        inner = inner.add_edge(START, "count").compile(checkpointer=True)
        graph = StateGraph(Talk).add_node("before", lambda s: {"said": ["before"]}).add_node("inner", inner)
        graph = graph.add_edge(START, "before").add_edge("before", "inner").compile(checkpointer=saver)
        for said in ("one", "two", "three"):
            graph.invoke({"said": [said]}, config())
        history = list(graph.get_state_history(config()))
        second = [s for s in history if s.next == ("inner",)][-2]
        return [graph.invoke(None, second.config)["said"], graph.invoke({"said": ["four"]}, config())["said"]]

    assert counted(OutlastSaver(rt)) == counted(InMemorySaver())


def test_a_process_that_lost_the_run_writes_nothing(rt):
    saver = OutlastSaver(rt)
    with rt.run("r"):
        first = put(saver, said=["a"])
        place = {"configurable": {**first["configurable"]}}
        rt._engine.claim("r", True)  # another attempt takes the run over
        with pytest.raises(outlast.LeaseLost):
            put(saver, id_of(first), said=["b"])
        with pytest.raises(outlast.LeaseLost):
            saver.put_writes(place, [("said", "b")], "task")
    assert len(list(saver.list(config()))) == 1


def test_writes_of_a_task_come_in_the_order_in_which_they_are_applied(rt):
    saver = OutlastSaver(rt)
    place = put(saver, said=[])
    saver.put_writes(place, [("x", 1), ("y", 2)], "z-task", "~path, 1")
    saver.put_writes(place, [("x", 3)], "a-task", "~path, 2")
    saver.put_writes(place, [("x", 9)], "a-task", "~path, 2")
    saver.put_writes(place, [("__error__", "e1")], "b", "")
    saver.put_writes(place, [("__error__", "e2")], "b", "")
    wanted = [("b", "__error__", "e2"), ("z-task", "x", 1), ("z-task", "y", 2), ("a-task", "x", 3)]
    assert saver.get_tuple(place).pending_writes == OutlastSaver(rt).get_tuple(place).pending_writes == wanted


@pytest.mark.parametrize("keep", [1, 3])
def test_what_is_kept_by_a_prune_is_read_whole(home, rt, keep):
    saver = OutlastSaver(rt)
    graph = talk(30, saver)
    graph.invoke({"said": []}, config())
    history = [s.values for s in graph.get_state_history(config())]
    saver.prune(["t"], keep_last=keep)
    fresh = OutlastSaver(rt)
    assert [s.values for s in talk(30, fresh).get_state_history(config())] == history[:keep]
    # What goes on from there is stored as a difference from what was kept.
    talk(34, fresh).invoke({"said": ["more"]}, config())
    assert len(talk(34, OutlastSaver(rt)).get_state(config()).values["said"]) == 34


def test_a_writer_that_did_not_hear_of_a_prune_is_refused(rt):
    writer, other = OutlastSaver(rt), OutlastSaver(rt)
    first = put(writer, said=["tea " * 50])
    second = put(writer, id_of(first), said=["tea " * 50, "b"])
    other.prune(["t"])
    with pytest.raises(outlast.Conflict):
        put(writer, id_of(second), said=["tea " * 50, "b", "c"])
    writer.get_tuple(config())
    put(writer, id_of(second), said=["tea " * 50, "b", "c"])
    assert OutlastSaver(rt).get_tuple(config()).checkpoint["channel_values"]["said"][2] == "c"


def test_delta_channels_survive_a_prune(rt):
    """A prune that keeps the newest checkpoint alone empties such channels, and nothing tells it."""
    from langgraph.channels.delta import DeltaChannel

    class State(TypedDict):
        said: Annotated[list, DeltaChannel(lambda state, writes: [*state, *(w for write in writes for w in write)])]

    def graph(saver):
        builder = StateGraph(State)
        builder.add_node("say", lambda state: {"said": [len(state["said"])]})
        builder.add_edge(START, "say")
        builder.add_conditional_edges("say", lambda state: "say" if len(state["said"]) < 7 else END)
        return builder.compile(checkpointer=saver)

    saver = OutlastSaver(rt)
    graph(saver).invoke({"said": []}, config())
    saver.prune(["t"])
    assert graph(OutlastSaver(rt)).get_state(config()).values["said"] == list(range(7))


def test_a_prune_keeps_the_answers_of_several_interrupts(rt):
    done = []

    def ask(name):
        def node(state):
            answer = interrupt(name)
            done.append((name, answer))
            return {"said": [answer]}

        return node

    builder = StateGraph(Talk)
    for name in ("a", "b"):
        builder.add_node(name, ask(name))
        builder.add_edge(START, name)
    saver = OutlastSaver(rt)
    graph = builder.compile(checkpointer=saver)
    asked = {i.value: i.id for i in graph.invoke({"said": []}, config())["__interrupt__"]}
    graph.invoke(Command(resume={asked["a"]: "yes"}), config())
    saver.prune(["t"])
    graph = builder.compile(checkpointer=OutlastSaver(rt))
    assert graph.invoke(Command(resume={asked["b"]: "no"}), config())["said"] == ["yes", "no"]
    assert sorted(done) == [("a", "yes"), ("b", "no")]


def test_a_deleted_thread_leaves_no_value_in_the_store(rt):
    saver = OutlastSaver(rt)
    secret = "the secret word" * 9
    put(saver, put(saver, said=[secret])["configurable"]["checkpoint_id"], said=[secret, "b"])
    saver.delete_thread("t")
    reads = saver._rows._reads
    keys = _keys_ever(rt)
    assert len(keys) == 5
    for key in keys:
        assert all(version.value is None for version in reads.history("langgraph", "t", key))
    assert saver.get_tuple(config()) is None and list(saver.list(None)) == []


def _keys_ever(rt):
    path = rt.place
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return [key.decode() for (key,) in db.execute("SELECT key FROM keys")]


def test_only_known_types_are_built_when_they_are_read(rt):
    saver = OutlastSaver(rt)
    place = put(saver, x=Foreign(1))
    assert not isinstance(saver.get_tuple(place).checkpoint["channel_values"]["x"], Foreign)


def test_types_that_are_named_are_built_when_they_are_read(rt):
    place = put(OutlastSaver(rt), x=Order(5))
    assert OutlastSaver(rt, types=[Order]).get_tuple(place).checkpoint["channel_values"]["x"] == Order(5)
    assert OutlastSaver(rt).get_tuple(place).checkpoint["channel_values"]["x"] != Order(5)


@dataclasses.dataclass
class Order:
    cents: int


class Foreign:
    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return (Foreign, (self.n,))

    def model_dump(self):
        return {"n": self.n}


def test_a_database_of_sqlite_saver_is_imported_and_gone_on_with(home, rt):
    is_imported_and_gone_on_with(SqliteSaver(sqlite3.connect(home / "old.db", check_same_thread=False)), OutlastSaver(rt))


def is_imported_and_gone_on_with(old, saver):
    talk(6, old, interrupt_after=["say"]).invoke({"said": []}, config())
    before = [(s.values, s.next, s.metadata) for s in talk(6, old).get_state_history(config())]
    assert saver.import_from(old) == len(before) and saver.import_from(old) == 0
    graph = talk(6, saver)
    assert [(s.values, s.next, s.metadata) for s in graph.get_state_history(config())] == before
    assert len(graph.invoke(None, config())["said"]) == 6


def test_a_database_of_postgres_saver_is_imported_and_gone_on_with(rt):
    """In a database of its own: PostgresSaver makes its tables where it connects."""
    assert POSTGRES, NO_POSTGRES
    name = f"saver_{random.getrandbits(48):x}"
    with psycopg.connect(POSTGRES, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            address = conninfo.make_conninfo(POSTGRES, dbname=name)
            with PostgresSaver.from_conn_string(address) as old:
                old.setup()
                is_imported_and_gone_on_with(old, OutlastSaver(rt))
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def journey(saver, durability, inner):
    """Interrupts, answers, time travel and updates of a graph with a subgraph: what each of them gave."""
    within = StateGraph(Talk)
    within.add_node("first", lambda state: {"said": ["first"]})
    within.add_node("ask", lambda state: {"said": [interrupt("well?")]})
    within.add_edge(START, "first")
    within.add_edge("first", "ask")
    builder = StateGraph(Talk)
    builder.add_node("begin", lambda state: {"said": ["begin"]})
    builder.add_node("within", within.compile(checkpointer=inner))
    builder.add_node("end", lambda state: {"said": ["end"]})
    for edge in ((START, "begin"), ("begin", "within"), ("within", "end")):
        builder.add_edge(*edge)
    graph, how = builder.compile(checkpointer=saver), {"durability": durability}

    async def of_tasks():
        await graph.ainvoke({"said": ["x"]}, config("tasks"), **how)
        return await graph.ainvoke(Command(resume="y"), config("tasks"), **how)

    graph.invoke({"said": []}, config(), **how)
    yield len(graph.get_state(config(), subgraphs=True).tasks)
    yield graph.invoke(Command(resume="yes"), config(), **how)
    graph.invoke({"said": ["again"]}, config(), **how)
    yield graph.invoke(Command(resume="no"), config(), **how)
    old = [s for s in graph.get_state_history(config()) if s.next == ("within",)][-1]
    graph.invoke(None, old.config, **how)
    yield graph.invoke(Command(resume="other"), config(), **how)
    graph.update_state(graph.update_state(config(), {"said": ["one"]}), {"said": ["two"]})
    yield graph.get_state(config()).values
    graph.update_state(old.config, {"said": ["fork"]})
    yield graph.get_state(config()).values
    yield asyncio.run(of_tasks())
    yield [(s.values, s.next, s.metadata["step"]) for s in graph.get_state_history(config())]


@pytest.mark.parametrize("inner", [None, True])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_graph_goes_as_it_does_in_memory(rt, durability, inner):
    assert list(journey(OutlastSaver(rt), durability, inner)) == list(journey(InMemorySaver(), durability, inner))


KILLED = """
    import os, sys
    from typing import Annotated, TypedDict
    import operator
    from langgraph.func import entrypoint, task
    from outlast.langgraph import OutlastSaver

    @task
    async def work(n):
        with open("effects", "a") as f:
            f.write(f"{n} ")
        return n

    @entrypoint(checkpointer=OutlastSaver("runs.db"))
    async def main(_):
        done = []
        for n in range(5):
            done.append(await work(n))
            if f"{n}" == sys.argv[1]:
                os.kill(os.getpid(), 9)
        return done

    import asyncio
    print(asyncio.run(main.ainvoke(None if sys.argv[2] == "again" else 1, {"configurable": {"thread_id": "t"}})))
"""


def test_a_task_is_on_disk_before_the_next_begins(life, home):
    """Killed as soon as a task's result is seen: with other savers it may not be on disk yet (langgraph#8039)."""
    life(KILLED, "2", "first", ok=False)
    assert life(KILLED, "no", "again", ok=True).stdout == "[0, 1, 2, 3, 4]\n"
    assert (home / "effects").read_text() == "0 1 2 3 4 "
