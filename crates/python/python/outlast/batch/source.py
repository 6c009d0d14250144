"""The input of a batch: items, their keys, and digests of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Iterable

from .. import codec
from ..errors import DuplicateKey
from .options import Options


class Source:
    """The items with a key each, read once. A sequence is used where it is; anything else is listed first."""

    def __init__(self, items: Iterable[Any], options: Options) -> None:
        indexed = hasattr(items, "__getitem__") and hasattr(items, "__len__")
        in_place = isinstance(items, Sequence) or (indexed and not isinstance(items, (Mapping, str, bytes)))
        self.items: Any = items if in_place else list(items)
        self._options = options
        #: By index; None where an equal key came before it, and the item is left out.
        self.keys: list[str | None] = []
        self._read()

    def __len__(self) -> int:
        return len(self.keys)

    def _read(self) -> None:
        key_of, dedupe = self._options.key, self._options.dedupe
        seen: dict[str, int] = {}
        counts: dict[str, int] = {}
        for index, item in enumerate(self.items):
            key: str | None = _digest(item).hex()[:32] if key_of is None else _text(key_of(item), index)
            assert key is not None
            if key in seen:
                if dedupe == "error":
                    raise DuplicateKey(
                        f"items {seen[key]} and {index} have the same key {key!r}",
                        hint='give each a key of its own; dedupe="first" leaves the later ones out, "ordinal" numbers them',
                    )
                if dedupe == "first":
                    self.keys.append(None)
                    continue
                base = key
                while key in seen:
                    counts[base] = counts.get(base, 1) + 1
                    key = f"{base}#{counts[base]}"
            seen[key] = index
            self.keys.append(key)

    def content(self, index: int) -> bytes:
        """32 bytes of what the item is: the same key with other content is another piece of work."""
        item = self.items[index]
        return _digest(item if self._options.content is None else self._options.content(item))


def _digest(value: Any) -> bytes:
    return hashlib.sha256(codec.identity((value,), {}).encode("utf-8", "replace")).digest()


def _text(key: Any, index: int) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"key wants a text or a whole number for each item, had {key!r} for item {index}")
