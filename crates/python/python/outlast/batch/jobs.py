"""A job as it is committed: read without running anything."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Iterator

from .. import codec
from ..errors import Error, UnknownRun

if TYPE_CHECKING:
    from ..runtime import Runtime
    from ..views import RunView

_PAGE = 1024


@dataclasses.dataclass(frozen=True)
class Item:
    """The newest entry of an item. `status`: open, done, failed, dead or skipped."""

    key: str
    status: str
    #: Its place in the input of the start that claimed it last.
    index: int
    attempts: int
    #: Deaths of processes while it ran, and starts in which it failed.
    deaths: int
    failed_starts: int
    cost_usd: float
    #: Why it was skipped, or what made it dead.
    reason: str | None
    _job: "Job" = dataclasses.field(repr=False, compare=False)
    _seq: int = dataclasses.field(repr=False, compare=False)

    @property
    def value(self) -> Any:
        """Its recorded result; None where it has none."""
        return codec.decode(self._raw()) if self.status == "done" else None

    @property
    def error(self) -> dict[str, str] | None:
        """Its recorded exception (type, message, traceback); None where it has none."""
        raw = self._raw() if self.status in ("failed", "dead") else b""
        return json.loads(raw).get("error") if raw else None

    def _raw(self) -> bytes:
        return self._job._runtime._engine.value(self._job._no, self._seq)


class Job:
    """A batch job, found by its name."""

    def __init__(self, runtime: "Runtime", id: str) -> None:
        self._runtime = runtime
        self.id = id
        view = self.view()
        if view.raw["job"] is None:
            raise Error(f"run {id} is no batch job", hint="read it with rt.get(id)", code="not_a_job")
        self._no = int(view.raw["no"])  # type: ignore[call-overload]

    def view(self) -> "RunView":
        """The job as a run: status, budget. Errors: `UnknownRun`."""
        return self._runtime.get(self.id)

    @property
    def status(self) -> str:
        return self.view().status

    @property
    def counts(self) -> dict[str, int]:
        """How many items are open, done, failed, dead and skipped."""
        job: Any = self.view().raw["job"]
        return dict(job["counts"])

    def items(self, status: str | None = None) -> Iterator[Item]:
        """Its items in the order they were first claimed, by page; of one status, if given."""
        known = ("open", "done", "failed", "dead", "skipped")
        if status is not None and status not in known:
            raise ValueError(f"status wants one of {', '.join(known)}, had {status!r}")
        after = 0
        while True:
            page = self._runtime._engine.items(self._no, after, _PAGE)
            for row in page:
                item = self._item(row)
                if status is None or item.status == status:
                    yield item
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def item(self, key: str) -> Item | None:
        """The item of this key, None without one."""
        row = self._runtime._engine.item(self._no, key)
        return None if row is None else self._item(row)

    def reset(self, key: str, *, reuse_answers: bool = False) -> None:
        """Makes an item pending again, a done one too: the next start runs it. On disk before it returns.

        `reuse_answers`: what its calls were answered is replayed to the repaired code, and not paid again.
        Errors: `item_running` while a live worker has it, `unknown_item`.
        """
        self._runtime._engine.reset_item(self._no, key, reuse_answers).wait()

    def _item(self, row: Any) -> Item:
        seq, key, status, index, (tries, deaths, failed_starts), _, nano, _, _, _, reason = row
        return Item(key, status, index, tries, deaths, failed_starts, nano / 1e9, reason, self, seq)

    def __repr__(self) -> str:
        return f"<outlast.Job {self.id}>"


def job(id: str, *, store: Any = None) -> Job:
    """The job of this name, to be read without running it. Errors: `UnknownRun`."""
    from .handles import _runtime

    return Job(_runtime(store), id)


__all__ = ["Item", "Job", "UnknownRun", "job"]
