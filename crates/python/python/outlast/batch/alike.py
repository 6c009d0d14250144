"""Failures that are alike: something is wrong with all items, and the rest would fail, too. Pure."""

from __future__ import annotations

import re

from ..errors import RepeatedFailure
from ..steps import journal
from .options import MOST_EQUAL_FAILURES


class Alike:
    """Counts the failures in a row that say the same."""

    def __init__(self) -> None:
        self._shape = ""
        self._count = 0

    def ended(self) -> None:
        """An item did not fail."""
        self._count = 0

    def failed(self, error: BaseException | None) -> RepeatedFailure | None:
        """Another one failed: what stops the batch, where it is one too many."""
        says = f"{type(error).__name__}: {'' if error is None else journal.message(error)}"
        # Numbers and addresses differ from item to item: the fault is the same.
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
