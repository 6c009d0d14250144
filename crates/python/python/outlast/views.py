"""A run as the store has it: the answer of `rt.get(id)`, which claims nothing."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

from . import html
from .budget import NANO, shown, unit_name, usd as usd_text
from .versions import parsed


@dataclasses.dataclass(frozen=True)
class Amount:
    """An amount of one unit of a budget: dollars, a count, or seconds. `limit` and `left` are None without a limit."""

    limit: float | None
    spent: float
    reserved: float
    #: The part of `reserved` that calls with an unknown outcome hold.
    in_doubt: float

    @property
    def left(self) -> float | None:
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
    """A run as the store has it. `status`: running, interrupted, waiting, sleeping, halted, completed, failed or cancelled.

    `raw` has every fact under the name, and with the value, that REST and `--json` give it.
    """

    id: str
    name: str | None
    tags: dict[str, str]
    status: str
    #: The code of the limit or rule that halted the run, for example `dollar_budget_exceeded`.
    halt_code: str | None
    halt_message: str | None
    #: Why the run failed, was cancelled, or was left by its program.
    error: str | None
    created_at: datetime.datetime
    began_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    attempts: int
    budget: Envelope
    raw: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def why(self) -> str | None:
        """Why the run is halted, waits, failed or was left, in a sentence; None where it goes on or is done."""
        text: str | None = self.raw["why"]
        return text

    @property
    def in_doubt(self) -> str | None:
        """Amount held for calls without an answer, of which only their provider knows whether they are paid, in words; None
        where each call was answered."""
        usd = self.budget.usd.in_doubt
        return f"{usd_text(round(usd * NANO))} usd held for calls without an answer, which may be paid" if usd else None

    @property
    def loops(self) -> int:
        """The number of turns of the agent's loop so far, as the limit `loops` counts them."""
        return int(self.budget.loops.spent)

    def _repr_html_(self) -> str:
        facts = [("status", self.status), ("why", self.why), ("attempts", self.attempts), ("in doubt", self.in_doubt)]
        # Of each unit that is limited or was used, what is spent.
        lines = [line for line in self.raw["budget"] if line["spent"] or line["limit"]]
        spent = [(unit_name(line["unit"]), shown(line["unit"], line["spent"]) + ("" if line["limit"] is None else f" of {shown(line['unit'], line['limit'])}")) for line in lines]
        return html.table(f"Run {self.name or self.id}", (), [*((name, fact) for name, fact in facts if fact), *spent])

    @staticmethod
    def parse(text: str) -> "RunView":
        raw = json.loads(text)
        lines = {line["unit"]: line for line in raw["budget"]}

        def amount(unit: str, per: int) -> Amount:
            def scaled(name: str) -> float:
                value: int = lines[unit][name]
                return value if per == 1 else value / per

            limit = None if lines[unit]["limit"] is None else scaled("limit")
            return Amount(limit, scaled("spent"), scaled("reserved"), scaled("in_doubt"))

        # A waiting run is not halted: `outlast show` tells what it waits for.
        halt = raw["halt"] if raw["status"] == "halted" and raw["halt"] else {}
        return RunView(
            id=raw["run"],
            name=raw["name"],
            tags=raw["tags"],
            status=raw["status"],
            halt_code=halt.get("code"),
            halt_message=halt.get("message"),
            error=raw["error"],
            created_at=parsed(raw["created_at"]),
            began_at=parsed(raw["began_at"]) if raw["began_at"] else None,
            ended_at=parsed(raw["ended_at"]) if raw["ended_at"] else None,
            attempts=raw["attempt_count"],
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
