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
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import quote, urlencode, urlsplit

from .. import versions
from ..errors import Error, NoServer, of
from ..versions import StateResult
from .reads import Reads

_ROOT = "/v1/state/"
_EXPIRES_MS = 30_000

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


class Remote(Reads):
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

    def ask(self, question: str, **words: Any) -> Any:
        if "key" in words:
            place = "/".join(quote(words.pop(part), safe="") for part in ("namespace", "agent", "key"))
            question = place if question == "version" else f"{place}/{question}"
        return self._ask("GET", question, **words)

    def get(self, namespace: str, agent: str, key: str) -> StateResult:
        return self.at(namespace, agent, key, "", 0)

    def at(self, namespace: str, agent: str, key: str, by: str, moment: int) -> StateResult:
        try:
            return super().at(namespace, agent, key, by, moment)
        except Error as e:
            if e.code != "no_such_key":
                raise
        # Never written by then, or deleted: the history has the version that deleted it.
        last = StateResult(None, 0, 0, False, key)
        for version in self.history(namespace, agent, key, moment - 1 if by == "version" else 0):
            if _is_after(version, by, moment):
                break
            last = version
        return last

    def told(self, **query: Any) -> Iterator[tuple[str, int, Any]]:
        connection, response = self._sent("GET", _path("replay", query))
        kind, position = "", 0
        try:
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    position = int(value)
                elif name == "data" and kind == "error":
                    error = json.loads(value)
                    raise of(error["code"], error["message"])
                elif name == "data":
                    yield kind, position, json.loads(value)
        except (OSError, http.client.HTTPException) as e:
            raise NoServer(f"the server at {self._url} was lost: {e}", hint=_HINT) from None
        finally:
            self._done(connection, response)


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
