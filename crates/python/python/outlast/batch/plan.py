"""The input of a batch, held against what is recorded: what is done, what is left, and whether that is as it was. Whatever is
wrong with the input is told before any call."""

from __future__ import annotations

import array
import dataclasses
import datetime
import dis
import functools
import hashlib
import json
import operator
import time
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

from .. import classes, identity
from ..errors import DuplicateKey, JobChanged, Unkeyable
from .options import FREE_RERUNS, Options

if TYPE_CHECKING:
    from .. import _native

#: States of an item, one byte each.
FRESH, RECORDED, ENDED, LEFT_OUT, EMITTED = range(5)


class Source:
    """The items with a key each, read once.

    A sequence that makes its items when they are asked for (a dataset) is used where it is. Anything else is listed first:
    a list may change while the batch runs, and one that is indexed by its labels has other items at its numbers.
    """

    def __init__(self, items: Iterable[Any], options: Options) -> None:
        if hasattr(items, "__aiter__"):
            raise TypeError("outlast.map wants a plain iterable, had an async one: use outlast.amap")
        if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
            raise TypeError(f"a batch wants its items as something to go through, had {items!r}")
        if isinstance(items, (str, bytes, bytearray, Mapping)) or hasattr(items, "columns"):
            raise TypeError(f"a batch wants items to go through, had {_no_items(items)}; nothing was called")
        indexed = hasattr(items, "__getitem__") and hasattr(items, "__len__")
        listed = isinstance(items, list) or hasattr(items, "iloc")
        in_place = not listed and (isinstance(items, Sequence) or indexed)
        self.items: Any = items if in_place else list(items)
        self._options = options
        #: Keys by index. None for an item that is left out because an earlier one has the same key.
        self.keys: list[str | None] = []
        # Digests of their contents, 32 bytes each.
        self._contents = bytearray()
        self._read()

    def __len__(self) -> int:
        return len(self.keys)

    def _read(self) -> None:
        key_of, dedupe = self._options.key, self._options.dedupe
        seen: dict[str, int] = {}
        counts: dict[str, int] = {}
        for index, item in enumerate(self.items):
            content = self._content(item, index)
            if key_of is not None:
                key: str | None = key_text(_asked("key", key_of, item, index), f" for item {index}")
            elif self._options.content is None:
                key = content.hex()[:32]
            else:
                key = self._digest(item, index).hex()[:32]
            assert key is not None
            self._contents += content
            if key in seen:
                if dedupe == "error":
                    own = "give each a key of its own" if key_of else "without key=…, equal items have one key: give key=… a function that tells them apart"
                    raise DuplicateKey(
                        f"items {seen[key]} and {index} have the same key {key!r}",
                        hint=f'{own}; dedupe="first" leaves the later ones out, "ordinal" numbers them',
                    )
                if dedupe == "first":
                    self.keys.append(None)
                    continue
                base = key
                while key in seen:
                    counts[base] = counts.get(base, 1) + 1
                    key = f"{base}#{counts[base]}"
            seen[key] = index
            self.keys.append(key)

    def content(self, index: int) -> bytes:
        """Returns the digest of the item's content, 32 bytes. Another content under the same key is other work."""
        return bytes(self._contents[32 * index : 32 * index + 32])

    def _content(self, item: Any, index: int) -> bytes:
        content_of = self._options.content
        return self._digest(item if content_of is None else _asked("content", content_of, item, index), index)

    def _digest(self, value: Any, index: int) -> bytes:
        options = self._options
        try:
            return identity.digest(value)
        except Unkeyable as e:
            if options.key is None:
                lacks, hint = "key", "name each item with key=…, and say with content=… what counts of it; or give data: dicts, dataclasses"
            elif options.content is not None:
                lacks, hint = "content", "let content=… give data: a text, a dict, a dataclass"
            elif options.on_change == "keep":
                # The key alone counts.
                return bytes(32)
            else:
                lacks, hint = "content", 'say with content=… what counts of an item beside its key; or on_change="keep": the key alone'
            raise Unkeyable(f"item {index} of job {options.job} has no {lacks} to know it by: {e.message}", hint=hint) from None


