"""Values and what they are known by, in tables: `python keyed.py` prints the texts, for another process to compare."""

import array
import asyncio
import collections
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import ipaddress
import itertools
import json
import logging
import operator
import pathlib
import random
import re
import sys
import threading
import types
import typing
import uuid
import zoneinfo

import numpy as np
import pandas as pd
import PIL.Image
import pyarrow as pa
import pydantic

from outlast.identity import identity


class Color(enum.Enum):
    RED = "red"
    BLUE = object()


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    A = 1
    B = 2


class Prompt(str):
    pass


class Table(dict):
    pass


@dataclasses.dataclass
class Point:
    x: int
    near: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Held:
    what: object


Pair = collections.namedtuple("Pair", "a b")


class Model(pydantic.BaseModel):
    n: int = 1
    at: datetime.date = datetime.date(2026, 1, 1)
    inner: "list[Model]" = []
    color: Color = Color.RED
    url: pydantic.HttpUrl | None = None


class Base(pydantic.BaseModel):
    a: int = 1


class Child(Base):
    b: int = 1


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="allow")
    hidden: int = pydantic.Field(1, exclude=True)
    secret: pydantic.SecretStr = pydantic.SecretStr("")
    tags: set[str] = set()
    base: Base = Base()
    what: typing.Any = None
    short: str = ""

    @pydantic.field_serializer("short")
    def _short(self, text):
        return text[:3]


class Plain:
    def __init__(self, title, body=None):
        self.title, self.body = title, body

    def method(self):
        pass


class Shown(Plain):
    def __repr__(self):
        return f"Shown({self.title!r}, {self.body!r})"


class Titled(Plain):
    def __eq__(self, other):
        return vars(self) == vars(other)

    def __repr__(self):
        return f"<Titled {self.title}>"


class Slotted:
    __slots__ = ("title", "__body")

    def __init__(self, title, body):
        self.title, self.__body = title, body

    def __repr__(self):
        return f"<Slotted {self.title}>"


class Numbered:
    def __repr__(self):
        return f"<Numbered {id(self):#x}>"


class Failing:
    def __repr__(self):
        raise ValueError


class Empty:
    def __call__(self):
        pass


class Noted(np.ndarray):
    pass


def nested():
    def inner():
        pass

    return inner


def holding(x, y=1):
    def inner(z=y):
        return x

    return inner


def with_default(x):
    def inner(x=x):
        return x

    return inner


def image(mode="RGB", color="red", **info):
    made = PIL.Image.new(mode, (2, 2), color)
    made.info.update(info)
    return made


def frames(*colors):
    file = io.BytesIO()
    first, *rest = (PIL.Image.new("RGB", (2, 2), color) for color in colors)
    first.save(file, "TIFF", save_all=True, append_images=rest)
    return PIL.Image.open(file)


def noted():
    made = np.arange(2).view(Noted)
    made.unit = "m"
    return made


def ring():
    made = [1]
    made.append(made)
    return made


def deep():
    return functools.reduce(lambda inner, _: [inner], range(100_000), [])


def stamped(*texts):
    return np.array(texts, dtype="M8[ns]")


UTC, BERLIN = datetime.timezone.utc, zoneinfo.ZoneInfo("Europe/Berlin")
NOON = datetime.datetime(2026, 1, 1, 12)
BIG = np.arange(10_000)
FRAME = pd.DataFrame({"a": range(100), "b": ["x", "y"] * 50})
NAN = float("nan")

