"""Waiting for a commit in a running event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import _native


def done(ticket: "_native.Ticket") -> "asyncio.Future[Any]":
    """Returns a future of the commit's answer, in the running event loop."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ticket.then(future)
    return future


def resolve(told: "list[tuple[asyncio.Future[Any], Any, BaseException | None]]") -> None:
    """Resolves the futures of one group of commits. Skips futures that are done already, such as cancelled ones."""
    for future, answer, error in told:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)
