"""The Claude Agent SDK: sessions in the store, their id from the run, and hooks that record tools and fail closed."""

import asyncio
import itertools

import pytest
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage, project_key_for_directory
from claude_agent_sdk.testing import run_session_store_conformance

import outlast
from outlast.claude_agent import GO_ON, OutlastSessionStore, ToolHooks, options, query, session_id

KEY = {"project_key": "p", "session_id": "s"}


def entry(n, **more):
    return {"type": "user", "n": n, **more}


def test_the_published_contracts_are_kept(home):
    count = iter(range(100))
    for method in ("append", "load", "list_sessions", "list_session_summaries", "delete", "list_subkeys"):
        assert callable(getattr(OutlastSessionStore, method))
    asyncio.run(run_session_store_conformance(lambda: OutlastSessionStore(home / f"{next(count)}.db")))


def test_an_entry_is_appended_once_over_processes_and_retries(rt):
    async def main():
        one, two = OutlastSessionStore(rt), OutlastSessionStore(rt)
        await one.append(KEY, [entry(1, uuid="a"), entry(2)])
        await two.append(KEY, [entry(1, uuid="a"), entry(3, uuid="b"), entry(3, uuid="b")])
        await one.append(KEY, [entry(3, uuid="b"), entry(4, uuid="c")])
        assert [e["n"] for e in await OutlastSessionStore(rt).load(KEY)] == [1, 2, 3, 4]

    asyncio.run(main())


