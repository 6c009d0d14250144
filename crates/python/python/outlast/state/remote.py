"""The state of a server, over REST: `outlast serve`, or `OUTLAST_URL` under `outlast run`.

A transaction is kept here and sent when it commits, whole and under its id: sent again, it is not applied again.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import time
import uuid
import warnings
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import quote, urlencode, urlsplit

from .. import versions
from ..errors import CompactedWarning, Error, NoServer, of
from ..versions import Operation, ReplayEvent, ResumePoint, StateResult

_ROOT = "/v1/state/"
_EXPIRES_MS = 30_000
_KEYS = 10_000
_VALUES = 1_000

Place = tuple[str, str, str]


@dataclasses.dataclass
class _Transaction:
    """A transaction that is not committed yet."""

    #: On the monotonic clock, in seconds.
    expires: float
    changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    #: The number of changes of each key, and the last one.
    own: dict[Place, tuple[int, dict[str, Any]]] = dataclasses.field(default_factory=dict)
    #: The version at which each key was first seen.
    seen: dict[Place, int] = dataclasses.field(default_factory=dict)


class Remote:
    """The backend of a `Statehouse` on a server. Threads share its connections."""

    def __init__(self, url: str, first_committer: bool) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url wants the address of `outlast serve`, such as http://127.0.0.1:7077, had {url!r}")
        self._host, self._is_tls = parts.netloc, parts.scheme == "https"
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._first_committer = first_committer
        token = _token(self._url)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._transactions: dict[str, _Transaction] = {}
        # Ids of transactions that were committed without a change: the server never heard of them.
        self._empty: set[str] = set()
        # Connections that wait for a request, of this process: a forked child has its own.
        self._idle: list[http.client.HTTPConnection] = []
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return self._url

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def health(self) -> str:
        self._ask("GET", "namespaces", limit=1)
        return "ok"

    def version(self) -> str:
        return f"outlast {self._exchange('GET', '/version')['version']}"

    # --- the line

    def _ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        return self._exchange(method, _path(path, query), body)

    def _exchange(self, method: str, path: str, body: Any = None) -> Any:
        connection, response = self._sent(method, path, body)
        try:
            return json.loads(response.read())
        except ValueError:
            raise NoServer(f"{self._url} answers {method} {path} with what is no JSON", hint=_HINT) from None
        finally:
            self._done(connection, response)

    def _sent(self, method: str, path: str, body: Any = None) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Sends a request. Returns its answer, to be read, and the connection. Errors: the server's, `NoServer`."""
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        while True:
            connection, is_kept = self._connection()
            try:
                connection.request(method, path, data, self._headers)
                response = connection.getresponse()
                break
            except (OSError, http.client.HTTPException) as e:
                connection.close()
                # The server may have closed a connection that waited. Every request here may be sent twice.
                if not is_kept:
                    raise NoServer(f"no server at {self._url}: {e}", hint=_HINT) from None
        if response.status >= 400:
            try:
                raise _refusal(response)
            finally:
                self._done(connection, response)
        return connection, response

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            return (http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection)(self._host), False

    def _done(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.isclosed():
            self._idle.append(connection)
        else:
            # The rest of an answer that nobody reads.
            connection.close()

    # --- transactions

    def begin(self, timeout_ms: int | None) -> str:
        now = time.monotonic()
        for id in [id for id, begun in self._transactions.items() if begun.expires < now - _EXPIRES_MS]:
            self._transactions.pop(id, None)
        id = f"txn_{uuid.uuid4().hex}"
        self._transactions[id] = _Transaction(now + (_EXPIRES_MS if timeout_ms is None else timeout_ms) / 1000)
        return id

    def _begun(self, id: str) -> _Transaction:
        begun = self._transactions.get(id)
        if begun is None:
            raise of("transaction_not_found", f"transaction not found: {id}")
        if begun.expires <= time.monotonic():
            raise of("transaction_expired", f"transaction {id} has expired: nothing of it is written")
        return begun

    def write(self, id: str, namespace: str, agent: str, key: str, value: Any, expected: int | None) -> None:
        self._change(id, (namespace, agent, key), {"value": json.loads(versions.encode(value))}, expected)

    def delete(self, id: str, namespace: str, agent: str, key: str, expected: int | None) -> None:
        self._change(id, (namespace, agent, key), {"delete": True}, expected)

    def _change(self, id: str, place: Place, what: dict[str, Any], expected: int | None) -> None:
        begun = self._begun(id)
        if expected is None and self._first_committer:
            if place not in begun.seen:
                begun.seen[place] = self.get(*place).version
            expected = begun.seen[place]
        begun.changes.append({**dict(zip(("namespace", "agent", "key"), place)), **what, "expected_version": expected})
        begun.own[place] = (begun.own.get(place, (0, what))[0] + 1, what)

    def see(self, id: str, namespace: str, agent: str, key: str) -> StateResult:
        """Reads a key with the transaction's own changes over the committed state.

        With `first-committer`, a stale read of a key that the transaction writes makes its commit fail.
        """
        begun, place = self._begun(id), (namespace, agent, key)
        committed = self.get(*place)
        begun.seen.setdefault(place, committed.version)
        if place not in begun.own:
            return committed
        changes, last = begun.own[place]
        return StateResult(last.get("value"), committed.version + changes, 0, "delete" not in last, key)

    def commit(self, id: str) -> int:
        changes = self._begun(id).changes
        self.abort(id)
        if not changes:
            self._empty.add(id)
            return 0
        return int(self._ask("POST", "transaction", {"id": id, "changes": changes})["commit"])

    def abort(self, id: str) -> None:
        self._transactions.pop(id, None)

    def outcome(self, id: str) -> int | None:
        if id in self._empty:
            return 0
        try:
            return int(self._ask("GET", "transaction", id=id)["commit"])
        except Error as e:
            if e.code in ("transaction_not_found", "transaction_expired"):
                return None
            raise

    # --- reads

    def get(self, namespace: str, agent: str, key: str) -> StateResult:
        return self.at(namespace, agent, key, "", 0)

    def at(self, namespace: str, agent: str, key: str, by: str, moment: int) -> StateResult:
        """A key as it was at a version, commit or time; as it is now without `by`."""
        try:
            return _result(self._ask("GET", _item(namespace, agent, key), **({by: _named(by, moment)} if by else {})))
        except Error as e:
            if e.code != "no_such_key":
                raise
        # Never written by then, or deleted: the history has the version that deleted it.
        last = StateResult(None, 0, 0, False, key)
        for version in self._history(namespace, agent, key, moment - 1 if by == "version" else 0):
            if _is_after(version, by, moment):
                break
            last = version
        return last

    def history(self, namespace: str, agent: str, key: str) -> list[StateResult]:
        return list(self._history(namespace, agent, key, 0))

    def _history(self, namespace: str, agent: str, key: str, after: int | None) -> Iterator[StateResult]:
        while after is not None:
            page = self._ask("GET", f"{_item(namespace, agent, key)}/history", after=max(0, after), limit=_VALUES)
            yield from map(_result, page["versions"])
            after = page["after"]

    def namespaces(self) -> list[str]:
        return self._names("namespaces")

    def agents(self, namespace: str) -> list[str]:
        return self._names("agents", namespace=namespace)

    def _names(self, what: str, **query: Any) -> list[str]:
        names: list[str] = []
        while True:
            page = self._ask("GET", what, after=names[-1] if names else None, limit=_KEYS, **query)[what]
            names += [row if isinstance(row, str) else row["namespace"] for row in page]
            if len(page) < _KEYS:
                return names

    def keys(self, namespace: str, agent: str, prefix: str) -> list[str]:
        return [row["key"] for row in self._pages("keys", "keys", _KEYS, namespace, agent, prefix)]

    def scan(self, namespace: str, agent: str, prefix: str) -> Iterator[StateResult]:
        return map(_result, self._pages("scan", "items", _VALUES, namespace, agent, prefix))

    def _pages(self, path: str, what: str, limit: int, namespace: str, agent: str, prefix: str) -> Iterator[Any]:
        """The rows of all pages, which show one moment."""
        cursor = ""
        while cursor is not None:
            page = self._ask("GET", path, namespace=namespace, agent=agent, prefix=prefix, limit=limit, cursor=cursor or None)
            yield from page[what]
            cursor = page["cursor"]

    def resume_point(self, namespace: str, agent: str, prefix: str) -> ResumePoint:
        return ResumePoint(**self._ask("GET", "resume_point", namespace=namespace, agent=agent, prefix=prefix))

    def events(self, namespace: str, agent: str, start: tuple[str, int] | None, end: tuple[str, int] | None) -> "Events":
        ends = {f"{word}_{moment[0]}": _named(*moment) for word, moment in (("from", start), ("to", end)) if moment is not None}
        return Events(self, {"namespace": namespace, "agent": agent, **ends})

    def server_sent(self, path: str, **query: Any) -> Iterator[tuple[str, int, Any]]:
        """The server-sent events of a route: kind, position and data."""
        connection, response = self._sent("GET", _path(path, query))
        kind, position = "", 0
        try:
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    position = int(value)
                elif name == "data":
                    yield kind, position, json.loads(value)
        except (OSError, http.client.HTTPException) as e:
            raise NoServer(f"the server at {self._url} was lost: {e}", hint=_HINT) from None
        finally:
            self._done(connection, response)


class Events:
    """An agent's commits in order. Iterated again after the end, it gives the commits made since."""

    def __init__(self, remote: Remote, query: dict[str, Any]) -> None:
        self._remote = remote
        self._query = query
        self._after = 0
        #: Number of the last commit that was returned.
        self.head = 0
        self._warned = False

    def until_now(self) -> Iterator[ReplayEvent]:
        """The commits up to the newest that were not given yet."""
        for kind, position, data in self._remote.server_sent("replay", after=self._after, **self._query):
            if kind == "error":
                raise of(data["code"], data["message"])
            if kind == "compacted" and not self._warned:
                self._warned = True
                warnings.warn("the replay is not whole: compaction has removed some of its versions", CompactedWarning, stacklevel=3)
            if kind == "commit":
                self._after, self.head = position, data["commit"]
                operations = [Operation(o["key"], o.get("value"), o["version"], o.get("deleted", False)) for o in data["operations"]]
                yield ReplayEvent(data.get("transaction") or "", self.head, operations, versions.parsed(data["at"]), self._query["agent"])


_HINT = "start one: outlast serve --listen 127.0.0.1:7077 (url= is that address, and not the one of --grpc)"


def _token(url: str) -> str | None:
    """The token to show to a server: the run's to the run's own, the API token to the one that OUTLAST_SERVER names. The latter
    is read as the command line reads it, and crosses no network in the clear."""
    if os.environ.get("OUTLAST_URL", "").rstrip("/") == url:
        return os.environ.get("OUTLAST_TOKEN")
    is_safe = url.startswith("https:") or urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    if not is_safe or os.environ.get("OUTLAST_SERVER", "").rstrip("/") != url:
        return None
    token, file = os.environ.get("OUTLAST_API_TOKEN"), os.environ.get("OUTLAST_API_TOKEN_FILE")
    return token.strip() if token is not None else Path(file).read_text().strip() if file else None


def _path(path: str, query: dict[str, Any]) -> str:
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{_ROOT}{path}{'?' if given else ''}{given}"


def _item(namespace: str, agent: str, key: str) -> str:
    return "/".join(quote(part, safe="") for part in (namespace, agent, key))


def _refusal(response: http.client.HTTPResponse) -> Error:
    try:
        error = json.loads(response.read())["error"]
        return of(error["code"], error["message"], error["hint"])
    except (ValueError, LookupError, TypeError):
        return NoServer(f"the server answers {response.status} {response.reason}", hint=_HINT)


def _is_after(version: StateResult, by: str, moment: int) -> bool:
    if by == "time":
        return version.at is not None and version.at > versions.moment(moment)
    return bool(by) and (version.version if by == "version" else version.commit_ts) > moment


def _named(by: str, moment: int) -> int | str:
    """A moment as a query names it: a time in RFC 3339, a version or commit by its number."""
    return versions.moment(moment).isoformat() if by == "time" else moment


def _result(row: dict[str, Any]) -> StateResult:
    return StateResult(
        row.get("value"), row["version"], row["commit"], not row.get("deleted", False), row["key"], versions.parsed(row["at"]),
        row.get("run"), row.get("attempt"),
    )  # fmt: skip
