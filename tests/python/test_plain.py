"""The usual step's way is every step's: what the native half finds and writes is what `codec` says."""

import dataclasses
import threading

import pytest

import outlast
from outlast import _native, codec
from outlast.steps import spec


@dataclasses.dataclass
class Plan:
    topic: str
    pages: int


class Odd(str):
    pass


TEXTS = ["", "plain", "ü 漢 🦀", 'a "quoted" \\ one', "\n\r\t\b\f\x00\x1f\x7f\u2028", "x" * 79, "x" * 80, "x" * 81, "'" * 200, "漢" * 90, "0x7f00aa11", "$outlast"]
NUMBERS = [0, -1, 2**63 - 1, 2**63, -(2**70), True, False, None, 0.1, 1e300, -0.0]
OTHERS = [[1, "a", None], {"b": [1.5], "a": "ü"}, (1, 2), Plan("x", 3), [Plan("y", 1)], {"text": '"args":[],"value":1}'}, Odd("sub")]


def test_what_is_written_is_what_codec_writes_and_is_read_back_as_codec_reads_it(rt):
    with rt.run("r", budget=outlast.Budget(usd=1)) as run:
        pass
    engine, recorded = rt._engine, {}
    for number, value in enumerate(TEXTS + NUMBERS + OTHERS):
        args, kwargs = ((value, number), {}) if number % 3 else ((value,), {"n": number})
        whole = _native.written(args, kwargs, value)
        text = f'{{"args":{codec.compact(codec.shown(args, kwargs))},"value":{codec.encode(value)}}}'
        assert whole == text.encode(), value
        recorded[number] = (value, codec.decode(whole)["value"])
    # A life that records them, and one that replays them.
    with pytest.raises(RuntimeError), rt.run("again", budget=outlast.Budget(usd=1)) as run:
        for number, (value, read) in recorded.items():
            assert repr(run.step("s", lambda *_: value, number)) == repr(read)
        raise RuntimeError
    with rt.run("again") as run:
        for number, (_, read) in recorded.items():
            again = run.step("s", lambda *_: pytest.fail("it ran again"), number)
            assert (type(again), repr(again)) == (type(read), repr(read))
    assert engine is rt._engine


def test_a_lone_surrogate_is_kept_out_of_results_and_no_reason_to_lose_one():
    assert _native.written(("\udc80",), {}, 1) == b'{"args":["\'\\\\udc80\'"],"value":1}'
    for value in ("\udc80", ["\udc80"], {"a": "\ud800"}, Odd("\udc80")):
        with pytest.raises(outlast.NotSerializable):
            _native.written((), {}, value)


def test_a_key_is_that_of_the_arguments_as_codec_knows_them(rt):
    with rt.run("r", budget=outlast.Budget(usd=1)):
        recorded = rt._engine.recorded(int(rt.get("r").raw["no"]), 0)
        for value in TEXTS + NUMBERS + OTHERS + ["\udc80", Odd("x"), b"bytes", {1, 2}, Plan, object()]:
            for args, kwargs in (((value,), {}), ((), {"k": value}), ((1, value, "z"), {})):
                try:
                    base = spec.key_of("s", args, kwargs)
                except UnicodeEncodeError:
                    continue
                assert _native.enter(recorded, "s", args, kwargs, False) == (None, base, None), value


def test_many_and_long_arguments_are_shown_by_their_start():
    for args in [("x" * 500,) * 9, tuple(range(200)), (10**100,) * 4, ("é" * 79, "é" * 77 + "'\""), ("a",) * 130]:
        shown = codec.compact(codec.shown(args, {}))
        assert _native.written(args, {}, None) == f'{{"args":{shown},"value":null}}'.encode()


def test_the_state_a_late_thread_changes_is_refused_when_its_step_is_over(rt):
    late = []
    with rt.run("r", budget=outlast.Budget(usd=1)) as run:
        run.step("s", lambda: late.append(outlast.current()) or "done")
        (here,) = late
        assert (here.step is not None, here.is_open, here.try_) == (True, True, 1)
        failed = []

        def change():
            try:
                here.changes.add([("run:r", "a", "k", b"1", None)])
            except outlast.AlreadySettled as e:
                failed.append(e)

        thread = threading.Thread(target=change)
        thread.start()
        thread.join()
        assert len(failed) == 1
