"""Budgets: the limits of a run, in dollars, counts and times."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import re

from . import html
from .errors import BadLimit

NANO = 1_000_000_000
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True)
class Budget:
    """The limits of a run. None is no limit of that kind.

    `usd`: dollars, to the nano-dollar. `tokens`: input and output tokens of LLM calls. `calls`: LLM calls. `loops`: turns that
    `run.loop` counts. `wall`: time since the run began, downtime included. `active`: time while an attempt is open. A time is
    a number of seconds, a text like "90m", or a timedelta.

    Limits are stored when the run is created. What is spent is never reset. Another limit for a run that exists raises
    `BudgetChanged`; with `amend=True` it replaces the run's limit, but not in a process that `outlast run` supervises.

    Errors: `BadLimit` for a limit that is negative or no number.
    """

    usd: float | str | decimal.Decimal | None = None
    tokens: int | None = None
    calls: int | None = None
    loops: int | None = None
    wall: float | str | datetime.timedelta | None = None
    active: float | str | datetime.timedelta | None = None
    amend: bool = False

    def __post_init__(self) -> None:
        # A mistake is told where it is made.
        self.limits()

    def limits(self) -> dict[str, int]:
        """The limits that are given, by the engine's names and in the engine's units: nano-USD, counts, milliseconds."""
        given = {
            "cost_nano_usd": None if self.usd is None else _nano(self.usd),
            "tokens": _count("tokens", self.tokens),
            "calls": _count("calls", self.calls),
            "loops": _count("loops", self.loops),
            "wall_ms": None if self.wall is None else _ms("wall", self.wall),
            "active_ms": None if self.active is None else _ms("active", self.active),
        }
        return {unit: value for unit, value in given.items() if value is not None}

    @property
    def _meters(self) -> bool:
        """Whether money or tokens are limited: calls are then expected to be metered."""
        return self.usd is not None or self.tokens is not None

    def _repr_html_(self) -> str:
        rows = [(unit_name(unit), shown(unit, value)) for unit, value in self.limits().items()]
        return html.table("Budget", ("unit", "limit"), rows)


def _nano(usd: float | str | decimal.Decimal) -> int:
    try:
        # Through its text: 0.1 is a tenth of a dollar, not the binary number beside it.
        nano = decimal.Decimal(str(usd)) * NANO
        if not nano.is_finite() or nano < 0:
            raise BadLimit(f"bad limit: usd must be a number of dollars and not negative, had {usd!r}")
        return int(nano.to_integral_value(decimal.ROUND_FLOOR))
    except decimal.InvalidOperation as e:
        raise BadLimit(f"bad limit: usd must be a number of dollars, had {usd!r}") from e


def _count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadLimit(f"bad limit: {name} must be a whole number and not negative, had {value!r}")
    return value


def _ms(name: str, value: float | str | datetime.timedelta) -> int:
    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value)
        if not parts or "".join(n + u for n, u in parts) != value.replace(" ", ""):
            raise BadLimit(f"bad limit: {name} must be a time like '90m' or '1h30m', had {value!r}")
        seconds = sum(float(n) * _UNITS_S[u] for n, u in parts)
    else:
        seconds = float(value)
    if not 0 <= seconds < 1e12:
        raise BadLimit(f"bad limit: {name} must be a time and not negative, had {value!r}")
    return int(seconds * 1000)


def usd(nano: int) -> str:
    """Nano-USD as decimal dollars, exactly, with two places at least."""
    whole, _, places = f"{decimal.Decimal(nano) / NANO:.9f}".partition(".")
    return f"{whole}.{places.rstrip('0').ljust(2, '0')}"


def unit_name(unit: str) -> str:
    """The name of a unit for people: that of its limit in `Budget`."""
    return "usd" if unit == "cost_nano_usd" else unit.removesuffix("_ms")


def shown(unit: str, value: int | None) -> str:
    """A limit as people read it."""
    if value is None:
        return "no limit"
    if unit == "cost_nano_usd":
        return f"{usd(value)} usd"
    if unit.endswith("_ms"):
        return f"{value / 1000:g} s"
    return f"{value} {unit}"
