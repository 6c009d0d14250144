"""The text by which a step's arguments and a batch's items are known: faithful, the same in every process, or refused."""

import functools
import itertools
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import keyed
import outlast
from batches import Work, batch
from outlast import codec, identity as identities
from outlast.identity import identity


@pytest.mark.parametrize("args, kwargs, text", keyed.KEPT, ids=lambda value: None)
def test_what_was_known_faithfully_has_the_text_that_it_had(args, kwargs, text):
    assert identity(args, kwargs) == text
    if not kwargs and len(args) == 1:
        wanted = __import__("hashlib").sha256(text.encode()).digest()
        assert identities.digest(args[0]) == wanted


@pytest.mark.parametrize("make", keyed.APART.values(), ids=keyed.APART)
def test_what_differs_is_known_apart(make):
    """Bug: plain objects were known by their class, arrays and frames by their shortened repr, aliases and bound built-in
    methods by a name that others have, models by a JSON that leaves out.
    Consequence: a step or an item got the recorded result of another one, silently.
    Cause: whatever JSON does not have was known by its `repr`, or by its class."""
    for a, b in itertools.combinations(make(), 2):
        assert identity((a,), {}) != identity((b,), {}), (a, b)


@pytest.mark.parametrize("make", keyed.SAME.values(), ids=keyed.SAME)
def test_what_reads_the_same_is_known_as_the_same(make):
    a, b = make()
    assert identity((a,), {}) == identity((b,), {})


@pytest.mark.parametrize("make, words", keyed.REFUSED.values(), ids=keyed.REFUSED)
def test_what_cannot_be_written_faithfully_is_refused(make, words):
    for value in (make(), [make()], {"k": make()}):
        with pytest.raises(outlast.Unkeyable, match=words) as raised:
            identity(("plain",), {"fn": value})
        assert "argument fn has no faithful text" in raised.value.message
        with pytest.raises(outlast.Unkeyable, match=words):
            identities.digest(value)


def test_all_texts_are_the_same_in_every_process():
    """Bug: a set in a dict whose keys are no texts, or in a model, was known by its order, which a process's hash seed decides."""
    told = []
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, keyed.__file__], env=environment, capture_output=True, text=True, cwd=Path(__file__).parent)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    assert told[0] == told[1] == json.loads(json.dumps(keyed.texts()))


def test_no_library_is_imported_for_a_key():
    program = "import sys, outlast.codec as c; c.identity(([b'x', {1}],), {}); print(*sorted({'numpy', 'pandas', 'pyarrow', 'torch', 'PIL', 'pydantic'} & {*sys.modules}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True).strip() == ""


# --- torch is gigabytes: a class with what `libraries._torch` asks of a tensor stands in


class Tensor:
    __module__ = "torch"
    layout, is_quantized, is_lazy = "strided", False, False

    def __init__(self, array, device="cpu"):
        self.array, self.device = array, types.SimpleNamespace(type=device)
        self.dtype, self.shape = f"torch.{array.dtype}", array.shape

    def __repr__(self):
        return "tensor([0, 1, ..., 9])"

    def detach(self):
        return self

    cpu = resolve_conj = resolve_neg = detach

    def contiguous(self):
        return Tensor(np.ascontiguousarray(self.array))

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize


def test_a_tensor_is_known_by_its_content(monkeypatch):
    torch = types.ModuleType("torch")
    torch.Tensor, torch.strided = Tensor, "strided"
    monkeypatch.setitem(sys.modules, "torch", torch)
    big = np.arange(10_000)
    made = [big, big[::-1], big.astype("i4"), big.reshape(100, 100), big[:0]]
    assert len({identity((Tensor(array),), {}) for array in made}) == len(made)
    assert identity((Tensor(big[::2]),), {}) == identity((Tensor(big[::2].copy()),), {})
    for tensor, words in ((Tensor(big, "meta"), "on meta has no plain content"), (Tensor(big), "layout sparse")):
        tensor.layout = "sparse" if words == "layout sparse" else "strided"
        with pytest.raises(outlast.Unkeyable, match=words):
            identity((tensor,), {})


# --- where keys are made


class Client:
    def __init__(self):
        self.connections = [object()]

    def ask(self, question):
        return question.upper()


def ask(client, question):
    return client.ask(question)


def test_a_step_says_which_argument_has_no_key_and_what_to_do(rt):
    with rt.run("r") as run:
        for call in (lambda *args: run.step("ask", ask, *args), lambda *args: run.resolve("ask", *args, result=1)):
            with pytest.raises(outlast.Unkeyable) as raised:
                call(Client(), "why")
            assert raised.value.code == "unkeyable" and isinstance(raised.value, TypeError)
            assert raised.value.message == (
                "step 'ask' has no key: argument 1 has no faithful text: test_keys.Client does not say what it holds"
            )
            assert "key=…" in raised.value.hint and "functools.partial(fn, client)" in raised.value.hint
    for _ in range(2):
        with rt.run("hints") as run:
            assert run.step("ask", ask, Client(), "why", key="ask") == "WHY"
            assert run.step("ask", functools.partial(ask, Client()), "why") == "WHY"
            assert run.step("ask", Client().ask, "why") == "WHY"


