"""The wire of the Statehouse client: protobuf messages as bytes, for the few shapes that its service has.

A message is read as its fields by number, each with all of its values in order. Numbers of values are doubles.
"""

from __future__ import annotations

import struct
from typing import Any, Iterator

from ..errors import NotSerializable

#: Integers above this are not exact as doubles.
_EXACT = 1 << 53
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


def varint(n: int) -> bytes:
    """An unsigned integer as protobuf encodes it, in groups of 7 bits, the lowest first."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def number(field: int, n: int | None) -> bytes:
    """A field with an integer or a truth value; empty where the value is None."""
    return b"" if n is None else varint(field << 3 | _VARINT) + varint(n)


def text(field: int, value: str | bytes) -> bytes:
    """A field with a text, or with a message within the message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a message by number: integers, doubles, and the bytes of texts and messages."""
    found: dict[int, list[Any]] = {}
    for field, value in _each(message):
        found.setdefault(field, []).append(value)
    return found


def _each(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(message):
        tag, at = _varint_at(message, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint_at(message, at)
            yield field, value
            continue
        length = {_DOUBLE: 8, _FLOAT: 4}.get(kind)
        if kind == _BYTES:
            length, at = _varint_at(message, at)
        if length is None or at + length > len(message):
            raise ValueError(f"a reply is no message: field {field} of kind {kind} at byte {at} of {len(message)}")
        data = message[at : at + length]
        at += length
        yield field, struct.unpack("<d", data)[0] if kind == _DOUBLE else data


def _varint_at(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a reply is no message: it ends within a number at byte {at}")


# --- google.protobuf.Struct


def to_struct(value: Any) -> bytes:
    """A JSON object as a Struct. Errors: `NotSerializable` for what is no object, and for numbers it cannot hold."""
    if not isinstance(value, dict):
        raise NotSerializable(
            f"a value of class {type(value).__name__} cannot go over the Statehouse wire, which has objects only",
            hint='put it in one: {"value": …}',
        )
    return b"".join(text(1, text(1, _key(k)) + text(2, _value(v))) for k, v in value.items())


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise NotSerializable(f"a key of an object is a text, had {type(key).__name__}")
    return key


def _value(value: Any) -> bytes:
    if value is None:
        return number(1, 0)
    if isinstance(value, bool):
        return number(4, int(value))
    if isinstance(value, (int, float)):
        if isinstance(value, int) and abs(value) > _EXACT:
            raise NotSerializable(f"{value} cannot go over the Statehouse wire, which has doubles only", hint="write it as a text")
        if value != value or value in (float("inf"), float("-inf")):
            raise NotSerializable(f"{value} is no JSON")
        return varint(2 << 3 | _DOUBLE) + struct.pack("<d", value)
    if isinstance(value, str):
        return text(3, value)
    if isinstance(value, dict):
        return text(5, to_struct(value))
    if isinstance(value, (list, tuple)):
        return text(6, b"".join(text(1, _value(v)) for v in value))
    raise NotSerializable(f"a value of class {type(value).__name__} is no JSON")


def from_struct(message: bytes) -> dict[str, Any]:
    """A protobuf Struct as a JSON object; a whole number becomes an int."""
    object: dict[str, Any] = {}
    for entry in fields(message).get(1, []):
        pair = fields(entry)
        object[pair.get(1, [b""])[-1].decode()] = _plain(pair.get(2, [b""])[-1])
    return object


def _plain(message: bytes) -> Any:
    for field, value in _each(message):
        if field == 2:
            return int(value) if value.is_integer() and abs(value) <= _EXACT else value
        if field == 3:
            return value.decode()
        if field == 4:
            return bool(value)
        if field == 5:
            return from_struct(value)
        if field == 6:
            return [_plain(v) for v in fields(value).get(1, [])]
    return None
