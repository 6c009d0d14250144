"""Histories of killed runs' stores are paths of the model (crates/sim/src/trace), and a history that was changed is none."""

import sys
from pathlib import Path

import pytest

from conftest import outlast_program

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "crash"))

import traces  # noqa: E402
from bed import Bed, Death, Place  # noqa: E402
from planted import PLANTED  # noqa: E402
from scenarios import BATCH, MCP, PLAIN, STEPS  # noqa: E402

#: Of each a death while it works, and one while it recovers.
DEATHS = [
    (PLAIN, Death("supervisor.60", "all"), Death("agent.4", "supervisor+agent")),
    (STEPS, Death("agent.30", "all"), Death("supervisor.40", "self")),
    (MCP, Death("recorder.12", "recorder+supervisor"), Death("agent.3", "all")),
    (BATCH, Death("agent.40", "self"), Death("agent.20", "self")),
]


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    bed = Bed(tmp_path_factory.mktemp("bed"), outlast_program())
    yield bed
    bed.close()


@pytest.mark.parametrize(("scenario", "first", "then"), DEATHS, ids=[scenario.name for scenario, *_ in DEATHS])
def test_what_a_killed_run_has_written_is_a_history_of_the_model(bed, scenario, first, then):
    place = Place(bed, scenario.name, None, scenario.calls, traced=True)
    outcome = scenario.live(scenario, place, [first, then])
    assert outcome.strikes
    assert not outcome.faults
    acts, wrong = traces.checked(bed.sim, traces.rows(Path(place.store)), place.home / "trace")
    assert not wrong
    assert acts > 20


@pytest.mark.parametrize("name", [name for name in PLANTED if name.startswith("a trace ")])
def test_a_fault_that_is_planted_into_a_trace_is_found(bed, name):
    assert PLANTED[name](bed, name.replace(" ", "-"), name)
