"""Values of classes: what is recorded of them comes back as they were, or is told while it can still be helped."""

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import threading
import typing
import uuid
import zoneinfo

import numpy
import pydantic
import pytest
from openai._models import construct_type
from openai.types.chat import ChatCompletion, ParsedChatCompletion

import outlast
from outlast import codec

T = typing.TypeVar("T")


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass(slots=True)
class Slots:
    x: int
    tags: list = dataclasses.field(default_factory=list)
    near: str = "by"


@dataclasses.dataclass
class Broken(Exception):
    reason: str


@dataclasses.dataclass
class Box(typing.Generic[T]):
    value: T


class Aliased(pydantic.BaseModel):
    size: int = pydantic.Field(alias="Size")
    shape: str = pydantic.Field(validation_alias="in-shape", serialization_alias="out-shape")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, serialize_by_alias=True)
    at: datetime.datetime
    color: Color = pydantic.Field(alias="Color")
    pair: tuple[int, int]


class Secret(pydantic.BaseModel):
    name: str
    key: str = pydantic.Field(exclude=True)


class Stamped(pydantic.BaseModel):
    at: int = pydantic.Field(default_factory=iter(range(1000)).__next__)
    note: str | None = None


class Page(pydantic.BaseModel, typing.Generic[T]):
    items: list[T]


class Plan(pydantic.BaseModel):
    steps: list[str]


@pytest.fixture
def again(rt):
    """`again(value)`: what a step that returns it gives in its first life, and in the next one."""
    names = iter(range(1000))

    def play(value):
        id = f"r{next(names)}"
        with pytest.raises(ZeroDivisionError):
            with rt.run(id) as run:
                first = run.step("s", lambda: value)
                raise ZeroDivisionError
        with rt.run(id) as run:
            return first, run.step("s", lambda: pytest.fail("it ran again"))

    return play


