"""Ports for servers that listen on the same one again after they have died."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

# Above those of the tests in Rust, and below those of the documents and of the kernel (for outgoing connections).
_PORTS = range(30_000, 31_500)
_CLAIMS = Path(tempfile.gettempdir()) / f"outlast-test-ports-{os.getuid()}"
# Open files, whose locks hold the claims of this process until it ends.
_held = []


def free_port():
    """A port that is this process's until its end: no other worker, and no other run of the tests, is given it."""
    _CLAIMS.mkdir(exist_ok=True)
    for port in _PORTS:
        claim = open(_CLAIMS / str(port), "w")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as free:
                free.bind(("127.0.0.1", port))
        except OSError:
            # Claimed, or somebody else listens there.
            claim.close()
            continue
        _held.append(claim)
        return port
    raise RuntimeError(f"no port of {_PORTS} is free")
