"""The bed of the Python tests, for tests of frameworks: run by `make test-clients` in an environment that has them."""

import importlib.util
import sys
from pathlib import Path

_BED = Path(__file__).resolve().parents[1] / "python" / "conftest.py"
_spec = importlib.util.spec_from_file_location("bed", _BED)
bed = importlib.util.module_from_spec(_spec)
sys.modules["bed"] = bed
_spec.loader.exec_module(bed)

home, rt, life, lives = bed.home, bed.rt, bed.life, bed.lives


def pytest_configure(config):
    config.addinivalue_line("markers", "clients: needs programs of others, which `make test-clients` installs")
