"""File systems on which a store does not last."""

from __future__ import annotations

import os

#: File systems that lose their files with the machine or the container.
KINDS = {"tmpfs": "is in memory", "ramfs": "is in memory", "overlay": "goes with its container"}


def kind(place: str) -> str | None:
    """The file system that holds a store's file, if files there do not survive a reboot or the container: tmpfs, ramfs or
    overlay. None for any other."""
    if "://" in place:
        return None
    path = os.path.realpath(place)
    best, found = "", None
    try:
        with open("/proc/self/mounts") as mounts:
            for mount in mounts:
                _, at, fs = mount.split(" ")[:3]
                at = at.replace("\\040", " ")
                if len(at) >= len(best) and (path == at or path.startswith(at.rstrip("/") + "/")):
                    best, found = at, fs
    except OSError:
        return None
    return found if found in KINDS else None
