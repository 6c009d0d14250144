"""The options of a batch, checked before anything happens: the one list of what `outlast.map` and `outlast.amap` take."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
import os
import re
from collections.abc import Mapping
from typing import Any, Callable, Concatenate, Literal, ParamSpec, TypeVar

from .. import budget as budgets
from ..budget import Budget
from ..kept import Files
from ..retry import Retry

#: Equal failures in a row that stop the batch: something is wrong with all of them.
MOST_EQUAL_FAILURES = 20

#: The share of done items that may run again unasked.
FREE_RERUNS = 0.05

_PERIODS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PERIOD = {
    word: seconds
    for (letter, seconds), words in zip(_PERIODS_S.items(), ("sec second", "min minute", "hr hour", "day"))
    for word in (letter, *words.split(), *(f"{w}s" for w in words.split()))
}

P = ParamSpec("P")
B = TypeVar("B")


@dataclasses.dataclass(kw_only=True)
class Options:
    """Options of `outlast.map`, beside the items and the function. Errors: `TypeError`, `ValueError`, `BadLimit`."""

    job: str
    key: Callable[[Any], Any] | None = None
    content: Callable[[Any], Any] | None = None
    version: object | None = None
    concurrency: int = 16
    rate: str | float | None = None
    retries: Retry | int | None = None
    on_error: Literal["collect", "raise"] = "collect"
    dedupe: Literal["error", "first", "ordinal"] = "error"
    budget: Budget | None = None
    timeout: float | None = None
    ttl: Any = None
    resume: Literal["always", "if_unchanged", "never"] = "always"
    on_change: Literal["rerun", "keep", "fail"] = "rerun"
    order: Literal["input", "completion"] = "input"
    out: str | os.PathLike[str] | None = None
    progress: bool | None = None
    store: Any = None
    rerun: bool = False
    tags: Mapping[str, str] | None = None
    from_snapshot: int | str | datetime.datetime | None = None
    files: str | os.PathLike[str] | Files | None = None

    def __post_init__(self) -> None:
        if self.retries is not None and (isinstance(self.retries, bool) or not isinstance(self.retries, (int, Retry))):
            raise TypeError(f"retries wants a whole number or outlast.Retry(…), had {self.retries!r}")
        if self.timeout is not None and (
            isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or not self.timeout > 0
        ):
            raise ValueError(f"timeout wants seconds above 0, had {self.timeout!r}")
        if self.tags is not None and not isinstance(self.tags, Mapping):
            raise TypeError(f"tags wants a dict of texts, had {self.tags!r}")
        #: Seconds between starts; None: no limit.
        self.interval = interval(self.rate)
        self.retry = Retry.of(self.retries) or Retry(0)
        #: Seconds for which the results of a completed job count.
        self.ttl_s = None if self.ttl is None else budgets._ms("ttl", self.ttl) / 1000
        self._check()

    def _check(self) -> None:
        if not isinstance(self.job, str) or not self.job:
            raise TypeError(f"job wants a name, had {self.job!r}: the same name resumes the batch")
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise ValueError(f"concurrency wants a whole number from 1, had {self.concurrency!r}")
        for name, wanted in (("key", "a function of an item that names it"), ("content", "a function of an item, of what counts of it")):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise TypeError(f"{name} wants {wanted}, had {given!r}")
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise TypeError(f"budget wants outlast.Budget(usd=…), had {self.budget!r}")
        if type(self.version).__repr__ is object.__repr__:
            raise TypeError(f"version wants a text or a number, had {self.version!r}: it would be another one in each life")
        for key, value in (self.tags or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"tags wants texts, had {key!r}: {value!r}")
        for name, allowed in (
            ("on_error", ("collect", "raise")),
            ("dedupe", ("error", "first", "ordinal")),
            ("resume", ("always", "if_unchanged", "never")),
            ("on_change", ("rerun", "keep", "fail")),
            ("order", ("input", "completion")),
        ):
            if getattr(self, name) not in allowed:
                wanted = ", ".join(repr(a) for a in allowed)
                raise ValueError(f"{name} wants one of {wanted}, had {getattr(self, name)!r}")

    @property
    def meters(self) -> bool:
        """Whether the caller limits money or tokens: calls are then expected to be metered."""
        return self.budget is not None and self.budget._meters


def taking(options: Callable[P, Options]) -> Callable[[Callable[[Any, Callable[[Any], Any], Options], B]], Callable[Concatenate[Any, Callable[[Any], Any], P], B]]:
    """Makes a function of items, a function and options one that takes the options by their names, for callers, for their
    editors and for `help`."""

    def decorate(make: Callable[[Any, Callable[[Any], Any], Options], B]) -> Callable[Concatenate[Any, Callable[[Any], Any], P], B]:
        own = inspect.signature(make)
        named = inspect.signature(options).parameters.values()
        shown = own.replace(parameters=[*list(own.parameters.values())[:2], *named])

        @functools.wraps(make)
        def called(*args: Any, **given: Any) -> B:
            bound = shown.bind(*args, **given).arguments
            return make(bound.pop("items"), bound.pop("fn"), options(**bound))  # type: ignore[call-arg]

        called.__signature__ = shown  # type: ignore[attr-defined]
        return called

    return decorate


def interval(rate: str | float | None) -> float | None:
    """Seconds between starts, of a rate like "500/m" or "10/s", or of a number of starts a second."""
    if rate is None:
        return None
    number, period = 0.0, "s"
    if isinstance(rate, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*([a-z]+)\s*", rate)
        number, period = (float(found.group(1)), found.group(2)) if found else (0.0, "")
    elif isinstance(rate, (int, float)) and not isinstance(rate, bool):
        number = float(rate)
    if not 0 < number < float("inf") or period not in _PERIOD:
        raise ValueError(f"rate wants a text like '500/m' (s, m, h or d), had {rate!r}")
    return _PERIOD[period] / number
