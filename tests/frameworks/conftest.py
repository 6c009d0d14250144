"""The bed of the Python tests, for tests of frameworks: run by `make test-clients` in an environment that has them."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

_BED = Path(__file__).resolve().parents[1] / "python" / "conftest.py"
_spec = importlib.util.spec_from_file_location("bed", _BED)
bed = importlib.util.module_from_spec(_spec)
sys.modules["bed"] = bed
_spec.loader.exec_module(bed)

home, rt, lives, _life = bed.home, bed.rt, bed.lives, bed.life


@pytest.fixture
def life(_life):
    """A life of its own, as in the Python tests. Frameworks take their time to be imported on a busy machine."""
    return functools.partial(_life, timeout=300)


def pytest_configure(config):
    config.addinivalue_line("markers", "clients: needs programs of others, which `make test-clients` installs")