def test_keys_of_any_text_do_not_meet(rt):
    async def main():
        store = OutlastSessionStore(rt)
        keys = [{"project_key": a, "session_id": b} for a, b in (("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("é", "\n"))]
        for n, key in enumerate(keys):
            await store.append(key, [entry(n)])
        assert [await store.load(key) for key in keys] == [[entry(n)] for n in range(4)]
        assert await store.list_sessions("a") == [{"session_id": "b/c", "mtime": pytest.approx(1.8e12, rel=0.5)}]

    asyncio.run(main())


def prompt(text):
    return {"type": "user", "uuid": text, "message": {"role": "user", "content": text}}


def test_a_session_without_its_prompt_is_begun_anew_under_another_id(rt, home):
    """Claude Code refuses an id that it has begun, and one resumed without a prompt has nothing to go on with."""
    ids = []

    async def life():
        async with rt.run("r"):
            for _ in range(2):
                made = options(ClaudeAgentOptions(cwd=str(home)))
                assert made.resume is None
                ids.append(made.session_id)
                place = {"project_key": project_key_for_directory(str(home)), "session_id": made.session_id}
                await made.session_store.append(place, [{"type": "queue-operation"}])
            raise ZeroDivisionError

    for process in "ab":
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr("outlast.claude_agent._PROCESS", process)
            asyncio.run(life())
    assert ids[0] == ids[1] != ids[2] == ids[3]


ANSWER = {"type": "assistant", "message": {"model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "well"}]}}


@pytest.mark.parametrize("said", [[], [{"type": "assistant", "message": {"model": "<synthetic>", "content": []}}]])
def test_a_session_that_was_never_answered_is_begun_anew_with_its_prompt(rt, home, monkeypatch, said):
    """The model of a session without an answer is asked the same again, and the proxy has the answer. In one process the
    session is resumed: Claude Code takes no id a second time."""
    sent = []

    async def sdk_query(*, prompt, options):
        sent.append((prompt, options.session_id, options.resume))
        place = {"project_key": project_key_for_directory(str(home)), "session_id": options.resume or options.session_id}
        await options.session_store.append(place, [globals()["prompt"](prompt), *said])
        raise ZeroDivisionError
        yield

    async def life():
        async with rt.run("r"):
            for _ in range(2):
                try:
                    async for _ in query(prompt="go", options=ClaudeAgentOptions(cwd=str(home))):
                        pass
                except ZeroDivisionError:
                    again = len(sent) % 2 == 1
                    if not again:
                        raise

    monkeypatch.setattr("outlast.claude_agent.sdk_query", sdk_query)
    for process in "ab":
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr("outlast.claude_agent._PROCESS", process)
            asyncio.run(life())
    first, second = sent[0][1], sent[2][1]
    assert first and second and first != second
    assert [(prompt, resume) for prompt, _, resume in sent] == [("go", None), ("go", first), ("go", None), ("go", second)]


def result():
    return ResultMessage("success", 1, 1, False, 1, "s", result="done")


def test_a_query_that_had_its_result_gives_it_again_and_a_cut_off_one_goes_on(rt, home, monkeypatch):
    sent = []

    async def sdk_query(*, prompt, options):
        sent.append((prompt, options.resume is not None))
        place = {"project_key": project_key_for_directory(str(home)), "session_id": options.resume or options.session_id}
        await options.session_store.append(place, [globals()["prompt"](prompt), ANSWER])
        if len(sent) == 2:
            raise ZeroDivisionError
        yield result()

    monkeypatch.setattr("outlast.claude_agent.sdk_query", sdk_query)

    async def life():
        async with rt.run("r"):
            return [m.result for asked in ("one", "two") async for m in query(prompt=asked, options=ClaudeAgentOptions(cwd=str(home)))]

    with pytest.raises(ZeroDivisionError):
        asyncio.run(life())
    assert asyncio.run(life()) == asyncio.run(life()) == ["done", "done"]
    assert sent == [("one", False), ("two", True), (GO_ON, True)]


def test_calls_go_through_the_proxy_only_where_it_has_their_key(rt, home, monkeypatch):
    def env(**given):
        with rt.run("r") as run:
            made = options(ClaudeAgentOptions(cwd=str(home), env=given)).env
            run._leave("interrupt", quiet=True)
        return made

    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    assert env() == {}
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert env(A="b")["ANTHROPIC_BASE_URL"].startswith("http://127.0.0.1:")
    assert env(ANTHROPIC_BASE_URL="http://x") == {"ANTHROPIC_BASE_URL": "http://x"}
    assert env(CLAUDE_CODE_USE_BEDROCK="1") == {"CLAUDE_CODE_USE_BEDROCK": "1"}


def test_a_run_goes_on_in_its_own_session(rt, home):
    asked = []

    async def life():
        async with rt.run("r"):
            made = options(ClaudeAgentOptions(cwd=str(home), hooks={"PreToolUse": [HookMatcher(matcher="Bash")]}))
            asked.append((made.session_id, made.resume))
            assert [m.matcher for m in made.hooks["PreToolUse"]] == ["Bash", None] and made.session_store_flush == "eager"
            place = {"project_key": project_key_for_directory(str(home)), "session_id": session_id_of("r")}
            await made.session_store.append(place, [{"type": "queue-operation"}, prompt("go"), ANSWER])
            raise ZeroDivisionError

    def session_id_of(run):
        return session_id(rt.run(run))

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(life())
    assert asked == [(session_id_of("r"), None), (None, session_id_of("r"))] and session_id_of("q") != session_id_of("r")
    with rt.run("q"), pytest.raises(ValueError, match="they are the run's"):
        options(ClaudeAgentOptions(resume="x"))


def asked(name, **given):
    return {"tool_name": name, "tool_input": given}


def test_a_tool_that_a_death_cut_off_is_told_once_and_then_called(rt, monkeypatch):
    processes = itertools.count()

    def life(name, *events, **options):
        said = []
        # Another process.
        monkeypatch.setattr("outlast.claude_agent._PROCESS", str(next(processes)))
        with pytest.raises(ZeroDivisionError):
            with rt.run("r") as run:
                hooks = ToolHooks(run, **options)
                for event in events:
                    said.append(asyncio.run(getattr(hooks, event)(asked(name, command="pay 5"), "id", None)))
                raise ZeroDivisionError
        return [s.get("hookSpecificOutput", {}).get("permissionDecision") for s in said]

    assert life("Bash", "before") == [None]
    assert life("Bash", "before", "before", "after", "before", "after") == ["deny", None, None, None, None]
    assert life("Bash", "before") == [None]
    assert life("Read", "before") == life("Read", "before") == [None]
    safe = {"effects": {"Bash": "idempotent"}}
    assert life("Bash", "before", **safe) == life("Bash", "before", **safe) == [None]
    with pytest.raises(ValueError, match="'twice'"):
        ToolHooks(rt.run("r"), {"Bash": "twice"})


def test_a_tool_that_cannot_be_recorded_is_not_called(rt):
    with rt.run("r") as run:
        hooks = ToolHooks(run)
        rt._engine.claim("r", True)  # another attempt takes the run over
        with pytest.raises(outlast.LeaseLost):
            asyncio.run(hooks.before(asked("Bash", command="pay 5"), "id", None))
        assert hooks.hooks()["PreToolUse"][0].on_failure == "block"
