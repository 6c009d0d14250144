"""The Claude Agent SDK on Outlast: `pip install 'outlast[claude-agent]'`.

    from outlast.claude_agent import query

    with rt.run("review-7"):
        async for message in query(prompt="Review the last commit."): …

The run's session goes on in each of its lives, on any machine that has the store; tools that a death cut off are told to
the model before it repeats one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from claude_agent_sdk import (  # type: ignore[import-not-found,unused-ignore]
    ClaudeAgentOptions,
    HookMatcher,
    ResultMessage,
    fold_session_summary,
    project_key_for_directory,
)
from claude_agent_sdk import query as sdk_query  # type: ignore[import-not-found,unused-ignore]

from . import clients, runs, runtime
from .errors import Conflict
from .state.table import Change, Table
from .tools import Effect, ToolSpec

if TYPE_CHECKING:
    from .runs import Run
    from .opening import Store

__all__ = ["OutlastSessionStore", "ToolHooks", "options", "query", "session_id"]

#: Tools of Claude Code that only look: one that a death cut off is repeated.
READERS = frozenset({"Glob", "Grep", "LS", "NotebookRead", "Read", "TodoRead", "WebFetch", "WebSearch"})

#: What a resumed session is told in place of its first prompt.
GO_ON = "Your program ended and was started again, in the same session. Go on with the task from where it was."

# Variables by which Claude Code asks a cloud's models.
_CLOUDS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")

# This process: of a call that another one began and did not finish, nobody knows what came.
_PROCESS = uuid.uuid4().hex

# Queries that this life has begun, by run and prompt.
_asked: "WeakKeyDictionary[Run, Counter[str]]" = WeakKeyDictionary()

# Key of the number of the run's session, and of the process that began it.
_SESSION = "claude_agent/session"

# Ids of sessions follow from those of runs.
_SESSIONS = uuid.UUID("b3c8b0d2-52f1-5d0e-9f6e-0f1d1c8d7a35")


async def query(
    *, prompt: str, options: ClaudeAgentOptions | None = None, effects: Mapping[str, Effect] | None = None
) -> AsyncIterator[Any]:
    """The SDK's `query` in the run's session, once over all lives of the run.

    If a death cut the query off, the next life goes on in the session, and says so in place of the prompt. A query that
    had its result gives that `ResultMessage` alone, also in a completed run. A query is known by its prompt, and its
    place among equal ones. `options` and `effects` are those of `outlast.claude_agent.options`. Errors: its own, and the SDK's.
    """
    run = runs.current().run
    asked = _asked.setdefault(run, Counter())
    place, asked[prompt] = asked[prompt], asked[prompt] + 1
    key = f"claude_agent/query/{hashlib.sha256(prompt.encode()).hexdigest()[:32]}/{place}"
    known = run.state.get(key)
    if known is not None:
        yield known
        return
    made = _options(options or ClaudeAgentOptions(), effects)
    begun = made.resume is not None and made.session_store._prompts(_place(made.cwd, made.resume)).count(prompt) > place
    async for message in sdk_query(prompt=GO_ON if begun else prompt, options=made):
        if isinstance(message, ResultMessage) and not message.is_error:
            run.state.put(key, message)
        yield message


def options(given: ClaudeAgentOptions, *, effects: Mapping[str, Effect] | None = None) -> ClaudeAgentOptions:
    """The options of a client of the current run: its session is begun or resumed, kept in the store, and its tools are recorded.

    A session is resumed where the result's `resume` is not None: send `GO_ON` then, in place of a prompt that it has. A
    session that was killed before its first answer was kept is begun anew: it asks its model what the killed one asked, and
    is given the recorded answer.

    `effects` says of each tool what becomes of a call that a death cut off: `"read"` and `"idempotent"` are called again,
    `"once"` is told to the model first. The default is `"read"` for Claude Code's tools that only look (`READERS`), and
    `"once"` for all others.

    With an `ANTHROPIC_API_KEY` in the process's environment, the model's calls go through Outlast's proxy, unless the options'
    `env` names another place or credential. Under a login of Claude's, or with a cloud's models, they go where they went.

    Hooks and everything else that was given stay. Errors: `NoRun`; `RunCompleted`; `ValueError` where the options name
    another session or store, or `effects` has what is no effect.
    """
    return _options(given, effects)


def _options(given: ClaudeAgentOptions, effects: Mapping[str, Effect] | None) -> ClaudeAgentOptions:
    run = runs.current().run
    if given.session_store is not None or given.resume is not None or given.session_id is not None or given.continue_conversation:
        raise ValueError("options wants no session_store, resume, session_id or continue_conversation: they are the run's")
    store = OutlastSessionStore(run._store)
    id = session_id(run)
    life, begun = _life(), run.state.get(_SESSION)
    place = _place(given.cwd, id)
    # Without an answer there is nothing to go on from, unless this process began the session itself.
    known = store._has_answer(place) or bool(begun is not None and begun["life"] == life and store._prompts(place))
    if not known and begun != {**(begun or {}), "life": life}:
        # Claude Code takes no id a second time.
        number = 0 if begun is None else begun["number"] + 1
        run.state.put(_SESSION, {"number": number, "life": life})
        id = session_id(run)
    hooks = {event: list(matchers) for event, matchers in (given.hooks or {}).items()}
    for event, matchers in ToolHooks(run, effects).hooks().items():
        hooks.setdefault(event, []).extend(matchers)
    session = {"resume": id} if known else {"session_id": id}
    return dataclasses.replace(
        given, session_store=store, session_store_flush="eager", hooks=hooks, env=_through_the_proxy(given.env or {}), **session
    )


def session_id(run: "Run") -> str:
    """The id of the run's session, the same in every life that goes on in it."""
    number = (run.state.get(_SESSION) or {"number": 0})["number"]
    return str(uuid.uuid5(_SESSIONS, f"{run.id}/{number}" if number else run.id))


