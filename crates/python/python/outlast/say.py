"""Messages to people on standard error. A closed or missing standard error is ignored."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prints a line on standard error. Never raises when it cannot be written: work must not fail for a closed terminal."""
    try:
        if sys.stderr is not None:
            # One write for the whole line, so that lines of several threads do not mix.
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
