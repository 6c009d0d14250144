"""Commits that tasks of an event loop wait for."""

from __future__ import annotations

import asyncio
from typing import Any


def resolve(told: "list[tuple[asyncio.Future[Any], Any, BaseException | None]]") -> None:
    """Resolves the futures of one group of commits. Skips futures that are done already, such as cancelled ones."""
    for future, answer, error in told:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)
