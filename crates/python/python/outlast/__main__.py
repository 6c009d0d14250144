"""`python -m outlast`, and the `outlast` command of the wheel: the same program as the binary, without the package's Python API."""

from __future__ import annotations

import os
import shutil
import signal
import sys


def program() -> str | None:
    """The `outlast` command beside this interpreter, else on PATH. It starts itself anew for processes that outlive it."""
    return shutil.which("outlast", path=os.path.dirname(sys.executable)) or shutil.which("outlast")


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    from outlast import _native

    # Python's handler for Ctrl-C is removed: the command handles the signal as the binary does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # By `python -m` the first word names this file, which nobody can execute.
    command = shutil.which(sys.argv[0]) or program() or sys.argv[0]
    return _native.main([os.path.abspath(command), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
