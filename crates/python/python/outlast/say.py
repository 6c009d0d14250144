"""Messages to people, on standard error, wherever that is, and if it is at all."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """A line on standard error. Work does not fail because nobody can be told: a closed terminal is no reason."""
    try:
        if sys.stderr is not None:
            # At once: other threads have something to say, too.
            sys.stderr.write(f"outlast: {text}\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (OSError, ValueError):
        return False