def _no_items(items: Any) -> str:
    """Words for a given value whose parts are no items, and for what to give instead."""
    if isinstance(items, Mapping):
        return "a dict: give list(d.items()), list(d.values()) or list(d)"
    if not hasattr(items, "columns"):
        return f"one {type(items).__name__}: give [it]"
    rows = "to_dicts()" if hasattr(items, "to_dicts") else "to_pylist()" if hasattr(items, "to_pylist") else 'to_dict("records")'
    return f"a {type(items).__name__}: give its rows, .{rows}"


def _asked(what: str, fn: Callable[[Any], Any], item: Any, index: int) -> Any:
    try:
        return fn(item)
    except Exception as e:
        text = repr(item)
        shown = text if len(text) <= 120 else f"{text[:119]}…"
        raise Unkeyable(
            f"{what}= raised {type(e).__name__}: {e} for item {index}, {shown}",
            hint="no item was run; let it give what names each item" if what == "key" else "no item was run",
        ) from e


def key_text(key: Any, where: str = "") -> str:
    """An item's key as it is recorded: a text, or a whole number of any type as text. Errors: `TypeError`, `ValueError`."""
    if isinstance(key, str):
        if not key.isascii() and any("\ud800" <= c <= "\udfff" for c in key):
            raise ValueError(f"key wants a text that is Unicode for each item, had {key!r}{where}")
        return key
    # Accepts integers of other types, too, such as numpy's.
    if hasattr(key, "__index__") and not isinstance(key, bool):
        return str(operator.index(key))
    raise TypeError(f"key wants a text or a whole number for each item, had {key!r}{where}: str(…) makes it a text")


@dataclasses.dataclass
class Plan:
    """The items that are to be run. `state` has a byte for each item, `seqs` the entry of a recorded one."""

    source: Source
    state: bytearray
    seqs: "array.array[int]"
    version: bytes
    #: Rule for done items of other code: rerun for the caller's own `version`; a digest only warns.
    on_version: str
    recorded: "_native.Items"
    #: Done and skipped items that stay as they are, dead ones, and those of other code among the done.
    done: int = 0
    skipped: int = 0
    dead: int = 0
    old_code: int = 0
    #: Done items that run again, for other content or code.
    rerun: int = 0
    vanished: int = 0

    def key(self, index: int) -> str:
        """The key of an item; the item must not be left out."""
        key = self.source.keys[index]
        assert key is not None
        return key

    def fresh(self) -> Iterator[int]:
        """The indexes of the items that are still to be run, in input order."""
        at = self.state.find(FRESH)
        while at >= 0:
            yield at
            at = self.state.find(FRESH, at + 1)

    @property
    def left(self) -> int:
        return self.state.count(FRESH)


def make(source: Source, fn: Callable[..., Any], options: Options, recorded: "_native.Items", expired: bool) -> Plan:
    """The plan. Errors: `JobChanged`, before anything is called.

    With `expired`, or `resume="never"`, nothing that is recorded counts: it is for the caller to reset.
    """
    explicit = options.version is not None
    version = version_digest(options.version) if explicit else code_digest(fn)
    plan = Plan(
        source=source,
        state=bytearray(len(source)),
        seqs=array.array("q", bytes(8 * len(source))),
        version=version,
        on_version="rerun" if explicit else "keep",
        recorded=recorded,
    )
    changed_content = 0
    anything = len(recorded) > 0
    for index, key in enumerate(source.keys):
        if key is None:
            plan.state[index] = LEFT_OUT
            continue
        if not anything:
            continue
        # Without `key=`, the key is the content's digest, so the content cannot have changed.
        content = source.content(index) if options.key is not None else None
        found = recorded.find(key, content, version)
        if found is None or expired:
            continue
        seq, standing, *_, other_content, other_code = found
        is_done = standing in ("done", "skipped")
        if other_content and is_done:
            changed_content += 1
            if options.on_change == "fail":
                raise JobChanged(
                    f"item {key!r} of job {options.job} is done, and has other content now",
                    hint='on_change="rerun" runs it again, "keep" keeps its result',
                )
        again = (other_content and options.on_change == "rerun") or (other_code and explicit)
        if standing in ("open", "failed") or (again and (is_done or standing == "dead")):
            plan.rerun += is_done
            continue
        plan.state[index] = RECORDED
        plan.seqs[index] = seq
        plan.old_code += other_code and is_done
        if standing == "dead":
            plan.dead += 1
        elif standing == "skipped":
            plan.skipped += 1
        else:
            plan.done += 1
    plan.vanished = recorded.vanished() if anything else 0
    _check(plan, options, changed_content)
    return plan


