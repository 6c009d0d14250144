"""The state of a server, over the gRPC of the Statehouse client: `outlast serve --grpc`.

The wire has no expected versions and no times, and its numbers are doubles. Whatever it has no words for raises `NotOnTheWire`.
"""

from __future__ import annotations

import json
from typing import Any, Iterator

from .. import versions
from ..errors import Conflict, Error, NoServer, NotOnTheWire, of
from ..versions import Operation, ReplayEvent, ResumePoint, StateResult
from . import wire

_SERVICE = "/statehouse.v1.StatehouseService/"
# No limit on the length of a message, because values may be larger than gRPC's default of 4 MiB.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Id(str):
    """Id of a transaction, with the transaction's own changes kept here: the protocol has no reads within a transaction."""

    own: dict[tuple[str, str, str], tuple[int, Any]]


class Remote:
    """The backend of a `Statehouse` on a server."""

    def __init__(self, url: str, first_committer: bool) -> None:
        try:
            import grpc  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError as e:
            raise Error(
                "outlast.Statehouse(url=…) needs the package grpcio, which is not installed",
                hint="pip install 'outlast[grpc]'; without a url the store is opened here, and nothing is needed",
                code="no_grpcio",
            ) from e
        self._grpc = grpc
        self._url = url.removeprefix("http://")
        self._first_committer = first_committer
        self._channel: Any = grpc.insecure_channel(self._url, options=_OPTIONS)
        self._calls: dict[str, Any] = {}

    def __repr__(self) -> str:
        return self._url

    def close(self) -> None:
        self._channel.close()

    def health(self) -> str:
        return _text(self._ask("Health", b""), 1)

    def version(self) -> str:
        return _text(self._ask("Version", b""), 1)

    def _ask(self, name: str, request: bytes) -> dict[int, list[Any]]:
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = self._channel.unary_unary(_SERVICE + name)
        try:
            return wire.fields(call(request))
        except self._grpc.RpcError as e:
            raise self._error(e) from None

    def _error(self, e: Any) -> Error:
        told = {name: value for name, value in e.trailing_metadata() or ()}
        code, details = told.get("outlast-code"), e.details() or ""
        message, _, hint = details.removesuffix(")").partition(" (hint: ") if "(hint: " in details else (details, "", "")
        if code is not None:
            return of(code, message, hint or None)
        status = e.code()
        if status == self._grpc.StatusCode.UNAVAILABLE:
            return NoServer(f"no server at {self._url}: {message}", hint="start one: outlast serve --grpc 127.0.0.1:50051")
        if status == self._grpc.StatusCode.ABORTED:
            return Conflict(message, hint=hint or None)
        if "transaction" in message and ("not found" in message or "expired" in message):
            return of("transaction_expired" if "expired" in message else "transaction_not_found", message, hint or None)
        return Error(message, hint=hint or None, code=str(status.name).lower())

    # --- transactions

    def begin(self, timeout_ms: int | None) -> str:
        id = Id(_text(self._ask("BeginTransaction", wire.number(1, timeout_ms)), 1))
        id.own = {}
        return id

    def write(self, id: str, namespace: str, agent: str, key: str, value: Any, expected: int | None) -> None:
        _not_said(expected)
        place = (namespace, agent, key)
        self._ask("Write", wire.text(1, id) + _place(2, *place) + wire.text(5, wire.to_struct(value)))
        _note(id, place, json.loads(versions.encode(value)))

    def delete(self, id: str, namespace: str, agent: str, key: str, expected: int | None) -> None:
        _not_said(expected)
        self._ask("Delete", wire.text(1, id) + _place(2, namespace, agent, key))
        _note(id, (namespace, agent, key), None)

    def see(self, id: str, namespace: str, agent: str, key: str) -> StateResult:
        """Reads a key with the transaction's own changes over the committed state.

        With `first-committer`, a stale read of a key that the transaction writes makes its commit fail.
        """
        found = self.get(namespace, agent, key)
        changes, value = _own(id).get((namespace, agent, key), (0, None))
        if not changes:
            return found
        return StateResult(value, found.version + changes, 0, value is not None, key)

    def commit(self, id: str) -> int:
        return int(_number(self._ask("Commit", wire.text(1, id)), 1))

    def abort(self, id: str) -> None:
        self._ask("Abort", wire.text(1, id))

    def outcome(self, id: str) -> int | None:
        # Commit is idempotent on the wire: asked again, it gives the same answer.
        try:
            return int(_number(self._ask("Commit", wire.text(1, id)), 1))
        except Error as e:
            if e.code in ("transaction_not_found", "transaction_expired"):
                return None
            raise

    def compares(self) -> None:
        if not self._first_committer:
            raise NotOnTheWire(
                "an update would lose others' updates: the Statehouse wire has no expected versions",
                hint='start the server with --grpc-conflicts first-committer, and say so: Statehouse(url, conflicts="first-committer")',
            )

    def expected(self, version: int) -> int | None:
        return None

    # --- reads

    def get(self, namespace: str, agent: str, key: str) -> StateResult:
        return _result(key, self._ask("GetState", _place(1, namespace, agent, key)))

    def at(self, namespace: str, agent: str, key: str, by: str, moment: int) -> StateResult:
        if by == "time":
            raise NotOnTheWire("the Statehouse wire has no times", hint="ask by version or commit, or `outlast state get --at`")
        if by == "version":
            return _result(key, self._ask("GetStateAtVersion", _place(1, namespace, agent, key) + wire.number(4, moment)))
        found = StateResult(None, 0, 0, False, key)
        for event in self._replay(namespace, agent, None, moment):
            for op in event.operations:
                if op.key == key:
                    found = StateResult(op.value, op.version, event.commit_ts, not op.deleted, key)
        return found

    def history(self, namespace: str, agent: str, key: str) -> list[StateResult]:
        newest = self.get(namespace, agent, key).version
        return [self.at(namespace, agent, key, "version", version) for version in range(1, newest + 1)]

    def namespaces(self) -> list[str]:
        raise _no_places()

    def agents(self, namespace: str) -> list[str]:
        raise _no_places()

    def keys(self, namespace: str, agent: str, prefix: str) -> list[str]:
        reply = self._ask("ListKeys", wire.text(1, namespace) + wire.text(2, agent))
        return [key.decode() for key in reply.get(1, []) if key.startswith(prefix.encode())]

    def scan(self, namespace: str, agent: str, prefix: str) -> Iterator[StateResult]:
        for entry in self._ask("ScanPrefix", _place(1, namespace, agent, prefix)).get(1, []):
            e = wire.fields(entry)
            value = wire.from_struct(e.get(2, [b""])[-1])
            yield StateResult(value, int(_number(e, 3)), int(_number(e, 4)), True, _text(e, 1))

    def resume_point(self, namespace: str, agent: str, prefix: str) -> ResumePoint:
        """Finds the resume point by reading all steps, since the protocol has no request for it."""
        last: dict[str, tuple[int, str]] = {"done": (-1, ""), "pending": (-1, "")}
        for found in self.scan(namespace, agent, prefix):
            n = found.key[len(prefix) :]
            status = found.value.get("status")
            if isinstance(status, str) and status in last and n.isascii() and n.isdigit():
                last[status] = max(last[status], (int(n), found.key))
        (done, _), (pending, key) = last["done"], last["pending"]
        return ResumePoint(done) if pending < 0 else ResumePoint(done, pending, key)

    def events(
        self, namespace: str, agent: str, start: tuple[str, int] | None, end: tuple[str, int] | None
    ) -> "Events":
        if any(at is not None and at[0] == "time" for at in (start, end)):
            raise NotOnTheWire("the Statehouse wire has no times", hint="replay by commit, or `outlast state replay`")
        return Events(self, namespace, agent, start[1] if start else None, end[1] if end else None)

    def _replay(self, namespace: str, agent: str, start: int | None, end: int | None) -> Iterator[ReplayEvent]:
        request = wire.text(1, namespace) + wire.text(2, agent) + wire.number(3, start) + wire.number(4, end)
        try:
            for reply in self._channel.unary_stream(_SERVICE + "Replay")(request):
                yield _event(wire.fields(reply))
        except self._grpc.RpcError as e:
            raise self._error(e) from None


