"""Whether the calls of a job come through Outlast: what other clients spend is in no budget, and no limit holds it."""

from __future__ import annotations

import functools
import os
from types import CodeType, FunctionType, MethodType
from typing import Any, Callable, Iterator

from . import budget as budgets, clients
from .budget import NANO
from .errors import NothingMetered
from .identity import CLIENTS
from .opening import typed
from .runs import Run
from .say import say

#: Finished items after which something must have been metered, where calls are expected.
METERED_AFTER = 10

#: Functions that lead from one to the next in which a client is looked for.
_DEPTH = 3

_CLIENTS = "outlast.openai(), .anthropic(), .gemini() or .endpoint()"


class Meter:
    """Watches whether anything of a job is metered, while its run has a limit of usd or tokens.

    A client that leads past Outlast is told before it is paid, and the first item that is done while nothing was metered is
    told, too. Where calls are expected, because the caller gave the limit or such a client is there, `METERED_AFTER` items of
    that kind are an error, over all starts of the job: `done` are those that earlier ones finished.
    """

    def __init__(self, run: Run, fn: Callable[..., Any], is_asked: bool, done: int) -> None:
        budget = run.view().budget
        limits = []
        if budget.usd.limit is not None:
            limits.append(f"{budgets.usd(round(budget.usd.limit * NANO))} usd")
        if budget.tokens.limit is not None:
            limits.append(f"{budget.tokens.limit:,.0f} tokens")
        self._run = run
        self._limit = " and ".join(limits)
        # Whether nothing is to be looked for any more.
        self._is_over = not limits
        self._before = done
        self._done = 0
        foreign = None if self._is_over else foreign_client(fn)
        self._expects = is_asked or foreign is not None
        if foreign is not None:
            say(
                f"job {run.id}: the function calls {foreign}, which does not go through Outlast: nothing of it is metered, and the "
                f"limit of {self._limit} does not hold it (clients that are metered: {_CLIENTS})"
            )

    def item_done(self, name: str) -> NothingMetered | None:
        """Counts a finished item. Returns the error that stops the job once too many are finished and nothing was metered."""
        self._done += 1
        is_enough = self._before + self._done >= METERED_AFTER and self._expects
        if self._is_over or not (is_enough or self._done == 1):
            return None
        spent = self._run.view().budget
        if spent.calls.spent or spent.usd.spent:
            self._is_over = True
            return None
        if not is_enough:
            then = f"; after {METERED_AFTER} such items it stops" if self._expects else ""
            say(
                f"job {self._run.id}: {name} is done and nothing was metered: the limit of {self._limit} holds only what clients "
                f"of {_CLIENTS} spend{then}"
            )
            self._is_over = not self._expects
            return None
        self._is_over = True
        return NothingMetered(
            f"{self._before + self._done} items of job {self._run.id} are finished and nothing was metered: its limit of {self._limit} holds nothing",
            hint=typed(
                self._run._engine,
                f"make clients with {_CLIENTS}; or, where no limit is wanted, `outlast budget {self._run.id} --no-limit usd`",
            ),
        )


def foreign_client(fn: Callable[..., Any]) -> str | None:
    """The class of a provider's client that the function has at hand and that does not go through Outlast; None where none is
    seen. Under `outlast run`, the supervisor's proxy may be in every client's way."""
    if "OUTLAST_RUN_ID" in os.environ:
        return None
    return next((_shown(value) for value in _at_hand(fn, _DEPTH) if _is_client(value) and not _is_ours(value)), None)


def _at_hand(fn: Any, depth: int) -> Iterator[Any]:
    """The values that a function finds: what is bound to it, its defaults, variables around it and global ones; and those that
    functions among these find."""
    if depth == 0:
        return
    bound: list[Any] = []
    if isinstance(fn, functools.partial):
        bound += [fn.func, *fn.args, *fn.keywords.values()]
    elif isinstance(fn, MethodType):
        bound += [fn.__func__, fn.__self__, *_attributes(fn.__self__)]
    elif isinstance(fn, FunctionType):
        bound += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values(), fn.__dict__.get("__wrapped__")]
        bound += [cell.cell_contents for cell in fn.__closure__ or () if _is_set(cell)]
        bound += [fn.__globals__[name] for name in _names(fn.__code__) if name in fn.__globals__]
    else:
        bound += [*_attributes(fn), type(fn).__call__]
    for value in bound:
        yield value
        if isinstance(value, (functools.partial, MethodType, FunctionType)):
            yield from _at_hand(value, depth - 1)


def _attributes(value: Any) -> list[Any]:
    """The values of an object's own attributes."""
    return list(value.__dict__.values()) if type(value).__dictoffset__ else []


def _names(code: CodeType) -> Iterator[str]:
    """The names that code and the functions in it look up."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _http(client: Any) -> Any:
    """The HTTP client inside an SDK's client; None where it has none."""
    inner = getattr(client, "_client", None) or getattr(getattr(client, "_api_client", None), "_httpx_client", None)
    return inner if hasattr(inner, "event_hooks") else None


def _is_client(value: Any) -> bool:
    cls = type(value)
    return f"{cls.__module__}.".startswith(CLIENTS) and (hasattr(value, "base_url") or hasattr(value, "_api_client")) and _http(value) is not None


def _is_ours(client: Any) -> bool:
    """Whether the client's requests are sent where their run is, or to the server that this process has."""
    hooks = _http(client).event_hooks.get("request", ())
    server = os.environ.get("OUTLAST_URL")
    to = str(getattr(client, "base_url", ""))
    return any(getattr(hook, "__module__", None) == clients.__name__ for hook in hooks) or bool(server and to.startswith(server))


def _shown(client: Any) -> str:
    cls = type(client)
    to = str(getattr(client, "base_url", "")).rstrip("/")
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}" + (f" of {to}" if to else "")
