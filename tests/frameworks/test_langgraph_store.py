"""`OutlastStore` answers as LangGraph's own store in memory does."""

import asyncio
import random

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from outlast.langgraph import OutlastStore

LABELS = ["a", "b", "a b", "é/=%", "*c"]


def plain(answer):
    """Without times, which differ; a listing in memory has no order of its own."""
    if isinstance(answer, list):
        return sorted(str(plain(part)) for part in answer)
    return repr(answer) if answer is None or isinstance(answer, tuple) else repr((answer.namespace, answer.key, answer.value))


def an_op(rng):
    namespace = tuple(rng.choices(LABELS, k=rng.randint(1, 3)))
    key = rng.choice(["k", "k/=", "é"])
    wanted = rng.choice([None, {"n": 1}, {"n": {"$gt": 1}}, {"n": {"$ne": 0}}, {"n": {"$lte": 2}}, {"in": {"n": 1}}])
    return rng.choice([
        GetOp(namespace, key),
        PutOp(namespace, key, rng.choice([None, {"n": rng.randrange(4), "in": {"n": rng.randrange(2)}}])),
        PutOp(namespace, key, {"n": rng.randrange(4)}),
        SearchOp(namespace[: rng.randrange(3)], wanted, 1000),
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_random_operations_are_answered_as_in_memory(rt, seed):
    rng = random.Random(seed)
    ours, memory = OutlastStore(rt), InMemoryStore()
    for _ in range(40):
        ops = [an_op(rng) for _ in range(rng.randint(1, 4))]
        assert [*map(plain, ours.batch(ops))] == [*map(plain, memory.batch(ops))], f"seed {seed}: {ops}"


def test_namespaces_are_those_that_have_items(rt):
    """The store in memory also lists those that were only asked for."""
    store = OutlastStore(rt)
    for namespace in (("a", "b"), ("a", "b", "c"), ("a", "b c"), ("x", "b"), ("gone",)):
        store.put(namespace, "k", {})
    store.delete(("gone",), "k"), store.get(("asked",), "k")
    assert store.list_namespaces() == [("a", "b"), ("a", "b", "c"), ("a", "b c"), ("x", "b")]
    assert store.list_namespaces(prefix=("a",), max_depth=2) == [("a", "b"), ("a", "b c")]
    assert store.list_namespaces(suffix=("*", "b")) == [("a", "b"), ("x", "b")]
    assert store.list_namespaces(prefix=("*", "b"), limit=2, offset=1) == [("a", "b", "c"), ("x", "b")]


def test_pages_follow_each_other_and_times_are_kept(rt):
    store = OutlastStore(rt)
    for n in range(7):
        store.put(("a",), f"{n}", {"n": n})
    first = store.get(("a",), "3")
    pages = [[item.key for item in store.search(("a",), limit=3, offset=at)] for at in (0, 3, 6)]
    assert pages == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    store.put(("a",), "3", {"n": 33})
    then = asyncio.run(OutlastStore(rt).aget(("a",), "3"))
    assert then.value == {"n": 33} and then.created_at == first.created_at <= then.updated_at
    with pytest.raises(NotImplementedError):
        store.put(("a",), "3", {}, ttl=1)
