"""Requests of a run that cost money and do not go through Outlast: seen as they are sent, told, and kept with the run."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Callable

from . import budget as budgets, scope
from .budget import NANO
from .errors import Error
from .say import say

if TYPE_CHECKING:
    from ._native import OpenRun
    from .opening import RunHandle

#: The clients that are metered.
METERED = "outlast.openai(), .anthropic(), .gemini() or .endpoint()"

#: Paths of providers' requests that cost money.
_PAID = re.compile(r"(/chat/completions|/v1/(completions|responses|messages|embeddings)|:(streamG|g)enerateContent|:(embed|batchEmbed)Contents?)$")

#: HTTP libraries of the providers' SDKs whose requests are watched already.
_watched: set[str] = set()


def watch() -> None:
    """Lets every request of the HTTP libraries that the providers' SDKs use be looked at before it is sent. A library that is
    imported later is watched from the next call on."""
    for name in ("httpx", "httpx2"):
        library = sys.modules.get(name)
        if name not in _watched and hasattr(library, "Client") and hasattr(library, "AsyncClient"):
            _watched.add(name)
            for cls in (library.Client, library.AsyncClient):  # type: ignore[union-attr]
                cls.send = _looking(cls.send)


def _looking(send: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(send):

        @functools.wraps(send)
        async def sending_async(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            _look(client, request)
            return await send(client, request, *args, **kwargs)

        return sending_async

    @functools.wraps(send)
    def sending(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        _look(client, request)
        return send(client, request, *args, **kwargs)

    return sending


def _look(client: Any, request: Any) -> None:
    """Tells once of a run that a request in it costs money and does not go through Outlast."""
    current = scope.variable.get()
    # Under `outlast run`, the supervisor's proxy may be in every client's way.
    if current is None or current.run._past_of._past is not None or "OUTLAST_RUN_ID" in os.environ:
        return
    open_run, run = current.run._open_run, current.run._past_of
    if open_run is None or request.method != "POST" or not _PAID.search(request.url.path) or _has_hook(client):
        return
    to = f"{request.url.scheme}://{request.url.netloc.decode()}{request.url.path}"
    keys = (request.headers.get(name, "") for name in ("authorization", "x-api-key", "x-goog-api-key"))
    server = os.environ.get("OUTLAST_URL")
    if any(open_run.token in key for key in keys) or (server and to.startswith(server)):
        return
    with run._lock:
        if run._past is not None:
            return
        library = request.headers.get("user-agent", "").partition("/")[0] or "a client"
        run._past = f"{library} asked {to} directly: in no budget and no sum"
    try:
        limit = limit_of(run)
    except Error:
        return
    if limit is not None:
        say(
            f"run {run.id}: {library} asks {to} directly, which does not go through Outlast: it is in no budget and no sum, and the "
            f"limit of {limit} does not hold it (clients that are metered: {METERED})"
        )
    note(open_run, run._past)


def _has_hook(http: Any) -> bool:
    """Whether an HTTP client sends its requests where their run is."""
    hooks = http.event_hooks.get("request", ())
    return any(getattr(hook, "__module__", None) == f"{__package__}.clients" for hook in hooks)


def limit_of(run: RunHandle) -> str | None:
    """The run's limits of usd and tokens, in words; None without one."""
    budget = run.view().budget
    limits = []
    if budget.usd.limit is not None:
        limits.append(f"{budgets.usd(round(budget.usd.limit * NANO))} usd")
    if budget.tokens.limit is not None:
        limits.append(f"{budget.tokens.limit:,.0f} tokens")
    return " and ".join(limits) or None


def note(open_run: OpenRun, text: str) -> None:
    """Keeps with the run, for whoever looks later, what went past Outlast. The work goes on where the store is away."""
    try:
        open_run.note_unmetered(text)
    except Error:
        pass