def test_reversed_objects_do_not_get_each_others_results(rt):
    """Bug: a reversed list of plain objects gave `[(3, 1), (2, 2), (1, 3)]`, silently. Cause: all had one key, by their class."""

    def life(docs, **options):
        with rt.run("r") as run:
            return [(doc.title, run.step("read", lambda doc: doc.title, doc, **options)) for doc in docs]

    with pytest.raises(outlast.Unkeyable, match="keyed.Plain"):
        life([keyed.Plain(i) for i in (1, 2, 3)])
    # The same with what says all that it holds.
    again = [keyed.Point(i) for i in (1, 2, 3)]
    with pytest.raises(ZeroDivisionError):
        with rt.run("p") as run:
            [run.step("read", lambda p: p.x, p) for p in again]
            raise ZeroDivisionError
    with rt.run("p") as run:
        assert [run.step("read", lambda p: p.x, p) for p in again[::-1]] == [3, 2, 1]


def test_a_loop_is_not_counted_by_an_address(rt):
    with rt.run("r") as run:
        with pytest.raises(outlast.Unkeyable):
            run.loop(Client())
        assert [run.loop(key) for key in ("a", 1, "a", ("b", 2))] == [1, 2, 2, 3]


def test_an_item_without_a_key_is_told_before_any_call(rt):
    work = Work(lambda doc: doc.title)
    docs = [keyed.Plain("a"), keyed.Plain("b")]
    with pytest.raises(outlast.Unkeyable, match="item 0 of job j has no key to know it by: keyed.Plain(.|\n)*key=…(.|\n)*content=…"):
        batch(rt, docs, work, key=None)
    with pytest.raises(outlast.Unkeyable, match="item 0 of job j has no content to know it by(.|\n)*content=…(.|\n)*on_change"):
        batch(rt, docs, work, key=lambda doc: doc.title)
    with pytest.raises(outlast.Unkeyable, match="item 1 of job j has no content"):
        batch(rt, docs, work, key=lambda doc: doc.title, content=lambda doc: doc if doc.title == "b" else 1)
    assert work.ran == []


def test_other_content_of_objects_and_arrays_runs_again(rt):
    """Bug: `map(key=…)` kept the old results for objects and arrays of other content. Cause: their content was their class."""

    def life(docs, **options):
        return [r.value for r in batch(rt, docs, lambda d: d.body, key=lambda d: d.title, rerun=True, **options)]

    docs = lambda body: [keyed.Plain("a", body), keyed.Plain("b", "same")]
    assert life(docs("old"), content=lambda d: d.body) == ["old", "same"]
    assert life(docs("new"), content=lambda d: d.body) == ["new", "same"]
    assert life(docs("newer"), on_change="keep") == ["new", "same"]

    def arrays(last):
        big = np.arange(5_000)
        big[2_500] = last
        return [r.value for r in batch(rt, [big], lambda a: int(a[2_500]), job="arrays", key=lambda a: "a", rerun=True)]

    assert (arrays(1), arrays(2), arrays(2)) == ([1], [2], [2])


def test_an_input_of_a_generator_that_has_no_key_is_told(home):
    def read(docs):
        for doc in docs:
            yield doc.title

    with pytest.raises(outlast.Unkeyable, match="input 1 of the generator has no key to know it by: keyed.Plain"):
        list(outlast.resume_or_start("g", home / "g.jsonl", read, ([keyed.Shown("a"), keyed.Plain("b")],)))


def test_the_clients_of_providers_are_no_input():
    """Clients of providers are made anew in each life and handed to steps: recorded stores know them by their class."""
    import anthropic
    import openai
    from google import genai

    made = [openai.OpenAI(api_key="k"), openai.AsyncOpenAI(api_key="k"), anthropic.Anthropic(api_key="k"), genai.Client(api_key="k")]
    assert [json.loads(identity((client,), {})) for client in made] == [
        [["openai.OpenAI"]], [["openai.AsyncOpenAI"]], [["anthropic.Anthropic"]], [["google.genai.client.Client"]],
    ]  # fmt: skip


def test_a_client_of_the_state_is_known_by_its_place_and_namespace(rt):
    text = lambda *args, **more: identity((outlast.Statehouse(*args, store=rt, **more),), {})
    assert text() == text() == f'[["outlast.state.statehouse.Statehouse", "<outlast.Statehouse {rt.place}>"]]'
    assert text(namespace="other") != text()


def test_a_function_may_bring_a_client_along(rt, capfd):
    """A bound object is no input of the function: its class counts in the code's digest, and it is refused nowhere."""
    for _ in range(2):
        out = batch(rt, ["a", "b"], functools.partial(ask, Client()))
        assert [r.value for r in out] == ["A", "B"]
    assert "old code" not in capfd.readouterr().err


def test_the_extension_finds_the_function_where_it_looks():
    assert codec.identity is identity
