"""Waiting for a commit in a running event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import _native


def done(ticket: "_native.Ticket") -> "asyncio.Future[Any]":
    """A future of the commit's answer, in the running event loop."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ticket.then(future)
    return future


def resolve(told: "list[tuple[asyncio.Future[Any], Any, BaseException | None]]") -> None:
    """Gives the futures of one group of commits their answers. A future that is done already, as a cancelled one, is left alone."""
    for future, answer, error in told:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)
