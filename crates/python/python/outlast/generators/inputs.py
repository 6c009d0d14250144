"""The inputs of a generator, and how it takes them.

Where each result follows exactly one plain pull, a result belongs to an input, and a resume gives the generator
only the inputs without one. Whatever else a generator does with its inputs is noticed here.

A generator that takes another input without a result may have left the last one out (`continue`), or may look ahead: then
it takes its inputs in the same order, and what it took waits in a variable. So its code is read: no variable that is set in
the loop is read in a later turn of it, nothing that could hold an input is in reach, and nothing is yielded behind the
loop. Whatever is not certain is no.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import gc
import inspect
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from types import CodeType, FrameType
from typing import Any, Callable

from .. import identity
from ..errors import Unkeyable

#: Marks the end: there are no more inputs, or no more results.
END: Any = object()

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_HOLDERS = (MutableMapping, MutableSequence, MutableSet, Iterator)


def chosen(args: tuple[Any, ...], kwargs: dict[str, Any], items: int | str | None) -> int | str | None:
    """The position or name of the argument that has the inputs: `items` if it is given, else that of the first argument that
    is iterable and neither text nor a dict. None if there is none. Errors: `ValueError` where `items` names no argument."""
    if items is not None:
        try:
            kwargs[items] if isinstance(items, str) else args[items]
        except (KeyError, IndexError):
            raise ValueError(f"items={items!r} names none of the generator's arguments") from None
        return items
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for place, value in places:
        if isinstance(value, (str, bytes, bytearray, Mapping)):
            continue
        if isinstance(value, (Iterable, AsyncIterable)):
            return place
    return None


def digest(value: Any, index: int) -> str:
    """An input as the record knows it: 64 hex digits, the same in every life. Errors: `Unkeyable`."""
    try:
        return identity.digest(value).hex()
    except Unkeyable as e:
        raise Unkeyable(
            f"input {index} of the generator has no key to know it by: {e.message}",
            hint="give the generator data: texts, dicts, dataclasses; it can make the objects of them itself",
        ) from None


@dataclasses.dataclass
class Watch:
    """Source of a job's inputs, and the functions of the job by which `Pulls` takes them."""

    source: Any
    take: Callable[[], Any]
    take_async: Callable[[], Any]
    other: Callable[[str], None]
    begun: bool = False

    def begin(self) -> None:
        if self.begun:
            self.other("goes through its inputs more than once")
        self.begun = True

    def pulled(self) -> Any:
        value = self.take()
        if value is END:
            raise StopIteration
        return value

    async def pulled_async(self) -> Any:
        value = await self.take_async()
        if value is END:
            raise StopAsyncIteration
        return value


class Inputs:
    """The iterable that the generator gets in place of the one that was given, so that the job hands out the inputs."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __iter__(self) -> "Pulls":
        self._watch.begin()
        return Pulls(self._watch)

    def __aiter__(self) -> "Pulls":
        return iter(self)

    # Supports `next(inputs)` without a loop.
    def __next__(self) -> Any:
        self._watch.begun = True
        return self._watch.pulled()

    async def __anext__(self) -> Any:
        self._watch.begun = True
        return await self._watch.pulled_async()

    def __len__(self) -> int:
        self._watch.other("asks how many inputs there are")
        return len(self._watch.source)

    def __bool__(self) -> bool:
        # A test for emptiness, as in `if not documents: return`, does not change a result.
        return bool(self._watch.source)

    def __getitem__(self, at: Any) -> Any:
        self._watch.other("takes its inputs by index")
        return self._watch.source[at]

    def __contains__(self, value: Any) -> bool:
        self._watch.other("looks for a value among its inputs")
        return value in self._watch.source

    def __reversed__(self) -> Any:
        self._watch.other("goes through its inputs backwards")
        return reversed(self._watch.source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._watch.other(f"uses .{name} of its inputs")
        return getattr(self._watch.source, name)


class Pulls:
    """The iterator over `Inputs`, plain or asynchronous."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._looked = False

    def __iter__(self) -> "Pulls":
        return self

    def __next__(self) -> Any:
        if not self._looked:
            self._looked = True
            through = _reader(self)
            if through:
                self._watch.other(f"reads its inputs through {through}, which counts or pairs them")
        return self._watch.pulled()

    def __aiter__(self) -> "Pulls":
        return self

    async def __anext__(self) -> Any:
        return await self._watch.pulled_async()


def _reader(pulls: Pulls) -> str | None:
    """Returns the name of a counting or pairing iterator around this one: its results depend on the inputs left out."""
    for holder in gc.get_referrers(pulls):
        cls = type(holder)
        if cls in (enumerate, zip) or cls.__module__ == "itertools":
            return cls.__name__
    return None


# --- inputs that are left out


