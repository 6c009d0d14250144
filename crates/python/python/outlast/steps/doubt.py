"""Steps in doubt: an `at_most_once` step that was begun, and of which nobody knows what came. A person says it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .. import _native, codec
from ..errors import AlreadySettled, StepFailed, StepInDoubt
from .spec import key_of

if TYPE_CHECKING:
    from ..runs import Run

# Values of `resolved` in the payload. `outlast resolve` writes the same.
RERUN, FAILED = "rerun", "failed"


def check(run: "Run", shown: str, key: str, seq: int, state: str) -> None:
    """Refuses an `at_most_once` step that was begun before and is not done. Returns if a person said to run it again.

    Errors: `StepInDoubt`; `StepFailed` where a person said that the step failed.
    """
    came = ""
    if state == "failed":
        recorded = json.loads(run._engine.value(run._no, seq))
        error = recorded.get("error", {})
        if recorded.get("resolved") == RERUN:
            return
        if recorded.get("resolved") == FAILED:
            raise StepFailed(f"step {shown} of run {run.id} failed, as was said of it: {error.get('message', '')}")
        came = f" and raised {error.get('type', 'an exception')}: {error.get('message', '')}"
    raise StepInDoubt(
        f"step {shown} of run {run.id} was begun before{came}, and may have had its effect",
        hint=f"look whether it had, then say so: outlast resolve {run.id} {_quoted(key)} --result JSON, --failed WHY or "
        f"--rerun; or in Python run.resolve(name, key={key!r}, result=…)",
    )


def _quoted(key: str) -> str:
    import shlex

    return shlex.quote(key)


def resolve(
    run: "Run",
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: str | None,
    rerun: bool,
    failed: str | None,
    result: Any,
) -> None:
    """Implements `Run.resolve`."""
    if rerun and failed is not None:
        raise ValueError("resolve wants one of result, failed and rerun, had failed and rerun")
    base = key if key is not None else key_of(name, args, kwargs)
    open_run = run._open_run_or_raise(f"step {name!r}")
    recorded = run.steps.recorded
    assert recorded is not None
    found = recorded.find(base)
    args_shown = json.dumps(codec.shown(args, kwargs))
    if rerun:
        text = f'{{"args":{args_shown},"resolved":"{RERUN}"}}'
    elif failed is not None:
        error = json.dumps({"type": "outlast.StepFailed", "message": failed})
        text = f'{{"args":{args_shown},"resolved":"{FAILED}","error":{error}}}'
    else:
        text = f'{{"args":{args_shown},"resolved":"done","value":{codec.encode(result)}}}'
    is_failed = rerun or failed is not None
    # None for a step that this life began itself: the memory holds earlier lives only.
    seen = None if found is None else found[0]
    try:
        seq = _native.resolve_step(open_run, base, run._scope, seen, text.encode("utf-8", "replace"), is_failed).wait()
    except AlreadySettled:
        raise StepInDoubt(f"step {name!r} of run {run.id} is not in doubt: its result is recorded") from None
    recorded.note(base, seq, not is_failed)
