"""The library of the agent-resume article: its generator as it stands, and what a crash does to its file."""

import asyncio
import json
import types
import warnings
from collections import Counter

import pytest

import outlast
from outlast import JsonlStore, resume_or_start

DOCUMENTS = [{"id": i, "text": f"document {i}"} for i in range(20)]

# The article's program, but for the import line; around it a crash, and a count of the calls.
SEED = """
import json, os, sys
from outlast import resume_or_start, JsonlStore

store = JsonlStore("runs/enrich-docs.jsonl")

def process_documents(documents):
    for doc in documents:
        result = call_llm_to_enrich(doc)
        yield result

documents = [f"document {i}" for i in range(500)]
kill_at = int(sys.argv[1])

def call_llm_to_enrich(doc):
    with open("calls.log", "a") as log:
        log.write(doc + "\\n")
    if doc == f"document {kill_at}":
        os.kill(os.getpid(), 9)
    return {"of": doc}

results = resume_or_start(
    job_id="enrich-docs-2026-05-24",
    store=store,
    generator_fn=process_documents,
    generator_args=(documents,),
)

for item in results:
    print(item)
"""


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """A killed process needs no disk to be survived: the order of commits is the same, and the tests are quick."""
    monkeypatch.setenv("OUTLAST_DURABILITY", "process")


