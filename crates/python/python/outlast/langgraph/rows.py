"""Rows of the plug-in in the state: which key a thing has, and how it is written.

A thread is an agent of the namespace `langgraph`. Its keys:

| key                  | value                                                                    |
|----------------------|--------------------------------------------------------------------------|
| `h/NS`               | the id of the newest checkpoint; its version is the fence                 |
| `c/NS/ID`            | a checkpoint with its small values only, its metadata, its parent         |
| `b/NS/CHANNEL/VERSION` | a channel's value, or its difference from an earlier version and writes  |
| `w/NS/ID/TASK`       | what a task wrote at a checkpoint                                         |

NS and CHANNEL are quoted, so that `/` only separates. Values are msgpack within a JSON text, as the state is JSON for
everybody.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import ormsgpack

NAMESPACE = "langgraph"

# Bytes that JSON would escape stand beyond Latin-1, where they take two bytes each.
_AWAY = {b: 0x100 + b for b in (*range(0x20), 0x22, 0x5C, 0x7F)}
_BACK = {away: b for b, away in _AWAY.items()}


def pack(row: Any) -> bytes:
    text = ormsgpack.packb(row).decode("latin-1").translate(_AWAY)
    return f'"{text}"'.encode()


def unpack(value: bytes) -> Any:
    return ormsgpack.unpackb(value.decode()[1:-1].translate(_BACK).encode("latin-1"))


def small(row: Any) -> dict[str, Any]:
    """The small values in a checkpoint's row, by channel. Rows of earlier builds have none."""
    return row.get("small") or {}


def _quoted(text: str) -> str:
    return quote(text, safe=":|-_. ")


def unquoted(text: str) -> str:
    return unquote(text)


def head(ns: str) -> str:
    return f"h/{_quoted(ns)}"


def checkpoints(ns: str) -> str:
    return f"c/{_quoted(ns)}/"


def checkpoint(ns: str, id: str) -> str:
    return f"c/{_quoted(ns)}/{_quoted(id)}"


def blobs(ns: str, channel: str) -> str:
    return f"b/{_quoted(ns)}/{_quoted(channel)}/"


def blob(ns: str, channel: str, version: Any) -> str:
    return f"{blobs(ns, channel)}{_quoted(str(version))}"


def writes_of(ns: str) -> str:
    return f"w/{_quoted(ns)}/"


def writes(ns: str, id: str) -> str:
    return f"{writes_of(ns)}{_quoted(id)}/"


def task(ns: str, id: str, task_id: str) -> str:
    return f"{writes(ns, id)}{_quoted(task_id)}"
