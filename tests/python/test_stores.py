"""Stores that are closed, gone, made anew, or none at all."""

import os
import time

import pytest

import outlast
from test_runs import interrupted


def test_a_closed_store_is_told(rt):
    with rt.run("r") as run:
        rt.close()
        with pytest.raises(outlast.Error):
            run.step("a", lambda: 1)


def test_a_store_that_vanishes_is_told(rt):
    with pytest.raises(outlast.StoreError, match="vanished") as error:
        with rt.run("r") as run:
            run.step("a", lambda: 1)
            os.rename(rt.place, rt.place + ".away")
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                run.step("b", lambda: 2)
    assert error.value.code == "store_vanished"


def test_a_store_that_was_removed_to_start_afresh_is_made_anew(home):
    """Bug: a notebook got the store that was gone until its kernel was started again."""
    place = home / "fresh.db"
    rt = outlast.connect(place)
    interrupted(rt, "r")
    left = rt.run("r")
    left.__enter__()
    for file in home.glob("fresh.db*"):
        if file.is_file():
            file.unlink()
    fresh = outlast.connect(place)
    assert fresh is not rt and fresh is outlast.connect(place)
    with fresh.run("r") as run:
        assert run.step("a", lambda: 2) == 2
    with pytest.raises(outlast.Error):
        left.step("b", lambda: 3)
    left.__exit__(None, None, None)
    fresh.close()


def test_a_place_that_is_no_store_is_told(home):
    (home / "text.db").write_text("this is no database, and stays as it is " * 200)
    for place in (home / "text.db", "mysql://x", "/proc/nowhere/x.db"):
        with pytest.raises(outlast.Error) as error:
            outlast.connect(place)
        assert error.value.code != "error" and "--store" not in str(error.value)
