"""The library of the agent-resume article: its generator as it stands, and what a crash does to its file."""

import asyncio
import json
import subprocess
from collections import Counter

import pytest

import outlast
from outlast import JsonlStore, identity, resume_or_start
from conftest import outlast_program
from jsonl_bed import DOCUMENTS, WHOLE, bed, unsynced  # noqa: F401

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


# Bug: commands that messages name found nothing of a job over a file of results, and `--store` with that file told of damage.
def test_a_file_of_results_names_its_store_and_its_job(bed, capfd):  # noqa: F811
    with bed.start(budget=outlast.Budget(usd=1)) as results, pytest.raises(outlast.NothingMetered, match="10 items") as error:
        list(results)
    assert f"--no-limit usd --store {bed.path}.outlast.db" in error.value.hint
    assert "input 0 is done and nothing was metered: the limit of 1.00 usd holds only" in capfd.readouterr().err

    def command(*line):
        return subprocess.run([outlast_program(), *map(str, line)], check=True, capture_output=True, text=True).stdout

    assert "no calls" in command("spend", "--store", bed.path)
    told = command("inspect", bed.path)
    assert "10 of 20 items ended" in told and "open 10" in told
    assert "docs" in command("inspect", "docs", "--store", bed.path)
    # Of an input whose length nobody knows there may be more.
    stream = bed.start(iter(DOCUMENTS), job="stream")
    next(stream)
    stream.close()
    assert "of at least 1 item ended" in command("inspect", "stream", "--store", bed.path)


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


# Bug: a file's job whose process was killed read "running" until another command had looked at its store.
def test_that_the_process_of_a_files_job_is_dead_is_seen_by_whoever_looks_first(life, home):
    path = home / "runs" / "enrich-docs.jsonl"

    def told(*args):
        return json.loads(subprocess.run([outlast_program(), *args, "--json"], check=True, capture_output=True, text=True).stdout)

    assert life(SEED, 5).returncode == -9
    assert told("inspect", path)["status"] == "interrupted"
    assert life(SEED, 7).returncode == -9
    # An item that a dead process had is free.
    assert told("retry", path, "--key", identity.digest("document 7").hex())["reset"]
    assert life(SEED, 9).returncode == -9
    assert outlast.job("enrich-docs-2026-05-24", store=f"{path}.outlast.db").status == "interrupted"


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