class Bed:
    """A file of results, and a count of the calls that were paid for."""

    def __init__(self, home):
        self.path = home / "runs" / "docs.jsonl"
        self.calls = Counter()
        self.fail_at = None

    def call(self, doc):
        self.calls[doc["id"]] += 1
        if doc["id"] == self.fail_at:
            raise RuntimeError("a malformed response")
        return {"of": doc["id"]}

    def generator(self, documents):
        for doc in documents:
            yield self.call(doc)

    def start(self, documents=DOCUMENTS, fn=None, job="docs", **more):
        return resume_or_start(job, JsonlStore(self.path), fn or self.generator, (documents,), **more)

    def life(self, *args, fail_at=None, **more):
        """One life; gives its results, those before a failure too."""
        self.fail_at, out = fail_at, []
        try:
            for result in self.start(*args, **more):
                out.append(result)
        except RuntimeError:
            assert fail_at is not None
        return out

    def lines(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def old(self, count, job="docs", path=None):
        """A file of the older library."""
        self.path.parent.mkdir(exist_ok=True)
        lines = [json.dumps({"job_id": job, "index": i, "result": {"of": i}}) for i in range(count)]
        self.path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def bed(home):
    return Bed(home)


WHOLE = [{"of": i} for i in range(20)]


def test_the_articles_program_pays_for_447_and_then_for_53(life, home):
    assert life(SEED, 447, ok=False).returncode == -9
    assert len((home / "calls.log").read_text().split("\n")) - 1 == 448, "447 results, and the one it died in"
    (home / "calls.log").write_text("")
    done = life(SEED, -1, ok=True)
    assert len((home / "calls.log").read_text().split("\n")) - 1 == 53
    assert done.stdout.splitlines() == [str({"of": f"document {i}"}) for i in range(500)]
    assert "447 of 500 done" in done.stderr
    lines = [json.loads(line) for line in (home / "runs/enrich-docs.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(500)), "nothing is there twice"
    assert list(lines[0]) == ["job_id", "index", "result", "attempt", "at"]
    assert {line["attempt"] for line in lines[:447]} == {1} and {line["attempt"] for line in lines[447:]} == {2}
    # And once more: nothing is left to pay for.
    (home / "calls.log").write_text("")
    assert life(SEED, -1, ok=True).stdout == done.stdout
    assert (home / "calls.log").read_text() == ""


def test_a_job_killed_at_each_of_its_calls_pays_once_for_each_result(life, home):
    for kill_at in (0, 1, 250, 250, 499):
        assert life(SEED, kill_at).returncode == -9
    done = life(SEED, -1, ok=True)
    calls = Counter((home / "calls.log").read_text().split("\n")[:-1])
    again = {f"document {at}": n for at, n in Counter((0, 1, 250, 250, 499)).items()}
    assert {doc: n - 1 for doc, n in calls.items() if n > 1} == again
    assert len(done.stdout.splitlines()) == 500


def test_an_input_that_raised_runs_again_and_those_before_it_do_not(bed):
    assert bed.life(fail_at=7) == WHOLE[:7]
    assert bed.life() == WHOLE
    assert bed.calls == Counter({i: 2 if i == 7 else 1 for i in range(20)})


def test_an_input_that_raises_in_every_life_is_tried_in_every_life(bed):
    for _ in range(5):
        assert bed.life(fail_at=7) == WHOLE[:7]
    assert bed.life() == WHOLE
    assert bed.calls[7] == 6


def test_results_given_out_are_those_recorded_from_the_first_life_on(bed):
    def pairs(documents):
        for doc in documents:
            yield (doc["id"], {1: "a"})

    first = list(bed.start(fn=pairs))
    assert first[0] == [0, {"1": "a"}]
    assert list(bed.start(fn=pairs)) == first


def test_equal_inputs_are_told_apart_by_their_order(bed):
    twice = [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0], DOCUMENTS[0]]
    made = []

    def numbered(documents):
        for doc in documents:
            made.append(doc["id"])
            if len(made) == 3:
                raise RuntimeError("a timeout")
            yield len(made)

    assert bed.life(twice, fn=numbered, fail_at=0) == [1, 2]
    assert bed.life(twice, fn=numbered) == [1, 2, 4, 5]
    assert made == [0, 1, 0, 0, 0]


def test_other_inputs_are_computed_and_those_that_are_gone_left_out(bed, capfd):
    bed.life(DOCUMENTS[:10])
    other = [DOCUMENTS[12], *reversed(DOCUMENTS[2:10]), DOCUMENTS[11]]
    assert bed.life(other) == [{"of": doc["id"]} for doc in other]
    assert bed.calls == Counter({i: 1 for i in (*range(10), 11, 12)}), "order is free"
    assert "2 results are of inputs that are not given any more" in capfd.readouterr().err
    newest = {line["index"]: line["result"] for line in bed.lines()}
    assert [newest[i] for i in range(10)] == [{"of": doc["id"]} for doc in other], "the newest lines are this input's"
    before = len(bed.lines())
    bed.life(other)
    assert len(bed.lines()) == before


def test_a_consumer_that_stops_early_leaves_the_job_to_be_resumed(bed):
    results = bed.start()
    assert [next(results) for _ in range(5)] == WHOLE[:5]
    results.close()
    assert list(bed.start()) == WHOLE
    assert set(bed.calls.values()) == {1}
    results = bed.start(job="dropped")
    next(results)
    del results
    assert list(bed.start(job="dropped")) == WHOLE


def test_an_iterator_is_read_no_further_than_its_results(bed):
    taken = []

    def documents():
        for doc in DOCUMENTS:
            taken.append(doc["id"])
            yield doc

    results = bed.start(documents())
    for _ in range(4):
        next(results)
    assert taken == [0, 1, 2, 3]
    results.close()


def test_what_is_no_function_is_told_before_anything_is_made(bed):
    with pytest.raises(TypeError, match="generator_fn wants a generator function, had 5"):
        outlast.resume_or_start("docs", bed.path, 5, (DOCUMENTS,))
    assert not bed.path.parent.exists() or not list(bed.path.parent.glob(bed.path.name + "*"))


def test_a_held_job_is_refused_to_a_second_caller(bed, life, home):
    results = bed.start()
    next(results)
    with pytest.raises(outlast.RunHeld) as error:
        bed.start()
    # A notebook's cell that was interrupted and is run again: there is something that it can do.
    assert "close()" in error.value.hint and "if_held" not in error.value.hint
    program = f"""
    import outlast
    try:
        outlast.resume_or_start("docs", {str(bed.path)!r}, lambda docs: iter(docs), ([1, 2],))
    except outlast.RunHeld as e:
        print("held", e.code)
    """
    assert life(program, ok=True).stdout == "held run_held\n"
    assert list(results) == WHOLE[1:]
    assert bed.life() == WHOLE


def test_several_jobs_share_a_file(bed):
    a, b = bed.start(job="a"), bed.start(DOCUMENTS[:3], job="b: with / signs")
    assert [next(a), next(b)] == [{"of": 0}, {"of": 0}]
    assert (list(a), list(b)) == (WHOLE[1:], WHOLE[1:3])
    assert JsonlStore(bed.path).results("b: with / signs") == {0: {"of": 0}, 1: {"of": 1}, 2: {"of": 2}}


# --- the file


def test_a_torn_last_line_is_cut_and_said(bed, capfd):
    bed.life(fail_at=7)
    whole = bed.path.read_bytes()
    for torn in (b'{"job_id": "docs", "ind', b"{", b"\0\0\0\0", b'{"job_id": "docs", "index": 7, "result": {"of"'):
        bed.path.write_bytes(whole + torn)
        capfd.readouterr()
        assert bed.life(fail_at=7) == WHOLE[:7]
        assert f"a torn last line of {len(torn)} bytes is cut" in capfd.readouterr().err
        assert bed.path.read_bytes() == whole


def test_a_line_that_its_record_has_and_the_file_lost_is_appended(bed):
    bed.life(fail_at=7)
    whole = bed.lines()
    for kept in (6, 3, 0):
        bed.path.write_text("".join(json.dumps(line) + "\n" for line in whole[:kept]))
        assert bed.life(fail_at=7) == WHOLE[:7]
        assert [{**line, "at": 0} for line in bed.lines()] == [{**line, "at": 0} for line in whole]
    assert bed.calls[3] == 1


def test_a_last_line_without_its_end_is_whole(bed):
    bed.old(5)
    bed.path.write_bytes(bed.path.read_bytes()[:-1])
    assert bed.life() == WHOLE
    assert [line["index"] for line in bed.lines()] == list(range(20))
    assert set(bed.calls) == set(range(5, 20))


def test_a_line_glued_to_a_torn_one_is_read(bed, capfd):
    bed.old(5)
    lines = bed.path.read_text().splitlines()
    bed.path.write_text("\n".join([*lines[:3], '{"job_id": "docs", "index": 3, "resu' + lines[3], lines[4]]) + "\n")
    assert bed.life() == WHOLE
    assert set(bed.calls) == set(range(5, 20))
    assert "1 lines stand behind the torn beginning of another" in capfd.readouterr().err


@pytest.mark.parametrize(
    "damage", [b"garbage\n", b"\0\0\0\n", b'{"job_id": "docs"}\n', b'{"job_id": "docs", "index": -1, "result": 1}\n', b"[1]\n", b"\xff\xfe\n"]
)
def test_damage_in_the_middle_is_refused_and_nothing_is_changed(bed, damage):
    bed.old(5)
    lines = bed.path.read_bytes().splitlines(keepends=True)
    bed.path.write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    before = bed.path.read_bytes()
    with pytest.raises(outlast.StoreError, match="line 3 of .* is damaged") as told:
        bed.start()
    assert told.value.code == "jsonl_damaged"
    assert bed.path.read_bytes() == before
    assert [p.name for p in bed.path.parent.iterdir()] == [bed.path.name], "no record is made"


def test_a_file_of_the_older_library_is_imported(bed, capfd):
    bed.old(9)
    assert bed.life(fail_at=12) == WHOLE[:12]
    assert "9 results imported" in capfd.readouterr().err
    assert bed.life() == WHOLE
    assert bed.calls == Counter({i: 2 if i == 12 else 1 for i in range(9, 20)})
    assert [line["index"] for line in bed.lines()] == list(range(20)), "no line is there twice"


def test_a_line_is_imported_once_for_the_input_it_was_of(bed):
    bed.old(5)
    bed.life(DOCUMENTS[:5])
    # Another document in its place is no reason to believe the old line of the place.
    assert bed.life([DOCUMENTS[9], *DOCUMENTS[1:5]]) == [{"of": 9}, *WHOLE[1:5]]
    assert bed.calls == Counter({9: 1})


def test_a_deleted_file_starts_the_job_over_and_keeps_its_history(bed, capfd):
    bed.life()
    bed.path.unlink()
    assert bed.life() == WHOLE
    assert set(bed.calls.values()) == {2}
    assert "20 results of before are history" in capfd.readouterr().err
    with outlast.connect(JsonlStore(bed.path).record) as rt:
        assert [rt.get(id).status for id in ("docs", "docs:2")] == ["completed", "completed"]


def test_a_full_disk_leaves_no_half_line(bed, monkeypatch):
    import errno
    import os

    results = bed.start()
    next(results)
    whole, write = bed.path.read_bytes(), os.write

    def full(file, data):
        if b'"job_id"' in data:
            write(file, data[:9])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(outlast.StoreError) as told:
        next(results)
    assert told.value.code == "store_full"
    monkeypatch.setattr(os, "write", write)
    assert bed.path.read_bytes() == whole
    assert bed.life() == WHOLE
    assert bed.calls[1] == 1, "its record had it"


# --- other shapes


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
    from outlast.generators.leaving import is_left_out

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
    # At the program's own line.
    assert [w.filename for w in warned] == [__file__]
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


# --- asynchronous generators


def async_life(bed, documents=DOCUMENTS, fail_at=None, made=None):
    async def generator(documents):
        if hasattr(documents, "__aiter__") and made is not None:
            async for doc in documents:
                yield bed.call(doc)
            return
        for doc in documents:
            await asyncio.sleep(0)
            yield bed.call(doc)

    async def main():
        out = []
        try:
            async for result in bed.start(made() if made else documents, fn=generator):
                out.append(result)
        except RuntimeError:
            assert fail_at is not None
        return out

    bed.fail_at = fail_at
    return asyncio.run(main())


async def stream():
    for doc in DOCUMENTS:
        yield doc


@pytest.mark.parametrize("made", [None, stream])
def test_an_asynchronous_generator_is_resumed_as_a_plain_one_is(bed, made):
    assert async_life(bed, fail_at=7, made=made) == WHOLE[:7]
    assert async_life(bed, made=made) == WHOLE
    assert bed.calls == Counter({i: 2 if i == 7 else 1 for i in range(20)})
    assert async_life(bed, made=made) == WHOLE
    assert sum(bed.calls.values()) == 21


def test_a_cancelled_task_leaves_the_job_to_be_resumed(bed):
    async def generator(documents):
        for doc in documents:
            if doc["id"] == 3:
                await asyncio.sleep(0 if bed.fail_at is None else 60)
            yield bed.call(doc)

    async def main():
        async def consume():
            return [r async for r in bed.start(fn=generator)]

        bed.fail_at = -1
        task = asyncio.create_task(consume())
        while len(bed.calls) < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        bed.fail_at = None
        return await consume()

    assert asyncio.run(main()) == WHOLE
    assert set(bed.calls.values()) == {1}


def test_a_job_of_many_inputs_is_resumed_in_linear_time_and_size(bed):
    import time

    def took(documents, fail_at):
        path = bed.path.with_name(f"{len(documents)}.jsonl")
        began = time.process_time()
        for crash in (fail_at, None):
            try:
                bed.fail_at = crash
                for _ in resume_or_start("many", JsonlStore(path), bed.generator, (documents,)):
                    pass
            except RuntimeError:
                pass
        return time.process_time() - began

    few, many = ([{"id": i} for i in range(n)] for n in (500, 4000))
    took(few[:50], 40)
    assert took(many, 3900) < 30 * took(few, 400)
