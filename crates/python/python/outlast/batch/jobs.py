"""A job as the store has it: read without running anything."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, Iterator

from .. import budget, codec, html
from ..errors import Error
from ..opening import typed
from ..runtime import Runtime, of
from ..views import RunView
from ..waiting import paged
from .plan import key_text
from .progress import counts, spent
from .results import Result, facts_of, read_back
from .table import Tabular

_PAGE = 1024
_STANDINGS = ("open", "done", "failed", "dead", "skipped")


@dataclasses.dataclass(frozen=True)
class Item:
    """An item as the store has it. `status`: open, done, failed, dead or skipped."""

    key: str
    status: str
    #: The place in the input of the start that claimed the item last.
    index: int
    #: Tries of the newest start that claimed the item.
    attempts: int
    #: Deaths of processes while the item ran.
    deaths: int
    #: Starts in which the item failed.
    failed_starts: int
    #: The cost of the item's calls over all starts, in dollars.
    cost_usd: float
    #: Why the item was skipped, or what made it dead.
    reason: str | None
    _job: "Job" = dataclasses.field(repr=False, compare=False)
    _seq: int = dataclasses.field(repr=False, compare=False)

    @property
    def value(self) -> Any:
        """The recorded result; None where there is none."""
        return codec.decode(self._raw()) if self.status == "done" else None

    @property
    def error(self) -> BaseException | None:
        """The item's error, as `Result.error` of a later life has it: `ItemFailed` with the traceback as text, `Skip` where the item
        was skipped; None where the item is open or done."""
        return None if self.status in ("open", "done") else self._result().error

    def _result(self) -> Result:
        nano = round(self.cost_usd * budget.NANO)
        facts = functools.partial(facts_of, self._job._engine, self._job._no, self.key)
        return Result(self.key, self.index, self.status, self.attempts, nano, True, self._job, self._raw, facts)

    def _raw(self) -> bytes:
        return self._job._engine.value(self._job._no, self._seq)


class Job(Tabular):
    """A batch job, read without running it. Made by `outlast.job(name)`."""

    def __init__(self, runtime: Runtime, id: str) -> None:
        self._runtime = runtime
        self._engine = runtime._engine
        self.id = id
        view = self.view()
        if "job" not in view.raw:
            raise Error(f"run {id} is no batch job", hint="read it with rt.get(id)", code="not_a_job")
        self._no = int(view.raw["no"])

    def view(self) -> RunView:
        """The job as a run: status, budget. Errors: `UnknownRun`."""
        return self._runtime.get(self.id)

    @property
    def status(self) -> str:
        return self.view().status

    @property
    def why(self) -> str | None:
        """Why the job is halted, waits, or was left by its program, in a sentence; None where it goes on or is done."""
        return self.view().why

    @property
    def counts(self) -> dict[str, int]:
        """The number of items by status: open, done, failed, dead, skipped."""
        job = self.view().raw["job"]
        return {standing: job[standing] for standing in _STANDINGS}

    @property
    def unheld(self) -> list[str]:
        """Lines about what no limit of the job holds: requests that passed Outlast by, and calls without a price. Empty if
        nothing of the kind was seen."""
        return self._engine.unheld(self.id)

    def items(self, status: str | None = None) -> Iterator[Item]:
        """The items, in the order in which they were first claimed, read page by page. `status` picks those of one status."""
        if status is not None and status not in _STANDINGS:
            raise ValueError(f"status wants one of {', '.join(_STANDINGS)}, had {status!r}")
        engine = self._engine
        for row in paged(lambda last: engine.items(self._no, last[0] if last else 0, _PAGE), _PAGE):
            item = self._item(row)
            if status is None or item.status == status:
                yield item

    def item(self, key: str | int) -> Item | None:
        """The item with this key; None where there is none."""
        row = self._engine.item(self._no, key_text(key))
        return None if row is None else self._item(row)

    def reset(self, key: str | int, *, reuse_answers: bool = False) -> None:
        """Makes an item pending again, also a done one: the next start runs it. On disk before `reset` returns.

        `reuse_answers=True` replays the recorded answers of the item's calls: they are not paid again.
        Errors: `item_running` while a live worker has it, `unknown_item`.
        """
        try:
            self._engine.reset_item(self._no, key_text(key), reuse_answers).wait()
        except Error as e:
            e.hint = typed(self._engine, e.hint)
            raise

    def _item(self, row: Any) -> Item:
        seq, key, status, index, (tries, deaths, failed_starts), _, nano, _, _, _, reason, _ = row
        return Item(key, status, index, tries, deaths, failed_starts, nano / 1e9, reason, self, seq)

    def _results(self) -> Iterator[Result]:
        """The items that have ended, in the order of their inputs."""
        recorded = self._engine.recorded_items(self._no)
        ended = [(item.index, item.key) for item in self.items() if item.status != "open"]
        for index, key in sorted(ended):
            yield read_back(self, key, index, recorded)

    def _words(self) -> str:
        view = self.view()
        parts = counts(view.raw["job"])
        parts.append(spent(view.budget.usd.spent, self._engine.estimated_calls(self._no)))
        status = view.status + (f" ({view.why})" if view.why else "")
        return ", ".join([status, *parts, *([view.in_doubt] if view.in_doubt else []), *self.unheld])

    def __repr__(self) -> str:
        return f"<outlast.Job {self.id}: {self._words()}>"

    def _repr_html_(self) -> str:
        failed = itertools.chain(self.items("failed"), self.items("dead"))
        shown = [(item.key, item.status, item._result().why()) for item in itertools.islice(failed, 10)]
        return html.table(f"Job {self.id}: {self._words()}", ("key", "status", "error") if shown else (), shown)


def job(id: str, *, store: Any = None) -> Job:
    """The batch job of this name, to be read without running it. Errors: `UnknownRun`; code `not_a_job` for another run."""
    return Job(of(store), id)
