"""A run as the store has it: the answer of `rt.get(id)`, which claims nothing."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

from .budget import NANO


@dataclasses.dataclass(frozen=True)
class Amount:
    """An amount of one unit of a budget: dollars, a count, or seconds. `limit` and `remaining` are None without a limit."""

    limit: float | None
    spent: float
    reserved: float
    #: The part of `reserved` that calls with an unknown outcome hold.
    doubt: float

    @property
    def remaining(self) -> float | None:
        """The limit less what is spent and reserved; None without a limit."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


@dataclasses.dataclass(frozen=True)
class Envelope:
    """A run's budget: limit, spent and reserved of each unit."""

    usd: Amount
    tokens: Amount
    calls: Amount
    loops: Amount
    wall: Amount
    active: Amount


@dataclasses.dataclass(frozen=True)
class RunView:
    """A run as the store has it. `status`: running, interrupted, waiting, sleeping, halted, completed, failed or cancelled."""

    id: str
    name: str | None
    tags: dict[str, str]
    status: str
    #: The code of the limit or rule that halted the run, for example `dollar_budget_exceeded`.
    halt_reason: str | None
    halt_message: str | None
    error: str | None
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    attempts: int
    budget: Envelope
    raw: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def loops(self) -> int:
        """The number of turns of the agent's loop so far, as the limit `loops` counts them."""
        return int(self.budget.loops.spent)

    @staticmethod
    def parse(text: str) -> "RunView":
        raw = json.loads(text)

        def amount(unit: str, per: int) -> Amount:
            def scaled(value: int) -> float:
                return value if per == 1 else value / per

            limit = raw["limits"][unit]
            return Amount(
                None if limit is None else scaled(limit),
                scaled(raw["spent"][unit]),
                scaled(raw["reserved"][unit]),
                scaled(raw["doubt"][unit]),
            )

        halt = raw["halt"] or {}
        return RunView(
            id=raw["id"],
            name=raw["name"],
            tags=raw["tags"],
            status=raw["status"],
            halt_reason=halt.get("code"),
            halt_message=halt.get("message"),
            error=raw["error"],
            created_at=_time(raw["created_at_us"]),  # type: ignore[arg-type]
            started_at=_time(raw["started_at_us"]),
            ended_at=_time(raw["ended_at_us"]),
            attempts=raw["attempts"],
            budget=Envelope(
                usd=amount("cost_nano_usd", NANO),
                tokens=amount("tokens", 1),
                calls=amount("calls", 1),
                loops=amount("loops", 1),
                wall=amount("wall_ms", 1000),
                active=amount("active_ms", 1000),
            ),
            raw=raw,
        )


def _time(us: int | None) -> datetime.datetime | None:
    if us is None:
        return None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return epoch + datetime.timedelta(microseconds=us)
