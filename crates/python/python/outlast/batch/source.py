"""The input of a batch: items, their keys, and digests of their content. Whatever is wrong with it is told before any call."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Iterable

from .. import identity
from ..errors import DuplicateKey, Unkeyable
from .options import Options


class Source:
    """The items with a key each, read once.

    A sequence that makes its items when they are asked for (a dataset) is used where it is. Anything else is listed first:
    a list may change while the batch runs, and one that is indexed by its labels has other items at its numbers.
    """

    def __init__(self, items: Iterable[Any], options: Options) -> None:
        if hasattr(items, "__aiter__"):
            raise TypeError("outlast.map wants a plain iterable, had an async one: use outlast.amap")
        if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
            raise TypeError(f"a batch wants its items as something to go through, had {items!r}")
        indexed = hasattr(items, "__getitem__") and hasattr(items, "__len__")
        listed = isinstance(items, (list, Mapping)) or hasattr(items, "iloc")
        in_place = not listed and (isinstance(items, Sequence) or indexed)
        self.items: Any = items if in_place else list(items)
        self._options = options
        #: Keys by index. None for an item that is left out because an earlier one has the same key.
        self.keys: list[str | None] = []
        # Digests of their contents, 32 bytes each.
        self._contents = bytearray()
        self._read()

    def __len__(self) -> int:
        return len(self.keys)

    def _read(self) -> None:
        key_of, dedupe = self._options.key, self._options.dedupe
        seen: dict[str, int] = {}
        counts: dict[str, int] = {}
        for index, item in enumerate(self.items):
            content = self._content(item, index)
            if key_of is not None:
                key: str | None = _text(_asked("key", key_of, item, index), index)
            elif self._options.content is None:
                key = content.hex()[:32]
            else:
                key = self._digest(item, index).hex()[:32]
            assert key is not None
            self._contents += content
            if key in seen:
                if dedupe == "error":
                    own = "give each a key of its own" if key_of else "name each by key=…, which is a digest of the item without"
                    raise DuplicateKey(
                        f"items {seen[key]} and {index} have the same key {key!r}",
                        hint=f'{own}; dedupe="first" leaves the later ones out, "ordinal" numbers them',
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
        """Returns the digest of the item's content, 32 bytes. Another content under the same key is other work."""
        return bytes(self._contents[32 * index : 32 * index + 32])

    def _content(self, item: Any, index: int) -> bytes:
        content_of = self._options.content
        return self._digest(item if content_of is None else _asked("content", content_of, item, index), index)

    def _digest(self, value: Any, index: int) -> bytes:
        options = self._options
        try:
            return identity.digest(value)
        except Unkeyable as e:
            if options.key is None:
                lacks, hint = "key", "name each item with key=…, and say with content=… what counts of it; or give data: dicts, dataclasses"
            elif options.content is not None:
                lacks, hint = "content", "let content=… give data: a text, a dict, a dataclass"
            elif options.on_change == "keep":
                # The key alone counts.
                return bytes(32)
            else:
                lacks, hint = "content", 'say with content=… what counts of an item beside its key; or on_change="keep": the key alone'
            raise Unkeyable(f"item {index} of job {options.job} has no {lacks} to know it by: {e.message}", hint=hint) from None


def _asked(what: str, fn: Callable[[Any], Any], item: Any, index: int) -> Any:
    try:
        return fn(item)
    except Exception as e:
        if hasattr(e, "add_note"):
            e.add_note(f"outlast: {what}= raised it for item {index}, before any item was run")
        raise


def _text(key: Any, index: int) -> str:
    if isinstance(key, str):
        if not key.isascii() and any("\ud800" <= c <= "\udfff" for c in key):
            raise ValueError(f"key wants a text that is Unicode for each item, had {key!r} for item {index}")
        return key
    # Accepts integers of other types, too, such as numpy's.
    if hasattr(key, "__index__") and not isinstance(key, bool):
        return str(operator.index(key))
    raise TypeError(f"key wants a text or a whole number for each item, had {key!r} for item {index}: str(…) makes it a text")
