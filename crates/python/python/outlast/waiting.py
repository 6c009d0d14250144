"""Waiting for a commit in a running event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import _native


async def done(ticket: "_native.Ticket") -> Any:
    """Waits for a commit without blocking the loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def resolve(answer: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)

    def tell(answer: Any, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(resolve, answer, error)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            pass

    ticket.then(tell)
    return await future