def is_left_out(generator: Any) -> bool:
    """Whether `generator`, which now takes its next input, certainly gives no result any more for the input that it took
    last."""
    if not inspect.isgenerator(generator) or generator.gi_frame is None:
        return False
    frame = generator.gi_frame
    held = _read_in_turns(frame.f_code, frame.f_lasti)
    return held is not None and not any(isinstance(value, _HOLDERS) for value in _values(frame, *held))


def _values(frame: FrameType, names: frozenset[str], attributes: frozenset[str]) -> Iterator[Any]:
    """Yields the objects that the loop can reach without having made them: variables, and attributes of objects in them."""
    for place in (frame.f_locals, frame.f_globals):
        for value in (place[name] for name in names if name in place):
            yield value
            own = getattr(value, "__dict__", {})
            yield from (own[name] for name in attributes if name in own)


@functools.lru_cache(maxsize=64)
def _read_in_turns(code: CodeType, at: int) -> tuple[frozenset[str], frozenset[str]] | None:
    """The names that the loop over the inputs reads and does not set, and the attributes that it reads. None where it may
    carry something from turn to turn.

    `at` is the offset of the instruction by which the loop takes an input.
    """
    body = list(dis.get_instructions(code))
    index = {instruction.offset: i for i, instruction in enumerate(body)}
    handlers = _handlers(code)
    here = index.get(at)
    if here is None or body[here].opname != "FOR_ITER" or handlers is None:
        return None
    follow: list[list[int]] = []
    for i, instruction in enumerate(body):
        is_jump = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        jumps = [index[instruction.argval]] if is_jump else []
        ends = instruction.opname in _ENDS or instruction.opname.startswith(("JUMP_F", "JUMP_B", "JUMP_A"))
        caught = [index[to] for first, last, to in handlers if first <= instruction.offset < last]
        follow.append(jumps + caught + ([] if ends or i + 1 == len(body) else [i + 1]))
    turn, behind = _reached(follow, here + 1, here), _reached(follow, index[body[here].argval], here)
    if any(body[i].opname == "YIELD_VALUE" for i in behind):
        return None
    # Variables that an inner function shares count as local ones; those of an outer function are out of sight.
    outer = [i for i in turn if body[i].argval in code.co_freevars]
    said = [_said(instruction, code.co_cellvars) for instruction in body]
    live = _live(follow, said)[here]
    written = {name for i in turn for does, name in said[i] if does == "set"}
    if live & written or any(body[i].opname in ("STORE_GLOBAL", "STORE_ATTR") for i in turn):
        return None
    if any(body[i].opname == "STORE_DEREF" for i in outer):
        return None
    reads = {name for i in turn for does, name in said[i] if does == "read"}
    reads |= {str(body[i].argval) for i in turn if body[i].opname == "LOAD_GLOBAL"} | {str(body[i].argval) for i in outer}
    attributes = {str(body[i].argval) for i in turn if body[i].opname in ("LOAD_ATTR", "LOAD_METHOD")}
    return frozenset(reads - written), frozenset(attributes)


def _handlers(code: CodeType) -> list[tuple[int, int, int]] | None:
    """The code that runs on an exception: (first, last, handler). None where this version of Python does not say."""
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    return None if entries is None else [(entry.start, entry.end, entry.target) for entry in entries]


def _said(instruction: dis.Instruction, shared: tuple[str, ...]) -> list[tuple[str, str]]:
    """Lists the reads and writes of local variables by an instruction, in order. Later versions of Python do two in one."""
    name, value = instruction.opname, instruction.argval
    if "_FAST" not in name and not (value in shared and name in ("LOAD_DEREF", "LOAD_CLOSURE", "STORE_DEREF", "DELETE_DEREF")):
        return []
    values = value if isinstance(value, tuple) else (value,)
    words = [word for word in name.split("_") if word in ("LOAD", "STORE", "DELETE")]
    does = ["set" if word != "LOAD" or name == "LOAD_FAST_AND_CLEAR" else "read" for word in words]
    return list(zip(does * len(values) if len(does) < len(values) else does, values))


def _reached(follow: list[list[int]], start: int, but: int) -> set[int]:
    found, ahead = set(), [start]
    while ahead:
        i = ahead.pop()
        if i not in found and i != but:
            found.add(i)
            ahead += follow[i]
    return found


def _live(follow: list[list[int]], said: list[list[tuple[str, str]]]) -> list[set[str]]:
    """For each instruction, the variables that may be read at or after this instruction before they are set."""
    live: list[set[str]] = [set() for _ in follow]
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(follow))):
            now = set().union(*(live[n] for n in follow[i]))
            for does, name in reversed(said[i]):
                (now.add if does == "read" else now.discard)(name)
            changed, live[i] = changed or now != live[i], now
    return live