class Events:
    """An agent's commits in order. Iterated again after the end, it gives the commits made since."""

    def __init__(self, remote: Remote, namespace: str, agent: str, start: int | None, end: int | None) -> None:
        self._remote = remote
        self._place = (namespace, agent)
        self._next, self._end = start, end
        #: Number of the last commit that was returned.
        self.head = 0

    def until_now(self) -> Iterator[ReplayEvent]:
        """The commits up to the newest that were not given yet."""
        event: ReplayEvent | None = None
        for part in self._remote._replay(*self._place, self._next, self._end):
            if event is not None and event.commit_ts == part.commit_ts:
                # A commit too long for one message comes in several.
                event.operations += part.operations
                continue
            if event is not None:
                yield self._given(event)
            event = part
        if event is not None:
            yield self._given(event)

    def _given(self, event: ReplayEvent) -> ReplayEvent:
        self.head, self._next = event.commit_ts, event.commit_ts + 1
        return event


def _place(first: int, *parts: str) -> bytes:
    return b"".join(wire.text(first + i, part) for i, part in enumerate(parts))


def _own(id: str) -> dict[tuple[str, str, str], tuple[int, Any]]:
    return id.own if isinstance(id, Id) else {}


def _note(id: str, place: tuple[str, str, str], value: Any) -> None:
    own = _own(id)
    own[place] = (own.get(place, (0, None))[0] + 1, value)


def _not_said(expected: int | None) -> None:
    if expected is not None:
        raise NotOnTheWire(
            "the Statehouse wire has no expected versions",
            hint="open the store here, or start the server with --grpc-conflicts first-committer and read what is written",
        )


def _no_places() -> NotOnTheWire:
    hint = "open the store here, or GET /v1/state/namespaces and /v1/state/agents"
    return NotOnTheWire("the Statehouse wire lists neither namespaces nor agents", hint=hint)


def _text(reply: dict[int, list[Any]], field: int) -> str:
    return str(reply.get(field, [b""])[-1].decode())


def _number(reply: dict[int, list[Any]], field: int) -> int:
    return int(reply.get(field, [0])[-1])


def _result(key: str, reply: dict[int, list[Any]]) -> StateResult:
    value = wire.from_struct(reply[1][-1]) if 1 in reply else None
    return StateResult(value, _number(reply, 2), _number(reply, 3), bool(_number(reply, 4)), key)


def _event(reply: dict[int, list[Any]]) -> ReplayEvent:
    operations = []
    for op in map(wire.fields, reply.get(3, [])):
        value = wire.from_struct(op[2][-1]) if 2 in op else None
        operations.append(Operation(_text(op, 1), value, _number(op, 3), 2 not in op))
    return ReplayEvent(_text(reply, 1), _number(reply, 2), operations)
