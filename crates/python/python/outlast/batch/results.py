"""What an item came to."""

from __future__ import annotations

import json
import os
from typing import IO, TYPE_CHECKING, Any, Callable

from .. import codec
from ..errors import ItemFailed, Skip

if TYPE_CHECKING:
    from .plan import Plan


class Result:
    """One item's outcome. Its value is decoded from what was recorded, in every life of the job.

    `ok`: it is done. `cached`: an earlier life or another process did it. `attempts`: tries. `cost_usd`: what its
    calls were charged. `status`: done, failed, dead or skipped.
    """

    __slots__ = ("key", "index", "status", "attempts", "cost_nano_usd", "cached", "_raw", "_read", "_raised")

    def __init__(
        self,
        key: str,
        index: int,
        status: str,
        *,
        attempts: int,
        cost_nano_usd: int,
        cached: bool,
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
        """The result. Errors: the item's own error, where it is not done."""
        if not self.ok:
            error = self.error
            assert error is not None
            raise error
        return codec.decode(self._raw if self._raw is not None else self._read())["value"]

    @property
    def error(self) -> BaseException | None:
        """What it raised: the exception itself in the life that ran it, `ItemFailed` in later ones; `Skip` where skipped."""
        if self.ok or self._raised is not None:
            return self._raised
        raw = self._raw if self._raw is not None else self._read()
        if self.status == "skipped":
            return Skip(raw.decode("utf-8", "replace") or "skipped in an earlier life")
        told = json.loads(raw).get("error", {}) if raw else {}
        why = f"{told.get('type', 'its process died')}: {told.get('message', '')}".rstrip(": ")
        return ItemFailed(
            f"item {self.key!r} is {self.status}: {why}",
            hint="it runs again at the next start" if self.status == "failed" else f"reset it: outlast retry JOB --key {self.key}",
        )

    def forget(self) -> None:
        """Its value is read from the store when it is asked for."""
        self._raw = None

    def __repr__(self) -> str:
        return f"<outlast.Result {self.key!r} {self.status}{' cached' if self.cached else ''}>"


class OutFile:
    """Results as JSON lines, under another name until all of them are there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._partial = f"{path}.partial.{os.getpid()}"
        self._file: IO[str] | None = open(self._partial, "w", encoding="utf-8")

    def write(self, result: Result) -> None:
        if self._file is None:
            return
        line: dict[str, Any] = {"key": result.key, "index": result.index, "ok": result.ok}
        if result.ok:
            line["value"] = json.loads(codec.encode(result.value))
        else:
            line["error"] = str(result.error)
            line["status"] = result.status
        line |= {"attempts": result.attempts, "cost_usd": result.cost_usd}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def finish(self) -> None:
        """On disk under its own name."""
        if self._file is None:
            return
        file, self._file = self._file, None
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(self._partial, self._path)

    def drop(self) -> None:
        """The batch did not come to its end: what was there before stays."""
        if self._file is not None:
            self._file.close()
            self._file = None
            os.unlink(self._partial)
