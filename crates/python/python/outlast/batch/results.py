"""The result of an item."""

from __future__ import annotations

import json
import shlex
from typing import Any, Callable

from .. import codec
from ..errors import ItemFailed, Skip


class Result:
    """The result of one item of a batch.

    `key` and `index` name the item, `status` is done, failed, dead or skipped. `ok`: the item is done. `value` is decoded
    from what was recorded, in every life of the job. `cached`: an earlier life or another process did the item. `attempts`:
    tries. `cost_usd`: the cost of the item's calls, in dollars.
    """

    __slots__ = ("key", "index", "status", "attempts", "cost_nano_usd", "cached", "_job", "_raw", "_read", "_raised")

    def __init__(
        self,
        key: str,
        index: int,
        status: str,
        *,
        attempts: int,
        cost_nano_usd: int,
        cached: bool,
        job: str,
        read: Callable[[], bytes],
        raw: bytes | None = None,
        raised: BaseException | None = None,
    ) -> None:
        self.key = key
        self.index = index
        self.status = status
        self.attempts = attempts
        self.cost_nano_usd = cost_nano_usd
        self.cached = cached
        self._job = job
        self._raw = raw
        self._read = read
        self._raised = raised

    @property
    def ok(self) -> bool:
        return self.status == "done"

    @property
    def cost_usd(self) -> float:
        return self.cost_nano_usd / 1e9

    @property
    def value(self) -> Any:
        """The value that the function returned, as it was recorded. Errors: the item's own error, where the item is not done."""
        if not self.ok:
            error = self.error
            assert error is not None
            raise error
        return codec.decode(self.recorded())

    def recorded(self) -> bytes:
        """The recorded bytes: JSON of the value or of the error, or the reason why the item was skipped as text."""
        return self._raw if self._raw is not None else self._read()

    def why(self) -> str:
        """The item's error, or the reason why the item was skipped, as text: the same in the life that ran the item and in
        later ones."""
        raw = self.recorded()
        if self.status == "skipped":
            return raw.decode("utf-8", "replace")
        told = json.loads(raw).get("error", {}) if raw else {}
        kind = str(told.get("type", "its process died")).removeprefix("builtins.")
        return f"{kind}: {told.get('message', '')}".rstrip(": ")

    @property
    def error(self) -> BaseException | None:
        """The item's exception: the exception itself in the life that ran the item, `ItemFailed` in later ones. `Skip` where the
        item was skipped; None where it is done."""
        if self.ok or self._raised is not None:
            return self._raised
        if self.status == "skipped":
            return Skip(self.why() or "skipped in an earlier life")
        reset = f"reset it: outlast retry {self._job} --key {shlex.quote(self.key)}"
        return ItemFailed(
            f"item {self.key!r} is {self.status}: {self.why()}",
            hint="it runs again at the next start" if self.status == "failed" else reset,
        )

    def forget(self) -> None:
        """Drops the value from memory. At the next access it is read from the store."""
        self._raw = None

    def __repr__(self) -> str:
        return f"<outlast.Result {self.key!r} {self.status}{' cached' if self.cached else ''}>"
