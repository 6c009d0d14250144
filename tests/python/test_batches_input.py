"""The input of a batch and its function: what is new, changed, gone, equal, or none at all."""

import functools
import time

import pytest

import outlast
from batches import Work, batch
from outlast.batch import options, plan


def test_keys_that_are_equal_are_an_error_before_any_call(rt):
    work_ = Work()
    with pytest.raises(outlast.DuplicateKey, match="items 0 and 2"):
        batch(rt, ["a", "b", "a"], work_)
    assert work_.ran == []


@pytest.mark.parametrize("dedupe, wanted", [("first", ["a", "b"]), ("ordinal", ["a", "b", "a#2", "a#3"])])
def test_equal_keys_are_left_out_or_numbered_if_asked(rt, dedupe, wanted):
    assert [r.key for r in batch(rt, ["a", "b", "a", "a"], Work(), dedupe=dedupe)] == wanted


def test_without_a_key_an_item_is_known_by_its_content(rt):
    work_ = Work()
    for items in ([{"a": 1}, {"b": 2}], [{"b": 2}, {"a": 1}, {"c": 3}]):
        batch(rt, items, work_, key=None).wait()
    assert work_.ran == [{"a": 1}, {"b": 2}, {"c": 3}] or work_.ran == [{"b": 2}, {"a": 1}, {"c": 3}]


def test_reordering_is_free_new_keys_run_and_vanished_ones_are_counted(rt):
    batch(rt, range(10), Work()).wait()
    work_ = Work()
    out = batch(rt, [12, 9, 3, 11, 0], work_)
    assert [r.value for r in out] == [12, 9, 3, 11, 0]
    assert sorted(work_.ran) == [11, 12] and out.stats.vanished == 7
    for told in (out, outlast.job("j", store=rt)):
        assert "7 not in the input any more" in repr(told)
    assert outlast.job("j", store=rt).counts["done"] == 12, "what vanished stays in the store"


def changed(rt, items, work_, **options):
    return batch(rt, items, work_, key=lambda d: d["id"], content=lambda d: d["text"], **options)


def docs(*texts):
    return [{"id": f"d{i}", "text": text, "seen": 1} for i, text in enumerate(texts)]


def test_an_item_with_other_content_runs_again_and_the_rest_does_not(rt):
    texts = ["t"] * 40
    changed(rt, docs(*texts), Work(lambda d: d["text"])).wait()
    texts[7] = "new"
    work_ = Work(lambda d: d["text"])
    items = [{**d, "seen": 2} for d in docs(*texts)]
    assert [r.value for r in changed(rt, items, work_)] == texts
    assert [d["id"] for d in work_.ran] == ["d7"]


@pytest.mark.parametrize("on_change, runs", [("rerun", 1), ("keep", 0)])
def test_other_content_runs_again_or_is_kept(rt, on_change, runs):
    changed(rt, docs("one"), Work(lambda d: d["text"])).wait()
    work_ = Work(lambda d: d["text"])
    out = changed(rt, docs("two"), work_, on_change=on_change, rerun=True)
    assert [r.value for r in out] == ["two" if runs else "one"] and len(work_.ran) == runs


def test_other_content_fails_if_asked(rt):
    changed(rt, docs("one"), Work()).wait()
    with pytest.raises(outlast.JobChanged, match="'d0'"):
        changed(rt, docs("two"), Work(), on_change="fail")


def test_what_would_be_paid_again_is_told_before_the_first_call(rt):
    changed(rt, docs(*"abcdefghij"), Work(lambda d: d["text"])).wait()
    work_ = Work(lambda d: d["text"])
    with pytest.raises(outlast.JobChanged, match="10 of 10 done items"):
        changed(rt, docs(*"ABCDEFGHIJ"), work_)
    assert work_.ran == []
    changed(rt, docs(*"ABCDEFGHIJ"), work_, rerun=True).wait()
    assert len(work_.ran) == 10


def test_a_version_wins_and_without_one_changed_code_is_warned_of_and_kept(rt, capfd):
    batch(rt, range(4), lambda i: i + 1).wait()
    capfd.readouterr()
    assert [r.value for r in batch(rt, range(6), lambda i: i * 100)] == [1, 2, 3, 4, 400, 500]
    assert "4 items keep the result of its old code, and 2 run with the new" in capfd.readouterr().err
    with pytest.raises(outlast.JobChanged, match="version changed"):
        batch(rt, range(6), lambda i: i * 100, version=2)
    assert [r.value for r in batch(rt, range(6), lambda i: i * 100, version=2, rerun=True)] == [0, 100, 200, 300, 400, 500]
    work_ = Work()
    batch(rt, range(6), work_, version=2).wait()
    assert work_.ran == []


def test_code_is_known_without_its_lines_and_comments():
    def made(source):
        scope = {}
        exec(source, scope)
        return plan.code_digest(scope["f"])

    plain = made("def f(x):\n    return [x for y in {1, 2}]")
    assert plain == made("\n\n# why\ndef f(x):\n    'says what'\n\n    return [x for y in {1, 2}]")
    others = ["def f(x):\n    return [x for y in {1, 3}]", "def f(x, n=2):\n    return [x for y in {1, 2}]", "def f(x):\n    return [g for y in {1, 2}]"]
    assert len({plain, *map(made, others)}) == 4
    assert plan.code_digest(functools.partial(test_code_is_known_without_its_lines_and_comments, 1)) != plain


def test_resume_modes(rt):
    batch(rt, range(4), lambda i: i).wait()
    same, again, other = lambda i: i, Work(), Work()
    assert [r.cached for r in batch(rt, range(4), same, resume="if_unchanged")] == [True] * 4
    with pytest.raises(outlast.JobChanged):
        batch(rt, range(4), other, resume="if_unchanged")
    batch(rt, range(4), again, resume="never").wait()
    assert sorted(again.ran) == [0, 1, 2, 3]


