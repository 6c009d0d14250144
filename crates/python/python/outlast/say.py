"""Messages to people: lines on standard error, where a closed or missing one is ignored, and warnings at the program's own line."""

from __future__ import annotations

import os
import sys
import warnings

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


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


def without_own_frames(error: BaseException) -> BaseException:
    """The exception of a function that the package called, as the function raised it: the package's frames above it tell nobody
    anything. One of the package's own keeps them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def warn(message: str, category: type[Warning]) -> None:
    """Gives a warning that names the innermost line of code outside the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