@pytest.mark.parametrize(
    "value",
    [
        Slots(1, ["a"]),
        Box(Slots(2)),
        Aliased(**{"Size": 1, "in-shape": "round"}),
        Strict(at=datetime.datetime(2026, 5, 24, 3), Color=Color.RED, pair=(1, 2)),
        Stamped(note="n"),
        Page[int](items=[1]),
        Page[Page[Plan]](items=[Page[Plan](items=[Plan(steps=["a"])])]),
        [Plan(steps=[]), {"p": Slots(3)}],
        float("inf"),
        {"a": [float("-inf"), (1.5,)], "b": Box(float("inf"))},
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was(again, value):
    first, then = again(value)
    assert first == then
    assert (repr(first), type(first)) == (repr(value).replace("(1.5,)", "[1.5]"), type(value))


def test_an_exception_that_is_a_dataclass_can_be_a_result(again):
    first, then = again(Broken("x"))
    assert (type(first), first.reason, then.reason) == (Broken, "x", "x")


def test_numbers_that_json_has_not_are_recorded_as_json_all_the_same(rt):
    def refuse(name):
        raise ValueError(name)

    for value in (float("nan"), {"a": [float("nan")]}, Box(float("inf"))):
        text = codec.encode(value)
        json.loads(text, parse_constant=refuse)
        assert repr(codec.decode(text)) == repr(value)


def test_the_mirror_of_the_context_goes_on_behind_a_number_that_json_has_not(rt, home):
    """Bug: the file that shows the context was not renewed any more. Cause: NaN was recorded as Python writes it."""
    with rt.run("r") as run:
        run.context.set(loss=float("nan"))
        run.context.set(epoch=2)
        assert json.loads((home / "runs.db.runs" / "r" / "active_state.json").read_text())["context"]["epoch"] == 2
        assert run.context.get("loss") != run.context.get("loss")


def test_what_cannot_be_made_again_is_told_before_it_is_recorded(rt):
    """Bug: a step was recorded whose result no life could read. Consequence: the run could not go on, ever."""
    calls = []
    with pytest.raises(outlast.NotSerializable, match=r"Secret cannot be made again of its fields(.|\n)*key"):
        with rt.run("r") as run:
            run.step("s", lambda: calls.append(1) or Secret(name="n", key="k"))
    with rt.run("r") as run:
        assert run.step("s", lambda: calls.append(2) or {"name": "n"}) == {"name": "n"}
    assert calls == [1, 2]


class Tripled(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def triple(cls, n: int) -> int:
        return n * 3


class Rounded(pydantic.BaseModel):
    usd: float

    @pydantic.field_serializer("usd")
    def cents(self, usd: float) -> float:
        return round(usd, 2)


class Hidden(pydantic.BaseModel):
    token: str = pydantic.Field(default="", exclude=True)


class Noted(pydantic.BaseModel):
    _note: str = pydantic.PrivateAttr(default="")
    _lock: typing.Any = pydantic.PrivateAttr(default_factory=threading.Lock)


def noted(note: str) -> Noted:
    made = Noted()
    made._note = note
    return made


class Animal(pydantic.BaseModel):
    name: str = "rex"


class Dog(Animal):
    breed: str = "pug"


class Kennel(pydantic.BaseModel):
    animals: list[Animal]


class Loose(pydantic.BaseModel):
    when: datetime.date | str


CHANGES = {
    "a validator that is applied twice": (Tripled(n=2), r"n: 6 \(int\) would be read back as 18"),
    "a serializer that rounds": (Rounded(usd=0.123), "usd: 0.123"),
    "a field that is left out": (Hidden(token="t"), "token: 't'"),
    "a private field": (noted("x"), "_note: 'x'"),
    "a subclass among its bases": ([Kennel(animals=[Dog()])], r"\[0\].animals\[0\]: Dog"),
    "a member of a union": (Loose(when=datetime.date(2026, 1, 2)), "when: datetime.date"),
    "keys that are one in JSON": ({"a": {1: "int", "1": "str"}}, r"\['a'\]'s keys: \[1, '1'\]"),
}
KEPT = {
    "the same private field as made anew": noted(""),
    "tuples and keys of plain data": {1: (1, 2), None: [float("nan")], "d": collections.OrderedDict(b=1, a=-0.0)},
    "classes of plain data": [enum.IntEnum("Level", "LOW")(1), enum.StrEnum("Word", "A")("a")] if hasattr(enum, "StrEnum") else [],
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_value_that_would_come_back_changed_is_refused(rt, name):
    """Bug: results of such classes were recorded. Consequence: the program went on with another value than its function had
    returned, and nobody was told. Cause: only an error of reading a value back was looked for, and not another value."""
    value, where = CHANGES[name]
    with rt.run("r") as run, pytest.raises(outlast.NotSerializable, match=where):
        run.step("s", lambda: value, key="s")


@pytest.mark.parametrize("name", KEPT)
def test_what_comes_back_as_the_guide_says_is_recorded(rt, name):
    value = KEPT[name]
    with rt.run("r") as run:
        first = run.step("s", lambda: value, key="s")
        assert repr(first) == repr(codec.decode(codec.encode(value)))


def test_a_generic_model_is_named_by_its_arguments_or_told(rt):
    text = codec.encode(Page[Plan](items=[]))
    assert f'"{__name__}:Page[{__name__}:Plan]"' in text
    assert codec.decode(text) == Page[Plan](items=[])
    with pytest.raises(outlast.NotSerializable, match="its arguments are more than classes"):
        codec.encode(Page[list[int]](items=[]))


ANSWER = {
    "id": "a", "object": "chat.completion", "created": 1, "model": "m", "unheard_of": {"x": 1},
    "choices": [{"index": 0, "finish_reason": "eos", "message": {"role": "assistant", "content": '{"steps": ["a"]}', "refusal": None}}],
}  # fmt: skip


def test_an_answer_of_an_sdk_comes_back_as_it_came_over_the_wire(again):
    """Bug: its message was sent back to the API with nulls for what it never had; an answer of a provider that says
    `finish_reason: "eos"` could not be read back at all. Cause: it was validated, which its own SDK does not do."""
    first, then = again(construct_type(value=ANSWER, type_=ChatCompletion))
    for read in (first, then):
        assert read.choices[0].message.model_dump(mode="json", exclude_unset=True) == ANSWER["choices"][0]["message"]
        assert (read.choices[0].finish_reason, read.unheard_of) == ("eos", {"x": 1})
    assert first == then


def test_a_parsed_answer_of_an_sdk_comes_back_with_what_was_parsed(again):
    parsed = json.loads(json.dumps(ANSWER))
    parsed["choices"][0]["message"]["parsed"] = {"steps": ["a"]}
    first, then = again(construct_type(value=parsed, type_=ParsedChatCompletion[Plan]))
    assert then.choices[0].message.parsed == Plan(steps=["a"]) == first.choices[0].message.parsed


def test_fields_that_were_not_set_are_not_set_again(again):
    class_of = lambda value: (value.note, value.model_fields_set)
    first, then = again(Stamped(at=5))
    assert class_of(first) == class_of(then) == (None, {"at"})
    # A default that is another one each time is a part of the value.
    made = Stamped()
    first, then = again(made)
    assert first.at == then.at == made.at


def test_a_dataclass_that_got_a_field_since_has_its_default(rt):
    text = codec.encode(Slots(1)).replace(',"tags":[],"near":"by"', "")
    assert codec.decode(text) == Slots(1)
    with pytest.raises(outlast.NotSerializable, match="does not fit its class .*Plan any more"):
        codec.decode(codec.encode(Plan(steps=[])).replace("steps", "stairs"))


def test_values_of_asynchronous_steps_are_told_alike(rt):
    async def secret():
        return Secret(name="n", key="k")

    async def life():
        async with rt.run("r") as run:
            for options in ({}, {"retries": 1}):
                with pytest.raises(outlast.NotSerializable):
                    await run.step("s", secret, **options)

    asyncio.run(life())


ZONE = zoneinfo.ZoneInfo("Europe/Berlin")
TYPED = [
    datetime.datetime(2026, 11, 27, 0, 30, 1, 5),
    datetime.datetime(2026, 11, 27, tzinfo=datetime.timezone.utc),
    datetime.datetime(2026, 10, 25, 2, 30, tzinfo=ZONE, fold=1),
    datetime.date(2026, 11, 27),
    datetime.time(8, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=-3))),
    datetime.timedelta(days=-999_999_999),
    datetime.timedelta(days=3, microseconds=1),
    decimal.Decimal("1.10"),
    decimal.Decimal("-Infinity"),
    uuid.UUID(int=7),
    pathlib.Path("a/b"),
    b"\x00\xff",
    {1, 2},
    # Sets of more than one text would be printed in another order where their hashes collide.
    {("b", (2, 3))},
    frozenset({datetime.date(2026, 1, 1)}),
    numpy.float64(0.1),
    numpy.float32(0.1),
    numpy.int8(-3),
    numpy.bool_(True),
    {"$outlast": 1, "b": [{"$outlast": {"$outlast": "m:C", "value": 2}}]},
    {"$outlast": "float", "value": "nan"},
    ["$outlast", {"a": numpy.float64(2), "b": {3.5}}],
]


@pytest.mark.parametrize("value", TYPED, ids=lambda value: type(value).__name__)
def test_values_of_the_standard_library_and_numpy_come_back_as_they_were(again, value):
    first, then = again(value)
    for read in (first, then):
        assert (read, type(read), repr(read)) == (value, type(value), repr(value))


def test_what_looks_like_a_tag_and_was_recorded_before_there_were_tags_is_read_as_ever():
    for text, read in [
        ('{"$outlast":"float","value":"inf"}', float("inf")),
        ('{"$outlast":"test_values:Slots","value":{"x":1}}', Slots(1)),
    ]:
        assert codec.decode(text) == read
    with pytest.raises(outlast.NotSerializable, match="the tag 'later'"):
        codec.decode('{"$outlast":"later","value":1}')


def test_a_value_that_an_item_returns_is_recorded_as_that_of_a_step(rt):
    assert [r.value for r in outlast.map(range(len(TYPED)), lambda i: TYPED[i], job="j", store=rt)] == TYPED