def test_results_of_a_completed_job_expire_and_those_of_an_unfinished_one_do_not(rt):
    def fn(i):
        if i == 1 and not whole:
            raise ValueError
        return i

    whole = False
    batch(rt, range(3), fn).wait()
    work_, whole = Work(fn), True
    batch(rt, range(3), work_, ttl=0).wait()
    assert work_.ran == [1], "it was not completed"
    expired = Work(fn)
    batch(rt, range(3), expired, ttl=0).wait()
    assert sorted(expired.ran) == [0, 1, 2]
    kept = Work(fn)
    batch(rt, range(3), kept, ttl="30d").wait()
    assert kept.ran == []


@pytest.mark.parametrize("text, seconds", [("500/m", 0.12), ("10/s", 0.1), ("3600/h", 1.0), ("30/min", 2.0), (4, 0.25), (None, None)])
def test_rates_are_read(text, seconds):
    assert options.interval(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "given, error",
    [
        ({"rate": "fast"}, ValueError),
        ({"concurrency": 0}, ValueError),
        ({"order": "random"}, ValueError),
        ({"job": ""}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"key": lambda i: None}, TypeError),
        ({"key": "id"}, TypeError),
        ({"content": 5}, TypeError),
        ({"retries": "5"}, TypeError),
        ({"retries": 2.5}, TypeError),
        ({"timeout": "2m"}, ValueError),
        ({"rate": [1]}, ValueError),
        ({"rate": True}, ValueError),
        ({"rate": "5/ms"}, ValueError),
        ({"rate": "5/month"}, ValueError),
        ({"budget": 5}, TypeError),
        ({"tags": {"a": 1}}, TypeError),
        ({"tags": "a"}, TypeError),
        ({"version": object()}, TypeError),
    ],
)
def test_bad_arguments_are_told_at_once(rt, given, error):
    with pytest.raises(error):
        batch(rt, [1], Work(), **given)


def test_the_wrong_kind_of_function_is_told_at_once(rt):
    async def fn(i):
        return i

    with pytest.raises(TypeError, match="use outlast.amap"):
        batch(rt, [1], fn)
    with pytest.raises(TypeError, match="use outlast.map"):
        outlast.amap([1], lambda i: i, job="j")
    for make in (outlast.map, outlast.amap):
        with pytest.raises(TypeError, match="had None"):
            make([1], None, job="j")


def test_what_is_wrong_with_the_input_is_told_before_any_call(rt):
    work_ = Work()
    items = [{"id": "a", "text": "x"}, {"id": "b"}]

    async def source():
        yield 1

    def check(error, match, items=items, **given):
        with pytest.raises(error, match=match):
            batch(rt, items, work_, **{"key": lambda d: d["id"], **given})

    check(outlast.Unkeyable, "content= raised KeyError: 'text' for item 1, {'id': 'b'}", content=lambda d: d["text"])
    check(outlast.Unkeyable, "key= raised KeyError: 'name' for item 0, ", key=lambda d: d["name"])
    check(ValueError, "Unicode", key=lambda d: d["id"] + "\udc80")
    check(TypeError, "makes it a text", key=lambda d: 1.5)
    check(TypeError, "had 5", items=5)
    check(TypeError, "outlast.amap", items=source())
    check(outlast.DuplicateKey, "key=…", items=[object(), object()], key=None)
    assert work_.ran == []
    with pytest.raises(outlast.UnknownRun):
        rt.get("j")


def test_whole_numbers_of_any_kind_are_keys(rt):
    class Whole:
        def __index__(self):
            return 7

    assert [r.key for r in batch(rt, [Whole()], lambda i: 1, key=lambda i: i)] == ["7"]


def test_a_list_may_change_while_the_batch_runs(rt):
    items = list(range(20))
    got = []
    for r in batch(rt, items, lambda i: time.sleep(0.002) or i, concurrency=2):
        items.pop()
        got.append(r.value)
    assert got == list(range(20))


def test_a_table_that_is_indexed_by_its_labels_is_gone_through(rt):
    class Column:
        """Of these, [0] is what is labelled 0."""

        iloc = None

        def __iter__(self):
            return iter(["first", "second"])

        def __len__(self):
            return 2

        def __getitem__(self, label):
            return {0: "second", 1: "first"}[label]

    assert [r.value for r in batch(rt, Column(), lambda i: i)] == ["first", "second"]


def test_code_is_that_under_all_decorators():
    def decorated(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args)

        return wrapper

    def one(i):
        return i

    def other(i):
        return i * 2

    for made in (decorated, lambda fn: decorated(decorated(fn)), lambda fn: functools.partial(decorated(decorated(fn)))):
        assert plan.code_digest(made(one)) == plan.code_digest(made(one)) != plan.code_digest(made(other))


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        ("abc", r"one str: give \[it\]"),
        (b"abc", r"one bytes: give \[it\]"),
        ({"a": 1}, r"a dict: give list\(d.items\(\)\)"),
        (type("DataFrame", (list,), {"columns": ["a"]})(), r'a DataFrame: give its rows, .to_dict\("records"\)'),
        (type("Table", (list,), {"columns": [], "to_pylist": list})(), r"a Table: give its rows, .to_pylist\(\)"),
    ],
)
def test_what_has_parts_that_are_no_items_is_refused_before_any_call(rt, items, wanted):
    """Bug: a text was taken as its letters, a dict as its keys and a data frame as the names of its columns."""
    with pytest.raises(TypeError, match=f"had {wanted}.*; nothing was called"):
        batch(rt, items, pytest.fail)
    with pytest.raises(outlast.UnknownRun):
        rt.get("j")
