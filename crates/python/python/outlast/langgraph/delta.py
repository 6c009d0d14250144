"""Bytes stored as their difference from earlier bytes: a conversation that grows by a message costs a message."""

from __future__ import annotations

#: A copy of fewer bytes costs more than the bytes themselves.
_COPIED = 24
#: Bytes by which the same place is found again in both texts, behind a difference.
_ANCHOR = 32

#: A piece of the new bytes: bytes as they are, or where they stand: (start, length). A start below 0 counts from the end
#: of the further bytes, another one from the beginning of the base.
Piece = bytes | tuple[int, int] | list[int]


def difference(base: bytes, new: bytes, further: bytes = b"") -> list[Piece] | None:
    """The pieces by which `new` is made out of `base`, then of `further`; None where they would save little space."""
    pieces: list[Piece] = []
    ends, base = len(base), base + further
    at, start, literal = 0, 0, 0
    spared = 0
    while at < len(new):
        same = _common(base, start, new, at)
        if same >= _COPIED:
            if literal < at:
                pieces.append(new[literal:at])
            pieces += _copies(start, same, ends, len(base))
            at, start = at + same, start + same
            literal, spared = at, spared + same
        found = _found_again(base, start, new, at)
        if found is None:
            break
        start, at = found
    if literal < len(new):
        pieces.append(new[literal:])
    return pieces if spared * 3 > len(new) else None


def applied(base: bytes, pieces: list[Piece], further: bytes = b"") -> bytes:
    """The bytes that `pieces` make out of `base` and `further`: undoes `difference`."""
    return b"".join(p if isinstance(p, bytes) else base[p[0] : p[0] + p[1]] if p[0] >= 0 else _taken(further, p) for p in pieces)


def without_further(pieces: list[Piece], further: bytes) -> list[Piece]:
    """The same pieces, with the bytes themselves in the place of copies from `further`."""
    return [_taken(further, p) if not isinstance(p, bytes) and p[0] < 0 else p for p in pieces]


def _taken(further: bytes, piece: tuple[int, int] | list[int]) -> bytes:
    start = len(further) + piece[0]
    return further[start : start + piece[1]]


def _copies(start: int, length: int, ends: int, whole: int) -> list[Piece]:
    """A copy out of both texts, `ends` being where the base ends: one of each."""
    of_base = max(0, min(length, ends - start))
    pieces: list[Piece] = [(start, of_base)] if of_base else []
    return pieces if of_base == length else [*pieces, (start + of_base - whole, length - of_base)]


def _found_again(base: bytes, start: int, new: bytes, at: int) -> tuple[int, int] | None:
    """The next positions after a difference, in `base` and in `new`, from which both are equal again; None without one."""
    ahead = 0
    while start + ahead + _ANCHOR <= len(base):
        place = start + ahead
        found = new.find(base[place : place + _ANCHOR], at)
        if found >= 0:
            while found > at and place > start and new[found - 1] == base[place - 1]:
                found, place = found - 1, place - 1
            return place, found
        # Lengths and counters differ in a few bytes; what was removed may be long.
        ahead = ahead + 1 if ahead < 8 else ahead * 2
    return None


def _common(a: bytes, i: int, b: bytes, j: int) -> int:
    """The number of bytes, from `a[i]` and `b[j]` on, in which both are equal."""
    longest = min(len(a) - i, len(b) - j)
    same, step = 0, 64
    while same < longest:
        step = min(step, longest - same)
        if a[i + same : i + same + step] == b[j + same : j + same + step]:
            same, step = same + step, step * 4
        elif step == 1:
            break
        else:
            step //= 2 if step < 8 else 4
    return same
