"""The Claude Agent SDK on Outlast: `pip install 'outlast[claude-agent]'`.

    from outlast.claude_agent import options

    with rt.run("review-7"):
        async with ClaudeSDKClient(options(ClaudeAgentOptions())) as client: …

The run's session goes on in each of its lives, on any machine that has the store; tools that a death cut off are told to
the model before it repeats one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from claude_agent_sdk import (  # type: ignore[import-not-found,unused-ignore]
    ClaudeAgentOptions,
    HookMatcher,
    fold_session_summary,
    project_key_for_directory,
)

from . import runtime, scope
from .errors import Conflict
from .state.table import Change, Table

if TYPE_CHECKING:
    import os

    from .runs import Run
    from .runtime import Runtime

__all__ = ["OutlastSessionStore", "ToolHooks", "options", "session_id"]

#: Tools of Claude Code that only look: one that a death cut off is repeated.
READERS = frozenset({"Glob", "Grep", "LS", "NotebookRead", "Read", "TodoRead", "WebFetch", "WebSearch"})

# Ids of sessions follow from those of runs.
_SESSIONS = uuid.UUID("b3c8b0d2-52f1-5d0e-9f6e-0f1d1c8d7a35")


def session_id(run: "Run") -> str:
    """The session id of the run's agent, the same in every life of the run."""
    return str(uuid.uuid5(_SESSIONS, run.id))


def options(given: ClaudeAgentOptions, *, readers: "frozenset[str] | set[str]" = READERS) -> ClaudeAgentOptions:
    """The options of a client of the current run: its session is begun or resumed, kept in the store, and its tools are recorded.

    `readers` names the tools that only look. Hooks and everything else that was given stay. Errors: `NoRun`; `ValueError`
    where the options name another session or store.
    """
    run = scope.current().run
    if given.session_store is not None or given.resume is not None or given.session_id is not None or given.continue_conversation:
        raise ValueError("options wants no session_store, resume, session_id or continue_conversation: they are the run's")
    store, id = OutlastSessionStore(run._runtime), session_id(run)
    known = store.has({"project_key": project_key_for_directory(given.cwd), "session_id": id})
    hooks = {event: list(matchers) for event, matchers in (given.hooks or {}).items()}
    for event, matchers in ToolHooks(run, readers).hooks().items():
        hooks.setdefault(event, []).extend(matchers)
    session = {"resume": id} if known else {"session_id": id}
    return dataclasses.replace(given, session_store=store, session_store_flush="eager", hooks=hooks, **session)


