"""Answers of the state: versions, events, and the JSON that they hold."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any, Iterator

from .errors import NotSerializable
from .waiting import paged

if TYPE_CHECKING:
    from . import _native

# Rows of one page.
_ROWS = 500


@dataclasses.dataclass
class StateResult:
    """A key as it was found. `exists` is False for a key that was never written (version 0), and for a deleted one."""

    #: The JSON value; None where there is none.
    value: Any
    #: The key's version: 1 for its first write, and one more for each write and delete.
    version: int
    #: The number of the commit in its namespace; 0 for a change of the open step or transaction itself.
    commit_ts: int
    exists: bool
    key: str = ""
    #: The time of the commit, in UTC. None before the commit.
    at: datetime.datetime | None = None
    #: The id of the run that wrote the version; None for a writer without a run.
    run: str | None = None
    #: The number of the attempt in that run that wrote the version.
    attempt: int | None = None


@dataclasses.dataclass
class Operation:
    """A change of a key. `value` is None for a delete: see `deleted`."""

    key: str
    value: Any
    version: int
    deleted: bool = False


@dataclasses.dataclass
class ReplayEvent:
    """The changes of an agent's keys by one commit, in order."""

    #: The transaction's id; empty for the commit of a step or of a single write.
    txn_id: str
    #: The number of the commit in its namespace.
    commit_ts: int
    operations: list[Operation]
    #: The time of the commit, in UTC.
    at: datetime.datetime | None = None
    #: The agent whose keys were changed.
    agent_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON has it: a dict by the names of the fields, with the time in RFC 3339."""
        return {**dataclasses.asdict(self), "at": None if self.at is None else self.at.isoformat().replace("+00:00", "Z")}


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """The point at which a loop over `step:0`, `step:1`, … resumes."""

    #: The largest N for which the value of `step:N` has `"status": "done"`; -1 without one.
    done: int
    #: The largest N for which the value of `step:N` has `"status": "pending"`; None without one.
    pending: int | None = None
    #: The key of the step `pending`; None without one.
    pending_key: str | None = None

    @property
    def next(self) -> int:
        """The number of the step to go on with: the one after the last that is done."""
        return self.done + 1


def encode(value: Any) -> bytes:
    """The JSON text of a value in a shared namespace, which is plain JSON. Errors: `NotSerializable`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise NotSerializable(
            f"a value cannot be kept as JSON: {e}",
            hint="write numbers, texts, lists and dicts",
        ) from e


def scan(states: "_native.States", namespace: str, agent: str, prefix: str) -> "Iterator[_native.Item]":
    """An agent's keys below a prefix with their newest versions, all at one moment."""
    position = states.position()
    return paged(lambda last: states.scan(namespace, agent, prefix, last[0] if last else None, position, _ROWS), _ROWS)


def line(event: ReplayEvent, operation: Operation, verbose: bool, width: int = 80) -> str:
    """A change for people, in the columns of the Statehouse client."""
    when = "" if event.at is None else f"{event.at:%H:%M:%SZ}"
    text = "" if operation.deleted else json.dumps(operation.value, ensure_ascii=False, separators=(",", ":"))
    text = text if verbose or len(text) <= width else text[: width - 1] + "…"
    ids = [f"txn={event.txn_id or '-'}", f"commit={event.commit_ts}"] if verbose else []
    did = "DEL" if operation.deleted else "WRITE"
    return "  ".join(filter(None, [when, f"agent={event.agent_id}", did, f"key={operation.key}", f"v={operation.version}", text, *ids]))


def parsed(text: str) -> datetime.datetime:
    """A time in RFC 3339, as JSON has it."""
    # Before Python 3.11 the parser knows no "Z".
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def moment(at_us: int) -> datetime.datetime:
    """A time in microseconds since the Unix epoch as a `datetime` in UTC, exactly."""
    return datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + datetime.timedelta(microseconds=at_us)


def which(
    version: int | None = None, commit: int | None = None, time: datetime.datetime | float | None = None
) -> tuple[str, int]:
    """The moment that the caller named, as (kind, value) for the engine. Errors: `ValueError` unless exactly one is given."""
    named = [(by, at) for by, at in (("version", version), ("commit", commit), ("time", time)) if at is not None]
    if len(named) != 1:
        raise ValueError(f"one of version, commit and time is wanted, had {len(named)}")
    by, at = named[0]
    return (by, int(at)) if by != "time" else ("time", micros(at))  # type: ignore[arg-type]


def micros(time: datetime.datetime | float) -> int:
    """Microseconds since the Unix epoch, of a datetime (without a zone: local time) or of seconds like `time.time()`."""
    if isinstance(time, datetime.datetime):
        since = time.astimezone(datetime.timezone.utc) - moment(0)
        return since // datetime.timedelta(microseconds=1)
    return round(time * 1_000_000)
