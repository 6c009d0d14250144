"""Reservations: money held for calls that no proxy sees."""

import asyncio
import signal
import threading
import time

import pytest

import outlast


def test_a_reservation_counts_against_the_budget(rt):
    with pytest.raises(outlast.BudgetExceeded):
        with rt.run("r", budget=outlast.Budget(usd=1)) as run:
            held = outlast.reserve(usd="0.40", label="speech")
            assert run.view().budget.usd.reserved == 0.4
            held.settle(usd=0.25)
            with outlast.reserve(usd=0.5):
                pass
            outlast.reserve(usd=0.1).void()
            assert run.view().budget.usd.spent == 0.75
            outlast.reserve(usd=0.26)
    assert rt.get("r").halt_code == "dollar_budget_exceeded"


def test_a_reservation_waits_for_room_that_another_thread_gives_back(rt):
    with rt.run("r", budget=outlast.Budget(usd=1)):
        held = outlast.reserve(usd=0.6)
        giver = threading.Timer(0.2, held.settle, kwargs={"usd": 0.1})
        giver.start()
        outlast.reserve(usd=0.6).settle(usd=0.1)
        giver.join()


def test_a_reservation_that_waits_can_be_interrupted(rt):
    """Bug: Ctrl-C was heard after 45 s. Cause: it waited without the interpreter."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            with rt.run("r", budget=outlast.Budget(usd=1)):
                outlast.reserve(usd=0.6)
                began = time.monotonic()
                threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
                outlast.reserve(usd=0.6)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 20


def test_a_loop_does_not_wait_for_what_its_own_tasks_hold(rt):
    """Bug: the loop stood still for 45 s, and the reservation was refused all the same."""

    async def call(reserve):
        held = await reserve()
        await asyncio.sleep(0.1)
        held.settle(usd=0.1)

    async def at_once():
        return outlast.reserve(usd=0.6)

    async def life(id, reserve):
        async with rt.run(id, budget=outlast.Budget(usd=1)):
            return await asyncio.gather(call(reserve), call(reserve), return_exceptions=True)

    began = time.monotonic()
    first, second = asyncio.run(life("a", at_once))
    assert first is None and (second.code, "to_thread" in second.hint) == ("admission_timeout", True)
    assert asyncio.run(life("b", lambda: asyncio.to_thread(outlast.reserve, usd=0.6))) == [None, None]
    assert time.monotonic() - began < 20
