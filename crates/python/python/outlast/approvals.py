"""Asking a person before a tool is called."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import random
import time
from typing import TYPE_CHECKING, Any

from . import _native, waiting
from .errors import ApprovalDenied, NotSerializable, RunCompleted

if TYPE_CHECKING:
    from .runs import Run

#: How long a decision is waited for where nobody says: a day.
EXPIRES = 24 * 60 * 60.0

# Seconds between two looks: at first a person may sit there, and later it takes a coffee.
_SOON = 0.05
_LATER = 1.0


@dataclasses.dataclass(frozen=True)
class Approval:
    """A person's word on a tool call."""

    #: As `outlast approvals` prints it; None where the run's policy wants nobody asked.
    id: str | None
    #: Whether somebody had to be asked.
    required: bool
    reason: str | None = None
    decided_by: str | None = None
    decided_at: datetime.datetime | None = None


class Question:
    """One tool call that is asked about, in this life."""

    def __init__(
        self, run: "Run", tool: str, arguments: Any, side_effect: str | None, timeout: float | None, key: str | None
    ) -> None:
        seconds = EXPIRES if timeout is None else timeout
        if not seconds > 0:
            raise ValueError(f"timeout wants seconds above 0, had {timeout!r}")
        self._run = run
        self._tool = tool
        self._arguments = _json({} if arguments is None else arguments).encode()
        self._side_effect = side_effect
        self._key = key
        # What is longer than the age of the universe is not longer for it.
        self._expires_ms = int(min(seconds * 1000, 2**60)) or 1

    def ask(self) -> Approval:
        """Asks and blocks until a person has decided, or it has expired."""
        told = self._recall() if self._is_replay() else self._request().wait()
        for pause in _pauses():
            if told[2] != "pending":
                break
            time.sleep(pause)
            if not self._is_pending(told[1]):
                told = self._request().wait()
        return self._answer(told)

    async def ask_async(self) -> Approval:
        """The same, while the loop goes on."""
        told = self._recall() if self._is_replay() else await waiting.done(self._request())
        for pause in _pauses():
            if told[2] != "pending":
                break
            await asyncio.sleep(pause)
            if not await asyncio.to_thread(self._is_pending, told[1]):
                told = await waiting.done(self._request())
        return self._answer(told)

    def _is_replay(self) -> bool:
        return self._run._seat_or_replay() is None

    def _request(self) -> "_native.Ticket":
        # Each look finds out whether the run is still ours, too.
        seat = self._run._seat_or_raise(f"the approval of {self._tool}")
        return _native.request_approval(seat, self._tool, self._side_effect, self._arguments, self._key, self._expires_ms)

    def _is_pending(self, seq: int) -> bool:
        self._run._seat_or_raise(f"the approval of {self._tool}")
        return _native.is_pending(self._run._engine, self._run._no, seq)

    def _recall(self) -> "_native.Approval":
        run = self._run
        told = _native.recalled_approval(run._engine, run._no, self._tool, self._side_effect, self._arguments, self._key)
        if told is None or told[2] == "pending":
            raise RunCompleted(
                f"run {run.id} is completed, and the approval of {self._tool} is not recorded in it",
                hint="open a run with another id, to do more",
            )
        return told

    def _answer(self, told: "_native.Approval") -> Approval:
        id, _, status, required, reason, by, at = told
        if status == "approved":
            when = None if at is None else datetime.datetime.fromtimestamp(at / 1_000_000, datetime.timezone.utc)
            return Approval(id, required, reason, by, when)
        said = {
            "denied": f"{self._tool} was denied by {by}" + (f": {reason}" if reason else ""),
            "timeout": f"nobody decided on {self._tool} in time",
            "blocked": f"the run's policy has no tool {self._tool}",
        }.get(status, f"the approval of {self._tool} is {status}")
        raise ApprovalDenied(said, status=status, reason=reason, by=by, id=id)


def _json(arguments: Any) -> str:
    """As the person reads them: plain data, without the classes that steps record."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if hasattr(type(value), "model_dump"):
            return value.model_dump(mode="json")
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}")

    try:
        return json.dumps(arguments, default=plain, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise NotSerializable(
            f"the arguments of a tool call cannot be shown to a person: {e}",
            hint="give JSON: dict, list, str, numbers, bool, None; or a dataclass or pydantic model of these",
        ) from None


def _pauses() -> Any:
    pause = _SOON
    while True:
        # With jitter: the agents of a fleet do not all look at once.
        yield pause * random.uniform(0.75, 1.25)
        pause = min(pause * 1.5, _LATER)