#: What was known faithfully before there was `identity.py`, and its text then: recorded stores have these.
KEPT = [
    (("a", 1, None, 2.5, True), {}, "('a', 1, None, 2.5, True)"),
    (("ü\ud800",), {}, "('ü\\ud800',)"),
    ((-0.0, NAN, 2**80), {}, "(-0.0, nan, 1208925819614629174706176)"),
    (([1, "a", None, 2.5, True],), {}, '[[1, "a", null, 2.5, true]]'),
    (({"b": 1, "a": [{"c": None}]},), {}, '[{"a": [{"c": null}], "b": 1}]'),
    ((1,), {"y": "ü", "x": (2,)}, '[[1], {"x": [2], "y": "\\u00fc"}]'),
    (([NAN, -0.0, float("inf"), 2**80],), {}, "[[NaN, -0.0, Infinity, 1208925819614629174706176]]"),
    (({1: 2, 10: 3},), {}, '[{"1": 2, "10": 3}]'),
    (({(1, 2): 3},), {}, "({(1, 2): 3},)"),
    (({"a": 1, 2: "ü"},), {}, "({'a': 1, 2: '\\xfc'},)"),
    (({NOON.date(): 3},), {}, "({datetime.date(2026, 1, 1): 3},)"),
    (({Color.RED: Point(1)},), {}, "({<Color.RED: 'red'>: Point(x=1, near=[])},)"),
    ((b"x",), {}, '[["builtins.bytes", "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"]]'),
    (({"b", "a"},), {}, '[["builtins.set", ["\\"a\\"", "\\"b\\""]]]'),
    ((Prompt("p"), Table(a=1), Level.LOW, Pair(1, 2)), {}, '["p", {"a": 1}, 1, [1, 2]]'),
    ((NOON,), {}, '[["datetime.datetime", "datetime.datetime(2026, 1, 1, 12, 0)"]]'),
    ((decimal.Decimal("1.10"),), {}, '[["decimal.Decimal", "Decimal(\'1.10\')"]]'),
    ((uuid.UUID(int=5),), {}, '[["uuid.UUID", "UUID(\'00000000-0000-0000-0000-000000000005\')"]]'),
    ((pathlib.PurePosixPath("/a"),), {}, '[["pathlib.PurePosixPath", "PurePosixPath(\'/a\')"]]'),
    ((Color.RED,), {}, '[["keyed.Color", "<Color.RED: \'red\'>"]]'),
    ((Point(1, [Point(2)]),), {}, '[["keyed.Point", {"near": [["keyed.Point", {"near": [], "x": 2}]], "x": 1}]]'),
    ((Model(n=2, url="https://x.org/a"),), {}, '[["keyed.Model", {"at": "2026-01-01", "color": "red", "inner": [], "n": 2, "url": "https://x.org/a"}]]'),
    ((Shown("t", [2.5]),), {}, '[["keyed.Shown", "Shown(\'t\', [2.5])"]]'),
    ((Empty(), object()), {}, '[["keyed.Empty", "keyed."], ["builtins.object"]]'),
    ((len, nested(), Point), {}, '[["builtins.builtin_function_or_method", "builtins.len"], ["builtins.function", "keyed.nested.<locals>.inner"], ["builtins.type", "keyed.Point"]]'),
    ((functools.partial(max, 1, key=len),), {}, '[["functools.partial", ["builtins.builtin_function_or_method", "builtins.max"], [1], {"key": ["builtins.builtin_function_or_method", "builtins.len"]}]]'),
]  # fmt: skip

