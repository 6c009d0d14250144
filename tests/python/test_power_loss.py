"""A loss of power at some sync points of a store (`make power-loss` loses it at all of them), and syncs that are taken away."""

import sys
import tempfile
from pathlib import Path

import pytest

from conftest import outlast_program

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "crash"))

import power  # noqa: E402

SEED = 7


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        losses = power.Losses(tmp_path_factory.mktemp("power"), Path(other), outlast_program(), SEED)
        losses.record()
        yield losses


def test_what_was_acknowledged_outlives_a_loss_of_power_at_a_sync_point(losses):
    syncs = losses.syncs()
    assert syncs > 100
    assert losses.lose(power.sample(syncs, 10, SEED)) == (30, [])


# Bug: an older version of the mark, as a loss of power may leave it, was asked of a store whose log had been deleted since.
# Consequence: a store that had lost nothing was refused. Cause: the mark was closed before the deletion, and not synced.
def test_a_store_that_was_closed_asks_for_no_log_that_is_gone(losses):
    syncs, behind = 0, set()
    for record in power.records(losses.log):
        syncs += record.what in "sd"
        if record.what == "u" and record.path.endswith("-wal"):
            behind |= set(range(syncs + 1, syncs + 5))
    assert losses.lose(behind, draws=3)[1] == []


@pytest.mark.parametrize("syncs", power.PLANTED)
def test_a_sync_that_is_missing_is_found(losses, syncs):
    assert losses.misses(power.PLANTED[syncs])
