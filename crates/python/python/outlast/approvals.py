"""Asking a person before a tool is called."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
from typing import Any

from . import _native
from .effects import Process, beside, drive, drive_async, sleep
from .errors import ApprovalDenied, NotSerializable
from .opening import RunHandle

#: Seconds until a question expires, where the caller gives none: a day.
EXPIRES = 24 * 60 * 60.0

# Seconds between two looks: short while a person may sit there, longer later.
_SOON = 0.05
_LATER = 1.0


@dataclasses.dataclass(frozen=True)
class Approval:
    """The permission to call a tool."""

    #: The question's id, as `outlast approvals` prints it; None where the run's policy wants nobody asked.
    id: str | None
    #: Whether a person had to be asked.
    required: bool
    #: The reason that the person gave.
    reason: str | None = None
    #: The person who decided.
    decided_by: str | None = None
    #: The time of the decision, in UTC.
    decided_at: datetime.datetime | None = None


@dataclasses.dataclass
class Question:
    """One tool call that a person is asked about. `timeout` in seconds; None: a day. Errors: `NotSerializable`, `ValueError`."""

    tool: str
    arguments: dataclasses.InitVar[Any]
    side_effect: str | None
    timeout: dataclasses.InitVar[float | None]
    key: str | None
    #: The arguments as JSON.
    raw: bytes = dataclasses.field(init=False)
    expires_ms: int = dataclasses.field(init=False)

    def __post_init__(self, arguments: Any, timeout: float | None) -> None:
        seconds = EXPIRES if timeout is None else timeout
        if not seconds > 0:
            raise ValueError(f"timeout wants seconds above 0, had {timeout!r}")
        self.raw = _json({} if arguments is None else arguments).encode()
        # Capped, so that any number of seconds fits into 64 bits.
        self.expires_ms = int(min(seconds * 1000, 2**60)) or 1


def ask(run: RunHandle, question: Question, is_async: bool) -> Any:
    """Asks for the approval, and waits until a person has decided or the question has expired. Awaitable if `is_async`."""
    process = asked(run, question)
    return drive_async(process) if is_async else drive(process)


def asked(run: RunHandle, question: Question) -> Process[Approval]:
    """Asks for the approval, within another process."""
    what = f"the approval of {question.tool}"

    def request() -> "_native.Ticket[_native.Approval]":
        # Each request also checks that this process still drives the run.
        open_run = run._open_run_or_raise(what)
        return _native.request_approval(
            open_run, question.tool, question.side_effect, question.raw, question.key, question.expires_ms
        )

    def is_pending() -> bool:
        run._open_run_or_raise(what)
        return _native.is_pending(run._engine, run._no, told[1])

    told = _recalled(run, question) if run._open_run_or_replay() is None else (yield request())
    for pause in _pauses():
        if told[2] != "pending":
            break
        yield sleep(pause)
        if not (yield beside(is_pending)):
            told = yield request()
    return _answer(question.tool, told)


def _recalled(run: RunHandle, question: Question) -> Any:
    """The answer that a completed run has recorded for a question. Errors: `RunCompleted` where none is recorded."""
    told: Any = _native.recalled_approval(
        run._engine, run._no, question.tool, question.side_effect, question.raw, question.key
    )
    if told is None or told[2] == "pending":
        raise run._completed(f"the approval of {question.tool}")
    return told


def _answer(tool: str, told: "_native.Approval") -> Approval:
    id, _, status, required, reason, by, at = told
    if status == "approved":
        when = None if at is None else datetime.datetime.fromtimestamp(at / 1_000_000, datetime.timezone.utc)
        return Approval(id, required, reason, by, when)
    said = {
        "denied": f"{tool} was denied by {by}" + (f": {reason}" if reason else ""),
        "timeout": f"nobody decided on {tool} in time",
        "blocked": f"the run's policy has no tool {tool}",
    }.get(status, f"the approval of {tool} is {status}")
    raise ApprovalDenied(said, status=status, reason=reason, by=by, id=id)


def _json(arguments: Any) -> str:
    """The arguments as a person reads them: plain data, without the classes that steps record. Errors: `NotSerializable`."""

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
        # With jitter, so that the agents of a fleet do not all ask at once.
        yield pause * random.uniform(0.75, 1.25)
        pause = min(pause * 1.5, _LATER)