def _place(cwd: Any, id: str) -> Any:
    return {"project_key": project_key_for_directory(cwd), "session_id": id}


def _life() -> str:
    return f"{_PROCESS}/{os.getpid()}"


def _through_the_proxy(env: dict[str, str]) -> dict[str, str]:
    """The environment of Claude Code, with the run's proxy where its calls are paid by an API key of ours."""
    around = {**os.environ, **env}
    # Outlast's proxy has the key of the process's environment, and no other.
    own = any(name in env for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"))
    if own or not around.get("ANTHROPIC_API_KEY") or any(around.get(name) for name in _CLOUDS):
        return env
    found = clients.endpoint()
    straight = ",".join(["localhost", "127.0.0.1", "::1", *filter(None, (around.get("no_proxy"), around.get("NO_PROXY")))])
    return {**env, "ANTHROPIC_BASE_URL": found.url, "ANTHROPIC_API_KEY": found.token, "NO_PROXY": straight, "no_proxy": straight}


class OutlastSessionStore:
    """A `SessionStore` of the Agent SDK in a store of Outlast. Appends are atomic, and an entry of a known `uuid` is not stored again.

    What `delete` deletes is erased.
    """

    def __init__(self, store: "str | os.PathLike[str] | Store | None" = None) -> None:
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

    def _prompts(self, key: Any) -> list[str]:
        """The texts of the user's prompts that the session has."""
        return [text for entry in self._load(key) or [] if (text := _prompt(entry)) is not None]

    def _has_answer(self, key: Any) -> bool:
        """Whether the session has something that the model said. What Claude Code says in its place does not count."""
        return any(
            entry.get("type") == "assistant" and (entry.get("message") or {}).get("model") != "<synthetic>"
            for entry in self._load(key) or []
        )

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
            keys = [found for found in (_head(key),) if self._table.row(agent, found)[1] is not None] + self._table.keys(agent, f"e/{_sub(key)}/")
        self._table.remove(agent, keys, [])
        for place in [place for place in self._known if place[0] == agent]:
            del self._known[place]


def _prompt(entry: Any) -> str | None:
    """The text of an entry that is a user's prompt; None for any other."""
    if entry.get("type") != "user" or entry.get("isMeta") or entry.get("isSidechain"):
        return None
    content = (entry.get("message") or {}).get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text", "") for part in parts if part.get("type") == "text"]
    return "".join(texts) if len(texts) == len(parts) > 0 else None


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

    A tool with an input that an earlier process began and did not finish is denied once, and the model told that it may have
    been done; asked for again, it is called. Tools that `effects` calls `"read"` or `"idempotent"` are called.
    """

    def __init__(self, run: "Run", effects: Mapping[str, Effect] | None = None) -> None:
        self._run = run
        self._life = _life()
        told = {name: ToolSpec(name, effect).effect for name, effect in (effects or {}).items()}
        self._effects: dict[str, Effect] = {**dict.fromkeys(READERS, "read"), **told}

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
        key = self._key(name, given)
        known = self._run.state.get(key)
        cut_off = known is not None and known["status"] == "begun" and known["life"] != self._life
        if cut_off and self._effects.get(name, "once") == "once":
            self._run.state.put(key, {**known, "status": "told"})
            return _denied(
                f"outcome unknown: an earlier life of this agent began {name} with this very input and was killed in it, so that it may "
                "have been done. Look whether it was. If it has to be done again, call it again."
            )
        self._run.state.put(key, {"tool": name, "status": "begun", "life": self._life, "id": id})
        return {}

    def _after(self, name: str, given: Any, id: str | None) -> dict[str, Any]:
        self._run.state.put(self._key(name, given), {"tool": name, "status": "done", "life": self._life, "id": id})
        return {}

    def _key(self, name: str, given: Any) -> str:
        text = json.dumps([name, given], sort_keys=True, ensure_ascii=True)
        return f"claude_agent/{quote(name)}/{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _denied(reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    }
