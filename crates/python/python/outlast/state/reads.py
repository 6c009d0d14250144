"""Reads of the state in the shapes of REST: over HTTP from a server, and without one from a store that is opened here."""

from __future__ import annotations

import json
import warnings
from typing import Any, Callable, Iterator

from .. import _native, versions
from ..errors import CompactedWarning
from ..versions import Operation, ReplayEvent, ResumePoint, StateResult

_KEYS = 10_000
_VALUES = 1_000


class Reads:
    """The questions about the state. A subclass says who answers them."""

    def ask(self, question: str, **words: Any) -> Any:
        """Asks a question of `/v1/state/`, of a key by its `namespace`, `agent` and `key`. A word that is None is left out."""
        raise NotImplementedError

    def told(self, **query: Any) -> Iterator[tuple[str, int, Any]]:
        """The events of a replay: kind, position and data."""
        raise NotImplementedError

    def at(self, namespace: str, agent: str, key: str, by: str, moment: int) -> StateResult:
        """A key as it was at a version, commit or time; as it is now without `by`."""
        words = {by: _named(by, moment)} if by else {}
        return _result(key, self.ask("version", namespace=namespace, agent=agent, key=key, **words))

    def history(self, namespace: str, agent: str, key: str, after: int = 0) -> Iterator[StateResult]:
        following: int | None = max(0, after)
        while following is not None:
            page = self.ask("history", namespace=namespace, agent=agent, key=key, after=following, limit=_VALUES)
            yield from (_result(key, row) for row in page["versions"])
            following = page["after"]

    def namespaces(self) -> list[str]:
        return self._names("namespaces")

    def agents(self, namespace: str) -> list[str]:
        return self._names("agents", namespace=namespace)

    def _names(self, what: str, **words: Any) -> list[str]:
        names: list[str] = []
        while True:
            page = self.ask(what, after=names[-1] if names else None, limit=_KEYS, **words)[what]
            names += [row if isinstance(row, str) else row["namespace"] for row in page]
            if len(page) < _KEYS:
                return names

    def keys(self, namespace: str, agent: str, prefix: str) -> list[str]:
        return [row["key"] for row in self._pages("keys", "keys", _KEYS, namespace, agent, prefix)]

    def scan(self, namespace: str, agent: str, prefix: str) -> Iterator[StateResult]:
        return (_result(row["key"], row) for row in self._pages("scan", "items", _VALUES, namespace, agent, prefix))

    def _pages(self, question: str, what: str, limit: int, namespace: str, agent: str, prefix: str) -> Iterator[Any]:
        """The rows of all pages, which show one moment."""
        cursor = ""
        while cursor is not None:
            page = self.ask(question, namespace=namespace, agent=agent, prefix=prefix, limit=limit, cursor=cursor or None)
            yield from page[what]
            cursor = page["cursor"]

    def resume_point(self, namespace: str, agent: str, prefix: str) -> ResumePoint:
        return ResumePoint(**self.ask("resume_point", namespace=namespace, agent=agent, prefix=prefix))

    def events(self, namespace: str, agent: str, start: tuple[str, int] | None, end: tuple[str, int] | None) -> "Events":
        ends = {f"{word}_{moment[0]}": _named(*moment) for word, moment in (("from", start), ("to", end)) if moment is not None}
        return Events(self, {"namespace": namespace, "agent": agent, **ends})


class Local(Reads):
    """Reads of a store that is opened in this process. `load` reads the JSON of an answer."""

    def __init__(self, states: _native.States, load: Callable[[bytes], Any] = json.loads) -> None:
        self._states = states
        self._load = load

    def ask(self, question: str, **words: Any) -> Any:
        return self._load(self._states.ask(question, [(name, str(word)) for name, word in words.items() if word is not None]))

    def told(self, **query: Any) -> Iterator[tuple[str, int, Any]]:
        head = None
        while True:
            page = self.ask("replay", **query)
            # What is committed meanwhile is not waited for.
            head = page["head"] if head is None else head
            if page["compacted"]:
                yield "compacted", 0, None
            for position, commit in page["commits"]:
                yield "commit", position, commit
                query["after"] = position
            if not page["commits"] or page["commits"][-1][1]["commit"] >= head:
                yield "head", 0, head
                return


class Events:
    """An agent's commits in order. Iterated again after the end, it gives the commits made since."""

    def __init__(self, reads: Reads, query: dict[str, Any]) -> None:
        self._reads = reads
        self._query = query
        self._after = 0
        #: Number of the newest commit up to which all was given, as far as it was told.
        self.head = 0
        self._warned = False

    def until_now(self) -> Iterator[ReplayEvent]:
        """The commits up to the newest that were not given yet."""
        for kind, position, data in self._reads.told(after=self._after, **self._query):
            if kind == "compacted" and not self._warned:
                self._warned = True
                warnings.warn("the replay is not whole: compaction has removed some of its versions", CompactedWarning, stacklevel=3)
            if kind == "head":
                self.head = max(self.head, data)
            if kind == "commit":
                self._after, self.head = position, data["commit"]
                operations = [Operation(o["key"], o.get("value"), o["version"], o.get("deleted", False)) for o in data["operations"]]
                yield ReplayEvent(data.get("transaction") or "", self.head, operations, versions.parsed(data["at"]), self._query["agent"])


def _named(by: str, moment: int) -> int | str:
    """A moment as a query names it: a time in RFC 3339, a version, commit or position by its number."""
    return versions.moment(moment).isoformat() if by == "time" else moment


def _result(key: str, row: dict[str, Any] | None) -> StateResult:
    if row is None:
        return StateResult(None, 0, 0, False, key)
    return StateResult(
        row.get("value"), row["version"], row["commit"], not row.get("deleted", False), key, versions.parsed(row["at"]),
        row.get("run"), row.get("attempt"),
    )  # fmt: skip
