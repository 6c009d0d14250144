"""Clients of LLM providers, sent through the proxy: each request belongs to the run and step that it is made in.

The proxy is the supervisor's under `outlast run`, else the server's that `OUTLAST_URL` names, else one in this process. A
proxy in this process dies with it: paid answers are recorded and replayed, and a call in flight stays charged at its
reservation, in doubt. A supervisor would have recorded its answer.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any
from urllib.parse import urlsplit

from .errors import NoRun
from .retry import SDK_ONLY_HEADER
from .scope import Current, variable

#: The header that names the open step of a request. Counts only with a token of the attempt that has the step open.
SCOPE_HEADER = "X-Outlast-Scope"


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """The proxy of the current run, for clients that are configured by hand."""

    #: The proxy's URL without a path. OpenAI's base URL is `url + "/v1"`, Anthropic's is `url`.
    url: str
    #: The run token, which is sent as the API key.
    token: str
    #: Headers to send with each request. They change from step to step.
    headers: dict[str, str]


def endpoint() -> Endpoint:
    """The URL, the token and the headers for a request that is made here and now. Errors: `NoRun`, `RunCompleted`."""
    url, token, seq = _where()
    return Endpoint(url, token, {} if seq is None else {SCOPE_HEADER: str(seq)})


def openai(aio: bool = False, *, max_retries: int = 2) -> dict[str, Any]:
    """Arguments for `openai.OpenAI(**…)`, or with `aio=True` for `openai.AsyncOpenAI(**…)`.

    One client serves the whole program: each request belongs to the run and the step in whose context it is made. Inside
    steps and items the SDK tries a request once, whatever comes of it: further tries are the `retries` of the step or the
    batch, each with answers of its own. Elsewhere the SDK tries up to `max_retries` times more.
    """
    import openai as sdk  # type: ignore[import-not-found,unused-ignore]

    return {"base_url": f"{_base()}/v1", **_arguments(sdk, aio, max_retries)}


def anthropic(aio: bool = False, *, max_retries: int = 2) -> dict[str, Any]:
    """Arguments for `anthropic.Anthropic(**…)`, or with `aio=True` for `anthropic.AsyncAnthropic(**…)`: see `openai`."""
    import anthropic as sdk  # type: ignore[import-not-found,unused-ignore]

    return {"base_url": _base(), **_arguments(sdk, aio, max_retries)}


def gemini() -> dict[str, Any]:
    """Arguments for `google.genai.Client(**…)`, for its methods and for those of its `.aio`: see `openai`.

    This SDK does not try again by itself.
    """
    import httpx  # type: ignore[import-not-found,unused-ignore]
    from google.genai import types  # type: ignore[import-not-found,import-untyped,unused-ignore]

    # No timeout, as in the SDK's own clients.
    options = types.HttpOptions(
        base_url=_base(),
        httpx_client=httpx.Client(event_hooks=_hooks(False), mounts=_straight(), timeout=None),
        httpx_async_client=httpx.AsyncClient(event_hooks=_hooks(True), mounts=_straight(), timeout=None),
    )
    return {"api_key": "outlast", "http_options": options}


def _arguments(sdk: Any, aio: bool, max_retries: int) -> dict[str, Any]:
    client = sdk.DefaultAsyncHttpxClient if aio else sdk.DefaultHttpxClient
    http_client = client(event_hooks=_hooks(aio), mounts=_straight())
    return {"api_key": "outlast", "http_client": http_client, "max_retries": SdkRetries(max_retries)}


class SdkRetries(int):
    """Number of an SDK's own retries: 0 inside of a step or an item.

    An SDK reads the number from its client for each request, and one client serves the whole program. So the number
    is decided each time it is read. Answers also carry `x-should-retry`, for an SDK that got another number by
    `with_options`.
    """

    def _here(self) -> int:
        return 0 if _is_counted(variable.get()) else int.__int__(self)

    def __add__(self, other: int) -> int:
        return self._here() + other

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return self._here() - other

    def __rsub__(self, other: int) -> int:
        return other - self._here()

    def __int__(self) -> int:
        return self._here()

    __index__ = __int__


def _is_counted(current: Current[Any] | None) -> bool:
    """Whether Outlast counts the tries of the running code itself: inside a step or an item."""
    return current is not None and (current.step is not None or current.seq is not None)


def _straight() -> dict[str, Any]:
    """Ways of an httpx client by which a proxy of the environment is not asked for this machine's own addresses."""
    return {f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")}


def _hooks(aio: bool) -> dict[str, list[Any]]:
    if not aio:
        return {"request": [_bind], "response": [_answered]}

    async def bind(request: Any) -> None:
        _bind(request)

    async def answered(response: Any) -> None:
        _answered(response)

    return {"request": [bind], "response": [answered]}


def _bind(request: Any) -> None:
    """Sends the request to the current run's proxy, with its token and its open step."""
    url, token, seq = _where()
    parts = urlsplit(url)
    request.url = request.url.copy_with(scheme=parts.scheme, host=parts.hostname, port=parts.port)
    request.headers["Host"] = parts.netloc
    key = next((name for name in ("x-api-key", "x-goog-api-key") if name in request.headers), None)
    if key is not None:
        request.headers[key] = token
    else:
        request.headers["Authorization"] = f"Bearer {token}"
    if seq is not None:
        request.headers[SCOPE_HEADER] = str(seq)


def _answered(response: Any) -> None:
    current = variable.get()
    if current is None:
        return
    if current.is_open:
        current.run._heard(response)
    if _is_counted(current) and response.status_code >= 400 and response.headers.get("x-should-retry") != "false":
        # Marked as meant for the SDK alone: `Retry` obeys this header only from a provider.
        response.headers["x-should-retry"] = "false"
        response.headers[SDK_ONLY_HEADER] = "1"


def _where() -> tuple[str, str, int | None]:
    """The proxy's URL, the token, and the open step of the context that a request is made in."""
    current: Current[Any] | None = variable.get()
    supervisor, token = os.environ.get("OUTLAST_URL"), os.environ.get("OUTLAST_TOKEN")
    if current is None:
        if supervisor and token:
            return supervisor, token, None
        raise NoRun(
            "a request was made outside of a run",
            hint="make it inside `with rt.run(…):`; a new thread needs contextvars.copy_context().run(…)",
        )
    open_run = current.run._open_run_or_raise("a request")
    # A supervisor's proxy serves its own run and its children only; a server's serves all of its store.
    if supervisor and (not open_run.driven or current.run._is_child or "OUTLAST_RUN_ID" not in os.environ):
        return supervisor, open_run.token, current.seq
    return current.run._engine.face(), open_run.token, current.seq


def _base() -> str:
    """A client's base URL when it is made; each request is sent where its run is."""
    from .runtime import default

    supervisor = os.environ.get("OUTLAST_URL")
    if supervisor:
        return supervisor
    current = variable.get()
    engine = current.run._engine if current is not None else default()._engine
    return engine.face()