def _check(plan: Plan, options: Options, changed_content: int) -> None:
    done = plan.done + plan.skipped + plan.rerun
    if options.resume == "if_unchanged" and (plan.old_code or plan.rerun or changed_content) and not options.rerun:
        raise JobChanged(
            f"job {options.job} is not as it was: of {done} done items, {changed_content} have other content, "
            f"{plan.rerun} would run again, and {plan.old_code} have the result of other code",
            hint="rerun=True goes on, and runs again what would; or bring back the old content and code",
        )
    if plan.rerun > FREE_RERUNS * done and not options.rerun:
        raise JobChanged(
            f"{plan.rerun} of {done} done items of job {options.job} would run again, and be paid again: "
            f"their {'content' if changed_content else 'version'} changed",
            hint="rerun=True runs them; " + ('on_change="keep"' if changed_content else "the old version=…") + " keeps their results",
        )


def is_expired(ended_at: datetime.datetime | None, ttl: float | None) -> bool:
    """Whether the results of a job that ended then are too old to be reused. `ttl` counts in seconds."""
    return ttl is not None and ended_at is not None and time.time() - ended_at.timestamp() > ttl


# --- the digest of a function


def code_digest(fn: Callable[..., Any]) -> bytes:
    """The digest of a function, 32 bytes: equal while the function does the same under the same Python.

    It is of the bytecode without line numbers. Functions that it calls and prompts that it reads do not count: `version=` is
    for them.
    """
    return hashlib.sha256("\n".join(_function(fn)).encode("utf-8", "replace")).digest()


def version_digest(version: object) -> bytes:
    """The digest of a version that the caller gives, 32 bytes."""
    return hashlib.sha256(f"version {version}".encode("utf-8", "replace")).digest()


def _function(fn: Any) -> list[str]:
    if isinstance(fn, functools.partial):
        return [*_function(fn.func), _bound(fn.args, fn.keywords)]
    fn = _unwrapped(fn)
    if isinstance(fn, functools.partial):
        return _function(fn)
    if not hasattr(fn, "__code__"):
        # A callable object is digested by its class's `__call__`.
        fn = _unwrapped(getattr(type(fn), "__call__", fn))
    fn = getattr(fn, "__func__", fn)
    found = getattr(fn, "__code__", None)
    if found is None:
        return [f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', repr(type(fn)))}"]
    return [*_code(found), _bound(tuple(fn.__defaults__ or ()), dict(fn.__kwdefaults__ or {}))]


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A text for the arguments that are bound to a function, such as its defaults. Objects such as clients count only by
    their class: they are not the function's input."""
    try:
        return identity.identity(args, kwargs)
    except Unkeyable:
        return json.dumps([args, kwargs] if kwargs else args, default=lambda v: [classes.shown(type(v))], skipkeys=True)


def _unwrapped(fn: Any) -> Any:
    """Returns the function under all its decorators."""
    seen = set()
    while (under := getattr(fn, "__wrapped__", None)) is not None and id(fn) not in seen:
        seen.add(id(fn))
        fn = under
    return fn


def _code(code: CodeType) -> list[str]:
    # Uses what each instruction refers to, because indexes into tables change with a docstring.
    parts = [repr(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])]
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        parts.append(instruction.opname)
        if isinstance(value, CodeType):
            parts += _code(value)
        elif isinstance(value, frozenset):
            # The order of a set differs between processes.
            parts.append(repr(sorted(map(repr, value))))
        else:
            parts.append(repr(value))
    return parts
