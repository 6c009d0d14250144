"""Stops a batch after many equal failures in a row: the rest would fail, too. Pure."""

from __future__ import annotations

import re

from ..errors import RepeatedFailure
from ..steps import life as journal
from .options import MOST_EQUAL_FAILURES


class Alike:
    """Counter of equal failures in a row."""

    def __init__(self) -> None:
        self._shape = ""
        self._count = 0

    def ended(self) -> None:
        """Restarts the count, because an item ended without failing."""
        self._count = 0

    def failed(self, error: BaseException | None) -> RepeatedFailure | None:
        """Counts a failed item. Returns the error that stops the batch when too many failed alike in a row."""
        says = f"{type(error).__name__}: {'' if error is None else journal.message(error)}"
        # Numbers and addresses are masked: they differ between items with the same fault.
        shape = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", says[:300])
        self._count = self._count + 1 if shape == self._shape else 1
        self._shape = shape
        if self._count < MOST_EQUAL_FAILURES:
            return None
        stop = RepeatedFailure(
            f"{self._count} items in a row failed alike: {says}",
            hint="repair it and start again: failed items run again",
        )
        stop.__cause__ = error
        return stop
