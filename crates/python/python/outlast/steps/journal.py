"""The records of a step in the journal: its result, or the exception of a try."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING

from .. import codec

if TYPE_CHECKING:
    from .. import _native
    from ..runs import Run
    from .life import Call

# Number of characters kept from the end of a traceback, which says most.
_TRACEBACK = 16 << 10

#: Codes of the engine for an entry that is not the step's own.
NOT_OURS = frozenset({"unknown_entry", "already_taken", "already_settled"})

#: From this length on, a result may be written in parts.
LONG = 256 << 10


def failure(call: "Call", seq: int, error: BaseException, again: bool) -> "_native.Ticket":
    """Records the exception of a step's try. `again`: another try follows, possibly in a later life."""
    whole = {"args": codec.shown(call.args, call.kwargs), "error": described(error)}
    return open_run_of_entry(call.run, call.name).record(seq, json.dumps(whole).encode(), True, [], again)


def open_run_of_entry(run: "Run", name: str) -> "_native.OpenRun":
    """The attempt that may close an entry which this process opened.

    Closing is the entry's own right: also in a run that was asked to stop, and in one that was left while a step was
    under way, until the run is opened again and may do the step anew.
    """
    open_run = run._open_run
    if open_run is None and not run._is_open_here():
        open_run = run._left
    return run._open_run_or_raise(f"step {name!r}") if open_run is None else open_run


def described(error: BaseException) -> dict[str, str]:
    """An exception as the journal has it: type, message, traceback."""
    cls = type(error)
    text = "".join(traceback.format_exception(cls, error, error.__traceback__))
    return {"type": f"{cls.__module__}.{cls.__qualname__}", "message": message(error)[:4096], "traceback": text[-_TRACEBACK:]}


def message(error: BaseException) -> str:
    """The text of an exception, even where `str(error)` raises."""
    try:
        return str(error)
    except Exception as e:
        return f"(its text raised {type(e).__name__})"
