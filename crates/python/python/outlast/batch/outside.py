"""Failures that are no item's own: what made them fail lies outside of the items, so that no item is judged by them."""

from __future__ import annotations

import errno
import os
import socket

from ..errors import LeaseLost, NoServer, RunHalted, StopRequested, StoreError
from ..retry import header, status_of
from .jobrun import CODE_HEADER, RUN_HEADER
from .queue import CROWDED

#: HTTP statuses for a key that is missing or refused, for used-up credit, and of a provider that has more than it can take.
_STATUSES = CROWDED | {401, 402, 407}

#: Codes of refusals by Outlast itself that any item would have met.
_REFUSALS = frozenset({"upstream_unreachable", "net_refused", "not_running", "lease_lost", "run_halted", "run_ended"})

#: Errors of the system: no network, no name server, no room, no more open files.
_SYSTEM = frozenset({errno.ENETDOWN, errno.ENETUNREACH, socket.EAI_AGAIN, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})

_ERRORS = (StoreError, NoServer, RunHalted, LeaseLost, StopRequested, ImportError, MemoryError)


def is_outside(error: BaseException | None) -> bool:
    """Whether an item failed for a reason outside of it, which may be over at the next start: a key that is missing or
    refused, a model that may not be used, credit, a rate, the network, the machine, an import, the store, a budget."""
    while error is not None:
        status = status_of(error)
        if isinstance(error, _ERRORS) or status in _STATUSES or header(error, CODE_HEADER) in _REFUSALS:
            return True
        # Of a provider: a model that the key may not use. Other services refuse single items with it.
        if status == 403 and header(error, RUN_HEADER) is not None:
            return True
        if isinstance(error, OSError) and error.errno in _SYSTEM:
            return True
        if isinstance(error, KeyError) and _is_of_environment(error):
            return True
        error = error.__cause__
    return False


def may_begin_outage(error: BaseException | None) -> bool:
    """Whether an item failed with a status of its provider's own that an outage begins with, too. Such a call is not paid."""
    while error is not None:
        status = status_of(error)
        if status is not None and status >= 500 and header(error, RUN_HEADER) is not None and header(error, CODE_HEADER) is None:
            return True
        error = error.__cause__
    return False


def _is_of_environment(error: KeyError) -> bool:
    """Whether a variable of the environment was asked for that is not set."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is type(os.environ).__getitem__.__code__