class OutlastSessionStore:
    """A `SessionStore` of the Agent SDK in a store of Outlast. Appends are atomic, and an entry of a known `uuid` is not stored again.

    What `delete` deletes is erased.
    """

    def __init__(self, store: "str | os.PathLike[str] | Runtime | None" = None) -> None:
        self._table = Table(runtime.of(store), "claude_agent")
        # By session and subpath: the number of entries, the version of that word, and the uuids.
        self._known: dict[tuple[str, str], tuple[dict[str, Any], int, set[str]]] = {}

    async def append(self, key: Any, entries: list[Any]) -> None:
        await asyncio.to_thread(self._append, key, entries)

    async def load(self, key: Any) -> list[Any] | None:
        return await asyncio.to_thread(self._load, key)

    async def list_sessions(self, project_key: str) -> list[Any]:
        return await asyncio.to_thread(lambda: [{"session_id": id, "mtime": mtime} for id, mtime, _ in self._heads(project_key)])

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        return await asyncio.to_thread(
            lambda: [{**head["summary"], "mtime": mtime} for _, mtime, head in self._heads(project_key) if head["summary"]]
        )

    async def delete(self, key: Any) -> None:
        await asyncio.to_thread(self._delete, key)

    async def list_subkeys(self, key: Any) -> list[str]:
        return await asyncio.to_thread(self._subkeys, key)

    def has(self, key: Any) -> bool:
        """Whether the session of this key has an entry."""
        return self._table.row(_agent(key), _head(key))[1] is not None

    # --- rows: `n/SUBPATH` counts the entries `e/SUBPATH/N`

    def _append(self, key: Any, entries: list[Any]) -> None:
        agent, sub = _agent(key), _sub(key)
        while True:
            head, version, uuids = self._known.get((agent, sub)) or self._read(agent, key)
            count, added, changes = head["next"], set[str](), list[Change]()
            for entry in entries:
                id = entry.get("uuid")
                if id is not None and (id in uuids or id in added):
                    continue
                if id is not None:
                    added.add(id)
                changes.append((f"e/{sub}/{count:012}", _json(entry), None))
                count += 1
            if not changes:
                return
            summary = head["summary"]
            if key.get("subpath") is None:
                summary = fold_session_summary(summary, {**key}, entries)
            following = {"next": count, "summary": summary}
            try:
                self._table.commit(agent, [(_head(key), _json(following), version), *changes])
            except Conflict:
                # Another process appended to the session.
                self._known.pop((agent, sub), None)
                continue
            self._known[agent, sub] = (following, version + 1, uuids | added)
            return

    def _read(self, agent: str, key: Any) -> tuple[dict[str, Any], int, set[str]]:
        version, value, _ = self._table.row(agent, _head(key))
        head = {"next": 0, "summary": None} if value is None else json.loads(value)
        return head, version, {entry["uuid"] for entry in self._entries(agent, _sub(key)) if entry.get("uuid") is not None}

    def _entries(self, agent: str, sub: str) -> list[Any]:
        return [json.loads(value) for _, _, value in self._table.scan(agent, f"e/{sub}/")]

    def _load(self, key: Any) -> list[Any] | None:
        return self._entries(_agent(key), _sub(key)) or None

    def _heads(self, project_key: str) -> list[tuple[str, int, dict[str, Any]]]:
        """Id, time and head of each session of a project that has a main transcript."""
        prefix, found = f"{_quoted(project_key)}/", []
        for agent in self._table.agents():
            if agent.startswith(prefix):
                _, value, at = self._table.row(agent, "n/")
                if value is not None:
                    found.append((unquote(agent[len(prefix) :]), at, json.loads(value)))
        return found

    def _subkeys(self, key: Any) -> list[str]:
        return [unquote(found[2:]) for found in self._table.keys(_agent(key), "n/") if found != "n/"]

    def _delete(self, key: Any) -> None:
        agent = _agent(key)
        if key.get("subpath") is None:
            keys = self._table.keys(agent, "n/") + self._table.keys(agent, "e/")
        else:
            keys = [found for found in (_head(key),) if self.has(key)] + self._table.keys(agent, f"e/{_sub(key)}/")
        self._table.remove(agent, keys, [])
        for place in [place for place in self._known if place[0] == agent]:
            del self._known[place]


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _agent(key: Any) -> str:
    return f"{_quoted(key['project_key'])}/{_quoted(key['session_id'])}"


def _sub(key: Any) -> str:
    return _quoted(key.get("subpath") or "")


def _head(key: Any) -> str:
    return f"n/{_sub(key)}"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


class ToolHooks:
    """Hooks that record each tool of a run before it begins and after it ended. A tool that cannot be recorded is blocked.

    A tool with an input that an earlier life began and did not finish is denied once, and the model told that it may have
    been done; asked for again, it is called. Tools that only look are called.
    """

    def __init__(self, run: "Run", readers: "frozenset[str] | set[str]" = READERS) -> None:
        self._run = run
        self._readers = frozenset(readers)

    def hooks(self) -> dict[str, list[HookMatcher]]:
        """The hooks, for `ClaudeAgentOptions(hooks=…)`."""
        return {
            "PreToolUse": [HookMatcher(hooks=[self.before], on_failure="block")],
            "PostToolUse": [HookMatcher(hooks=[self.after], on_failure="block")],
            "PostToolUseFailure": [HookMatcher(hooks=[self.after])],
        }

    async def before(self, asked: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._before, asked["tool_name"], asked["tool_input"], tool_use_id)

    async def after(self, asked: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._after, asked["tool_name"], asked["tool_input"], tool_use_id)

    def _before(self, name: str, given: Any, id: str | None) -> dict[str, Any]:
        key, attempt = self._key(name, given), self._run.attempt
        known = self._run.state.get(key)
        cut_off = known is not None and known["status"] == "begun" and known["attempt"] != attempt
        if cut_off and name not in self._readers:
            self._run.state.put(key, {**known, "status": "told"})
            return _denied(
                f"outcome unknown: an earlier life of this agent began {name} with this very input and was killed in it, so that it may "
                "have been done. Look whether it was. If it has to be done again, call it again."
            )
        self._run.state.put(key, {"tool": name, "status": "begun", "attempt": attempt, "id": id})
        return {}

    def _after(self, name: str, given: Any, id: str | None) -> dict[str, Any]:
        self._run.state.put(self._key(name, given), {"tool": name, "status": "done", "attempt": self._run.attempt, "id": id})
        return {}

    def _key(self, name: str, given: Any) -> str:
        text = json.dumps([name, given], sort_keys=True, ensure_ascii=True)
        return f"claude_agent/{quote(name)}/{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _denied(reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    }
