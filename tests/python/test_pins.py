"""Pins of the interfaces that programs build on: the package's public names, their signatures, errors with their codes, and the lines of a
JSONL file. What was found stands in pins.txt beside; `OUTLAST_PINS=write` writes it anew, which is to be meant."""

import difflib
import inspect
import json
import os
from pathlib import Path

import outlast

RECORDED = Path(__file__).with_name("pins.txt")
# Read when the module is loaded: each test's environment is cleared of ours.
WRITE = os.environ.get("OUTLAST_PINS") == "write"

#: The classes that programs make themselves; the others' arguments are ours.
MADE_BY_USERS = {"ApprovalDenied", "Budget", "Error", "JsonlStore", "Operation", "Retry", "Statehouse", "WouldRepay"}


def default(value):
    """A default as it is typed; of one that is an object of ours, only that there is one."""
    return repr(value) if value is None or isinstance(value, (bool, int, float, str, tuple)) else "…"


def signature(function):
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return "(…)"
    words, bare = [], False
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            bare = True
        if p.kind is p.KEYWORD_ONLY and not bare:
            words.append("*")
            bare = True
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        words.append(star + p.name + ("" if p.default is p.empty else "=" + default(p.default)))
    return f"({', '.join(words)})"


def members(cls):
    """Public members, also those that a class of ours hands down, and none of Python's own."""
    special = {"__call__", "__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__aiter__", "__await__", "__len__", "__next__",
               "__anext__", "__getitem__"}  # fmt: skip
    ours = [c for c in cls.__mro__ if c.__module__.startswith("outlast")]
    for name in sorted({name for c in ours for name in vars(c)}):
        if name.startswith("_") and name not in special:
            continue
        value = inspect.getattr_static(cls, name)
        if isinstance(value, (staticmethod, classmethod)):
            yield f".{name}{signature(value.__func__)} {type(value).__name__}"
        elif callable(value):
            yield f".{name}{signature(value)}{' async' if inspect.iscoroutinefunction(value) else ''}"
        elif isinstance(value, (str, int, float, bool, type(None))):
            yield f".{name} = {value!r}"
        else:
            yield f".{name}"
    fields = getattr(cls, "__dataclass_fields__", {})
    if fields:
        yield f"fields {', '.join(fields)}"


def test_public_names_keep_their_signatures_and_codes(rt):
    lines = ["__all__ " + " ".join(sorted(outlast.__all__))]
    for name in sorted(outlast.__all__):
        value = getattr(outlast, name)
        if inspect.isclass(value):
            bases = [b.__name__ for b in value.__mro__[1:] if b.__name__ in outlast.__all__ or issubclass(b, BaseException)]
            made = signature(value) if name in MADE_BY_USERS else ""
            lines.append(f"{name}{made}{' of ' if bases else ''}{' '.join(bases)}")
            lines += [f"  {line}" for line in members(value)]
        else:
            lines.append(f"{name}{signature(value)}{' async' if inspect.iscoroutinefunction(value) else ''}")
    with rt.run("r", budget=outlast.Budget(usd=1)) as run:
        parts = {"run.state": run.state, "run.context": run.context}
    parts |= {"view.budget": rt.get("r").budget, "view.budget.usd": rt.get("r").budget.usd}
    parts["batch.stats"] = outlast.map(["a"], str, job="j", store=rt).wait().stats
    for name, value in parts.items():
        lines += [name, *(f"  {line}" for line in members(type(value)))]
    found = "\n".join(lines) + "\n"
    if WRITE:
        RECORDED.write_text(found)
    recorded = RECORDED.read_text()
    changed = "\n".join(difflib.unified_diff(recorded.split("\n"), found.split("\n"), "recorded", "found", lineterm="", n=0))
    assert not changed, changed


def test_a_files_lines_keep_their_members(home):
    path = home / "runs" / "docs.jsonl"

    def process(documents):
        for doc in documents:
            yield {"of": doc}

    list(outlast.resume_or_start(job_id="j", store=outlast.JsonlStore(str(path)), generator_fn=process, generator_args=(["a", "b"],)))
    first = json.loads(path.read_text().split("\n")[0])
    assert {k: type(v).__name__ for k, v in first.items()} == {"job_id": "str", "index": "int", "result": "dict", "attempt": "int", "at": "str"}
    assert list(first) == ["job_id", "index", "result", "attempt", "at"]
    assert (home / "runs" / "docs.jsonl.outlast.db").exists()

    def fails(item):
        if item == "b":
            raise ValueError("no")
        return item

    out = outlast.map(["a", "b"], fails, job="m", key=str, store=home / "m.db", out=str(home / "out.jsonl"), retries=outlast.Retry(0))
    list(out)
    lines = [json.loads(line) for line in (home / "out.jsonl").read_text().splitlines()]
    shapes = [{k: type(v).__name__ for k, v in line.items()} for line in lines]
    assert [" ".join(f"{k}:{v}" for k, v in s.items()) for s in shapes] == [
        "key:str ok:bool value:str error:NoneType attempts:int cost_usd:float started:str ended:str",
        "key:str ok:bool value:NoneType error:str attempts:int cost_usd:float started:str ended:str",
    ]
