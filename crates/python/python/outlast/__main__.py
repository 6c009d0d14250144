"""`python -m outlast`, and the `outlast` command of the wheel: the same program as the binary, without the package's Python API."""

import os
import shutil
import signal
import sys


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    from outlast import _native

    # Python's handler for Ctrl-C is removed: the command handles the signal as the binary does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = shutil.which(sys.argv[0]) or sys.argv[0]
    return _native.main([os.path.abspath(program), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