#: Functions that make a value, and the values that differ from it and from each other.
APART = {
    "numbers": lambda: [0, 0.0, -0.0, False, "0", None, NAN, 2**80, 2**80 + 1],
    "texts": lambda: ["a", "A", "a ", b"a", bytearray(b"a")],
    "memory": lambda: [memoryview(b"ab"), memoryview(b"ac"), memoryview(np.arange(2)), memoryview(np.arange(2).astype("u8"))],
    "buffers": lambda: [array.array("i", [1]), array.array("i", [2]), array.array("l", [1]), (ctypes.c_int * 1)(1), (ctypes.c_int * 1)(2)],
    "times": lambda: [NOON, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=BERLIN), NOON.replace(fold=1), NOON.date(), NOON.time()],
    "values": lambda: [decimal.Decimal("1"), decimal.Decimal("1.0"), fractions.Fraction(1), uuid.UUID(int=1), ipaddress.ip_address("0.0.0.1")],
    "paths": lambda: [pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b"), pathlib.PureWindowsPath("a")],
    "patterns": lambda: [re.compile("a"), re.compile("a", re.I), re.compile("0x12345678"), re.compile("0x12345679")],
    "sets": lambda: [{"a", "b"}, frozenset({"a", "b"}), {"a"}, {("a",), "b"}],
    "enums": lambda: [Color.RED, Color.BLUE, Mode.A, Mode.A | Mode.B],
    "classes of values": lambda: [Point(1), Point(2), Point(1, [1]), Held(1), Held(Point(1)), Held(BIG), Held(BIG[::-1])],
    "models": lambda: [Model(), Model(n=2), Model(inner=[Model()]), Base(), Child()],
    "what models do not say": lambda: [
        Loose(), Loose(hidden=2), Loose(secret=pydantic.SecretStr("a")), Loose(secret=pydantic.SecretStr("b")), Loose(tags={"a"}),
        Loose(base=Child()), Loose(base=Child(b=2)), Loose(what=BIG), Loose(what=BIG[::-1]), Loose(short="abcd"), Loose(short="abce"),
        Loose(more=1), Loose(more={2}),
    ],
    "objects": lambda: [Shown("a"), Shown("0x12345678"), Shown("0x12345679"), Shown("b"), Shown("a", "b"), operator.itemgetter(1), operator.itemgetter(2), range(3), slice(3), 1j],
    "containers": lambda: [collections.deque([1]), collections.deque([2]), types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), {"a": 1}.items()],
    "errors": lambda: [ValueError("a"), ValueError("b"), KeyError("a")],
    "types": lambda: [int, str, list[int], list[str], typing.List[int], typing.Optional[int], int | str],
    "functions": lambda: [len, max, nested, nested(), str.upper, functools.partial(max, 1), functools.partial(max, 2), [1].append, [2].append],
    "methods": lambda: [Shown("a").method, Shown("b").method, Point(1).__eq__, Point(2).__eq__],
    "dicts": lambda: [{(1, 2): 3}, {(1, 2): 4}, {(1, 3): 3}, {(1,): "0x12345678"}, {(1,): "0x87654321"}, {1: "a", "1": "a"}, {(1,): {"a", "b"}}, {(1,): BIG}, {(1,): BIG[::-1]}],
    "arrays": lambda: [BIG, BIG[::-1], np.where(BIG == 5_000, 0, BIG), BIG.astype("i4"), BIG.astype(">i4"), BIG.reshape(100, 100), np.array(5), np.array([0.0]), np.array([-0.0]), np.array([1e-9]), np.array([2e-9])],
    "arrays of objects": lambda: [np.array([1, "a"], object), np.array(["a", 1], object), np.array([{1}], object), np.array(["a"]), np.array(["b"])],
    "arrays of other types": lambda: [
        stamped("2026-01-01"), stamped("2026-01-02"), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
        np.array([1], "g"), np.array([2], "g"), np.array([1j]), np.array([b"a"]), np.array([True]),
    ],
    "masked": lambda: [np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0]), np.ma.array([1, 3], mask=[0, 1])],
    "numbers of numpy": lambda: [np.int64(1), np.int32(1), np.float32(1.5), np.datetime64("2026"), np.dtype("i4"), np.add],
    "frames": lambda: [
        FRAME, FRAME[::-1], FRAME.rename(columns={"a": "c"}), FRAME.astype({"a": "i4"}), FRAME.astype({"b": "category"}), FRAME.astype({"a": "Int64"}),
        FRAME.set_index("a"), FRAME.reset_index(names="i"), FRAME.assign(b=FRAME.b.where(FRAME.a != 50)),
    ],
    "series": lambda: [FRAME.a, FRAME.a[::-1], FRAME.a.replace(50, 0), FRAME.a.rename("c"), FRAME.b, FRAME.index, pd.Index(FRAME.a), pd.MultiIndex.from_frame(FRAME)],
    "columns": lambda: [
        pd.Series(pd.date_range("2026", periods=3)), pd.Series(pd.date_range("2026", periods=3, tz="UTC")), pd.Series(pd.period_range("2026", periods=3)),
        pd.Series(pd.interval_range(0, 3)), pd.array([1, None], "Int64"), pd.array([1, 2], "Int64"), pd.Categorical(["a"]), pd.Categorical(["a"], ["a", "b"]),
    ],
    "values of pandas": lambda: [pd.Timestamp("2026"), pd.Timestamp("2026", tz="UTC"), pd.Timedelta(1), pd.Timedelta(2), pd.NaT, pd.NA],
    "tables": lambda: [
        pa.table({"a": [1, 2]}), pa.table({"a": [2, 1]}), pa.table({"b": [1, 2]}), pa.table({"a": [1, None]}), pa.table({"a": ["x", "y"]}),
        pa.table({"a": [1, 2]}).replace_schema_metadata({"k": "v"}), pa.table({"a": [[1], [2]]}), pa.record_batch({"a": [1, 2]}),
    ],
    "values of pyarrow": lambda: [pa.array(range(100)), pa.array(range(100)[::-1]), pa.array(50 * (i == 50) + i for i in range(100)), pa.schema([("a", pa.int64())]), pa.field("a", pa.int64()), pa.int64(), pa.scalar(1), pa.py_buffer(b"x")],
    "images": lambda: [
        image(), image(color="blue"), image("L", 5), image("P", 1), image().resize((2, 1)), image(exif=b"turned"), frames("red", "blue"), frames("red", "green"),
    ],
}  # fmt: skip

