"""Retries: whether a step or an item is tried again, and after how long."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from typing import Any, Callable

from .errors import Conflict, Error, Skip, StepTimeout

# HTTP statuses below 500 after which a provider expects another try.
_AGAIN = {408, 409, 425, 429}

#: Header that marks an answer's `x-should-retry` as set by Outlast for the SDK, not by the provider.
SDK_ONLY_HEADER = "x-outlast-retries"


@dataclasses.dataclass(frozen=True)
class Retry:
    """Up to `retries` more tries after the first one.

    The wait before try n is random, up to `base * 2**n` seconds and at most `cap` (exponential backoff with full jitter). A
    `Retry-After` that the error carries replaces it. An error with an HTTP status is tried again for 408, 409, 425, 429 and
    5xx, unless it says `x-should-retry: false`; never for 402. An exception without a status is tried again, except
    Outlast's own errors, other than `Conflict` and `StepTimeout`. `on` narrows that: an exception class, a tuple of them, or
    a function of the exception.
    """

    retries: int = 4
    base: float = 0.5
    cap: float = 60.0
    on: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int):
            raise TypeError(f"Retry wants a whole number of retries, had {self.retries!r}")
        if not (self.retries >= 0 and self.base >= 0 and self.cap >= 0):
            raise ValueError(f"Retry wants no negative numbers, had {self}")
        classes = self.on if isinstance(self.on, tuple) else (self.on,)
        if self.on is not None and not all(callable(on) for on in classes):
            raise TypeError(f"Retry wants exception classes, or a function of the exception, as on, had {self.on!r}")

    @staticmethod
    def of(retries: "Retry | int | None") -> "Retry | None":
        return retries if retries is None or isinstance(retries, Retry) else Retry(retries)

    def delay(self, error: BaseException, tried: int) -> float | None:
        """Seconds until the next try, after `tried` tries that raised; None: there is no next try."""
        if tried > self.retries or not self._is_again(error):
            return None
        asked = retry_after(error)
        if asked is not None:
            return asked
        return random.uniform(0.0, min(self.cap, self.base * 2 ** (tried - 1)))

    def _is_again(self, error: BaseException) -> bool:
        if not is_retryable(error):
            return False
        if isinstance(self.on, (tuple, type)):
            return isinstance(error, self.on)
        return self.on is None or self.on(error)


def is_retryable(error: BaseException) -> bool:
    """Returns whether another try may help, judged by the error."""
    # After a conflict, the next try reads the changed state.
    if isinstance(error, (StepTimeout, Conflict)):
        return True
    if isinstance(error, (Error, Skip)):
        return False
    if header(error, "x-should-retry") == "false" and header(error, SDK_ONLY_HEADER) is None:
        return False
    status = status_of(error)
    return status is None or status in _AGAIN or 500 <= status < 600


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error carries, under the names that HTTP libraries use; None without one."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code"), (response, "status"), (error, "code")):
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
            return value
    return None


def retry_after(error: BaseException) -> float | None:
    """Seconds that the error asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date; None without one."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = header(error, name)
        if text is None:
            continue
        try:
            seconds = float(text) / unit
            if math.isfinite(seconds):
                return max(0.0, seconds)
        except ValueError:
            pass
        try:
            from email.utils import parsedate_to_datetime

            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (TypeError, ValueError):
            pass
    return None


def header(error: BaseException, name: str) -> str | None:
    """A header of the answer that an error carries; None without it."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    if headers is None or not hasattr(headers, "get"):
        return None
    found = headers.get(name) or headers.get(name.title())
    return str(found) if found is not None else None
