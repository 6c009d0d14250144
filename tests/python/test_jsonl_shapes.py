"""Generators of other shapes than one result for each input: told, and not paid for twice."""

import types
import warnings
from collections import Counter

import pytest

import jsonl_bed
import outlast
from jsonl_bed import DOCUMENTS, WHOLE, Bed, bed, unsynced  # noqa: F401


def prefetching(bed):
    def generator(documents):
        documents = iter(documents)
        for doc in documents:
            pair = [doc, *([after] if (after := next(documents, None)) else [])]
            yield from [bed.call(d) for d in pair]

    return generator


def pairing(bed):
    def generator(documents):
        last = None
        for doc in documents:
            if last is not None:
                yield {**bed.call(doc), "after": last}
            last = doc["id"]

    return generator


def skipping(bed):
    def generator(documents):
        for doc in documents:
            if doc["id"] % 3 == 1:
                continue
            try:
                result = bed.call(doc)
            except KeyError:
                continue
            yield result

    return generator


def counting(bed):
    def generator(documents):
        total = len(documents)
        for doc in documents:
            yield {**bed.call(doc), "total": total}

    return generator


def indexing(bed):
    def generator(documents):
        for i in range(20):
            yield bed.call(documents[i])

    return generator


def numbering(bed):
    def generator(documents):
        for i, doc in enumerate(documents):
            yield {**bed.call(doc), "i": i}

    return generator


def listing(bed):
    def generator(documents):
        for doc in list(documents):
            yield bed.call(doc)

    return generator


def doubling(bed):
    def generator(documents):
        for doc in documents:
            yield bed.call(doc)
            yield "and more"

    return generator


SHAPES = [prefetching, pairing, counting, indexing, numbering, listing, doubling]


@pytest.mark.parametrize("fail_at", [0, 2, 11, 14, 18])
def test_an_input_that_is_left_out_by_continue_is_no_other_shape(bed, fail_at):
    """Bug: a generator that skips an input could not be resumed, but for `WouldRepay`. Cause: it takes its inputs like one that
    looks ahead. Its code tells them apart: nothing is carried from one turn of the loop to the next."""
    clean = list(skipping(Bed(bed.path.parent))(DOCUMENTS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bed.life(fn=skipping(bed), fail_at=fail_at)
        calls = bed.calls.copy()
        # A new document comes first, between what is recorded.
        new = {**DOCUMENTS[0], "id": 99}
        assert bed.life([new, *DOCUMENTS], fn=skipping(bed))[1:] == clean
        assert all(n == 1 for i, n in (bed.calls - calls).items()) and set(bed.calls.values()) <= {1, 2}
        assert bed.life([new, *DOCUMENTS], fn=skipping(bed))[1:] == clean
    assert {i: n for i, n in bed.calls.items() if n > 1} in ({}, {fail_at: 2})


def test_what_may_be_carried_from_turn_to_turn_is_not_told_apart():
    from outlast.generators.inputs import is_left_out

    queue, held = [], types.SimpleNamespace(queue=[], last=None)

    def plain(xs):
        for x in xs:
            try:
                text = str(x)
            except ValueError as e:
                print(e, x)
                continue
            if text:
                yield [text for _ in range(2)]

    def buffered(xs):
        waiting = []
        for x in xs:
            waiting.append(x)
            if len(waiting) == 2:
                yield waiting.pop(0)

    def seen(xs):
        known = set()
        for x in xs:
            if x not in known:
                known.add(x)
                yield x

    def queued(xs):
        for x in xs:
            queue.append(x)
            yield queue.pop(0)

    def attributed(xs):
        for x in xs:
            held.queue.append(x)
            yield held.queue.pop()

    def kept(xs):
        for x in xs:
            yield held.last
            held.last = x

    def counted(xs):
        n = 0
        for x in xs:
            n += 1
            if n % 2:
                yield n

    def ahead(xs):
        xs = iter(xs)
        for x in xs:
            next(xs)
            yield x

    def flushing(xs):
        for x in xs:
            if x:
                yield x
        yield "end"

    class Looked:
        def __init__(self, fn):
            self.left, self.told = iter(range(4)), set()
            self.generator = fn(self)
            list(self.generator)

        def __iter__(self):
            return self

        def __next__(self):
            self.told.add(is_left_out(self.generator))
            return next(self.left)

    assert Looked(plain).told == {True}
    for fn in (buffered, seen, queued, attributed, kept, counted, ahead, flushing):
        assert Looked(fn).told == {False}, fn


@pytest.mark.parametrize("shape", SHAPES)
def test_another_shape_is_told_in_the_first_run_and_not_paid_for_again(bed, shape):
    clean = list(shape(Bed(bed.path.parent))(DOCUMENTS))
    with pytest.warns(outlast.OtherShape, match="cannot be resumed without") as warned:
        before = bed.life(fn=shape(bed), fail_at=14)
    # At the program's own line: the generator's, or its consumer's. Python itself may warn meanwhile, of what it collects.
    told = [w.filename for w in warned if w.category is outlast.OtherShape]
    assert told in ([__file__], [jsonl_bed.__file__])
    assert before == clean[: len(before)] and len(before) >= 8
    calls = bed.calls.copy()
    with pytest.raises(outlast.WouldRepay) as told:
        bed.start(fn=shape(bed))
    assert told.value.count == len(before)
    assert f"{len(before)} results would be paid for again" in str(told.value)
    assert bed.calls == calls, "no call was made"
    assert bed.life(fn=shape(bed), redrive=True) == clean
    calls = bed.calls.copy()
    # It is complete: the same inputs have the same results, and nothing is to be driven.
    assert bed.life(fn=shape(bed)) == clean
    assert bed.calls == calls
    with pytest.raises(outlast.WouldRepay):
        bed.start(DOCUMENTS[1:], fn=shape(bed))


@pytest.mark.parametrize("shape", SHAPES)
def test_another_shape_whose_calls_are_steps_is_driven_again_and_pays_once(bed, shape):
    class Stepping(Bed):
        def call(self, doc):
            return outlast.current().run.step("call", super().call, doc)

    stepping = Stepping(bed.path.parents[1])
    clean = list(shape(bed)(DOCUMENTS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stepping.life(fn=shape(stepping), fail_at=14)
        assert stepping.life(fn=shape(stepping)) == clean
    paid = {i: n for i, n in stepping.calls.items() if i != 14}
    assert set(paid.values()) == {1}


def test_a_shape_first_seen_in_a_resume_stops_it_before_any_call(bed):
    bed.life(fail_at=7)
    calls = bed.calls.copy()
    with pytest.raises(outlast.WouldRepay) as told:
        bed.life(fn=counting(bed))
    assert told.value.count == 7
    assert bed.calls == calls


def test_steps_in_a_plain_generator_do_not_diverge_when_inputs_are_left_out(bed):
    def stepping(documents):
        for doc in documents:
            yield outlast.current().run.step("call", bed.call, doc)

    assert bed.life(fn=stepping, fail_at=7) == WHOLE[:7]
    assert bed.life(fn=stepping) == WHOLE
    assert bed.calls == Counter({i: 2 if i == 7 else 1 for i in range(20)})
