"""The opening of a step: committed before its function runs, or answered ahead of its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from .errors import RunHalted
from .waiting import done

if TYPE_CHECKING:
    from . import _native
    from .steps import Call


class Opening:
    """The journal's entry of a step that is open.

    A plain step is answered ahead of its commit, which is that of its result, or comes within 100 ms: a step that
    nobody saw open is one that never began. Where somebody asks for its number, it is committed first.
    """

    __slots__ = ("_call", "number", "tried", "is_ahead")

    def __init__(self, call: Call) -> None:
        self._call = call
        #: The entry's number; where it is ahead of its commit, what it will be if no other process writes to the run.
        self.number = 0
        #: Which try it is, over all lives until it is given up.
        self.tried = 1
        self.is_ahead = False

    def open(self) -> bool:
        """Opens it, or finds it recorded meanwhile: False. Errors: `RunHalted`, `LeaseLost`, `StepInDoubt`."""
        call = self._call
        ticket = self._ticket()
        if call.at_most_once or call.retry is not None or call.run_._within is not None:
            return self._heard(ticket.wait)
        is_open = self._heard(ticket.wait_ahead)
        self.is_ahead = is_open
        return is_open

    async def open_async(self) -> bool:
        answer, error = None, None
        try:
            answer = await done(self._ticket())
        except RunHalted as e:
            error = e
        return self._heard(lambda: answer, error)

    @property
    def seq(self) -> int:
        """Its number, committed."""
        if self.is_ahead:
            self._heard(self._ticket().wait)
            self.is_ahead = False
        return self.number

    def _ticket(self) -> "_native.Ticket":
        call, run = self._call, self._call.run_
        seat = run._seat_or_raise(f"step {call.name!r}")
        return seat.begin(call.key, call.at_most_once, call.retry is not None, run._scope, run._within)

    def _heard(self, answer: Callable[[], Any], error: RunHalted | None = None) -> bool:
        call = self._call
        try:
            if error is not None:
                raise error
            self.number, before, is_done, self.tried = answer()
        except RunHalted as e:
            raise call.run_._halted(e) from None
        if is_done:
            return False
        if self.tried < 0 or (before and call.at_most_once):
            call._doubt(self.number, "open")
        return True