#: Values that are made otherwise and are the same to whoever reads them.
SAME = {
    "a tuple": lambda: ((1, 2), [1, 2]),
    "a named tuple": lambda: (Pair(1, 2), [1, 2]),
    "a text of a class": lambda: ([Prompt("a")], ["a"]),
    "a dict of a class": lambda: (Table(a=1), {"a": 1}),
    "an order of keys": lambda: ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a number as a key": lambda: ({1: 2}, {"1": 2}),
    "an order in a set": lambda: ({f"{i}" for i in range(99)}, {f"{98 - i}" for i in range(99)}),
    "an order in memory": lambda: (np.asfortranarray(BIG.reshape(100, 100)), BIG.reshape(100, 100)),
    "strides": lambda: (BIG[::2], np.ascontiguousarray(BIG[::2])),
    "a copy of a frame": lambda: (FRAME, FRAME.copy()),
    "chunks": lambda: (pa.chunked_array([[1], [2, 3]]), pa.chunked_array([[1, 2, 3]])),
    "a slice": lambda: (pa.array([0, 1, 2])[1:], pa.array([0, 1, 2])[1:3]),
    "a seek": lambda: (frames("red", "blue"), frames("red", "blue")),
}

#: Values that cannot be written faithfully, and what the error says of each.
REFUSED = {
    "a plain object": (lambda: Plain("a"), "keyed.Plain does not say what it holds"),
    "one in a list": (lambda: [1, {"a": Plain("a")}], "keyed.Plain does not say"),
    "one in a dataclass": (lambda: Held(Plain("a")), "keyed.Plain does not say"),
    "one in a model": (lambda: Loose(what=Plain("a")), "keyed.Plain does not say"),
    "one in a namespace": (lambda: types.SimpleNamespace(a=Plain("a")), "SimpleNamespace is shown by its address"),
    "a key of a dict": (lambda: {Plain("a"): 1}, "keyed.Plain does not say"),
    "a repr that leaves out": (lambda: Titled("a", "b"), "keyed.Titled does not show its body"),
    "a slot that is left out": (lambda: Slotted("a", "b"), "keyed.Slotted does not show its _Slotted__body"),
    "a repr of its own with an address": (lambda: Numbered(), "by its address"),
    "a repr that raises": (lambda: Failing(), "its repr raises ValueError"),
    "a bound method": (lambda: Plain("a").method, "keyed.Plain does not say"),
    "a lambda": (lambda: lambda: 1, "a lambda has no name"),
    "a lambda in a partial": (lambda: functools.partial(lambda: 1), "a lambda has no name"),
    "a closure": (lambda: holding(1), r"holding.<locals>.inner holds variables \(x, its defaults\)"),
    "defaults": (lambda: with_default(1), r"holds variables \(its defaults\)"),
    "a generator": (lambda: (i for i in "a"), "gone through only once"),
    "an iterator": (lambda: iter([1]), "gone through only once"),
    "a count": (lambda: itertools.count(3), "gone through only once"),
    "a future": (lambda: asyncio.Future(loop=asyncio.new_event_loop()), "gone through only once"),
    "a file": (lambda: open(__file__), "gone through only once"),
    "bytes in memory": (lambda: io.BytesIO(b"a"), "gone through only once"),
    "a lock": (lambda: threading.Lock(), "by its address"),
    "a thread": (lambda: threading.Thread(), "does not show its"),
    "a logger": (lambda: logging.getLogger("a"), "does not show its"),
    "a random generator": (lambda: random.Random(1), "does not say"),
    "a generator of numpy": (lambda: np.random.default_rng(), "by its address"),
    "pointers": (lambda: (ctypes.c_void_p * 1)(), "holds addresses"),
    "a list in itself": (lambda: ring(), "holds itself"),
    "a deep list": (lambda: deep(), "nested too deeply"),
    "a very big int": (lambda: [10**5000], "4300 digits"),
    "an array with attributes": (lambda: noted(), r"attributes of its own \(unit\)"),
    "an array in a container": (lambda: collections.deque([BIG]), "deque does not show its elements"),
    "an array of no known library": (lambda: np.poly1d([1, 2]), "an array whose content is not known"),
    "a grouped frame": (lambda: FRAME.groupby("b"), "by its address"),
}  # fmt: skip


def texts():
    """The texts of all values that have one, by their places in the tables."""
    kept = [identity(args, kwargs) for args, kwargs, _ in KEPT]
    return [kept, {name: [identity((value,), {}) for value in make()] for name, make in (APART | SAME).items()}]


if __name__ == "__main__":
    # The classes are found under the module's name, as in the tests.
    import keyed

    json.dump(keyed.texts(), sys.stdout)
