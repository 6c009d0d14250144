"""Opening a generator's job: its run is found or made in the record, and judged what this life does again."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Callable

from .. import _native, opening as runs, runtime as runtimes
from ..batch.jobrun import JobRun
from ..budget import Budget
from ..errors import WouldRepay
from ..say import say
from . import inputs
from .jsonl import JsonlStore, Scan
from .note import Note, inherit

if TYPE_CHECKING:
    from ..runtime import Runtime


@dataclasses.dataclass
class JobSpec:
    """The parameters of `resume_or_start`."""

    id: str
    store: JsonlStore
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    redrive: bool
    items: int | str | None
    budget: Budget | None
    from_snapshot: int | str | datetime.datetime | None

    def __post_init__(self) -> None:
        #: The argument that holds the inputs, by position or name; None without one.
        self.place = inputs.chosen(self.args, self.kwargs, self.items)
        #: The inputs as they were given.
        self.given: Any = ()
        if self.place is not None:
            self.given = self.kwargs[self.place] if isinstance(self.place, str) else self.args[self.place]


class Way(enum.Enum):
    """Treatment of the inputs in one life of the job."""

    #: Hands out the inputs that have no result.
    ON = 1
    #: Hands out all inputs again.
    AGAIN = 2
    #: Hands out nothing: all results are there.
    REPLAY = 3


@dataclasses.dataclass
class Found:
    """A job as its record describes it. `newest`: the job's newest run, None without one. `store`: the file of its
    results."""

    run: JobRun
    note: Note
    newest: dict[str, Any] | None
    store: JsonlStore

    @property
    def is_new(self) -> bool:
        """Whether this life begins a run."""
        return self.newest is None or self.run.id != self.newest["id"]


def connect(record: str) -> "Runtime":
    """Opens the store of the job's record. The store that other work uses by default stays the same."""
    newest = runtimes._newest
    runtime = runtimes.connect(record)
    runtimes._newest = newest
    return runtime


def find(spec: JobSpec, runtime: "Runtime") -> Found:
    """Finds the run of a job, or names a new one. Forks it first, where a snapshot was asked for.

    A fork has a file of its own: without `from_snapshot`, the job goes on in the file and the run that it had.
    """
    engine, store = runtime._engine, spec.store
    jobs = json.loads(_native.jobs(engine, spec.id))
    newest = next((job for job in jobs if job["parent"] is None), None)
    if spec.from_snapshot is not None and newest is not None:
        id = runs.fork(engine, newest["id"], spec.from_snapshot, spec.budget.limits() if spec.budget else {})
        inherit(engine, newest["id"], id)
        store = store._of_fork(id.removeprefix(f"{newest['id']}:"))
        newest = next(job for job in json.loads(_native.jobs(engine, spec.id)) if job["id"] == id)
    else:
        begun = newest is not None and sum(newest["counts"].values()) > 0
        is_over = newest is None or (begun and not store.exists())
        id = _run_id(spec.id, len(jobs)) if is_over else newest["id"]  # type: ignore[index]
    run = JobRun(runtime, spec.id, spec.budget, {}, id=id, name=spec.id)
    return Found(run, Note(engine, id), newest, store)


def judge(spec: JobSpec, found: Found) -> Way:
    """Decides which inputs this life hands out to the generator. Errors: `WouldRepay`."""
    run, note, newest = found.run, found.note, found.newest
    if newest is None or found.is_new or note.shape is None:
        return Way.ON
    if newest["status"] == "completed" and note.inputs is not None and note.inputs == all_inputs(spec):
        return Way.REPLAY
    done, recorded = newest["counts"]["done"], len(run._engine.recorded(newest["no"], 0))
    if done and not spec.redrive and not recorded:
        if newest["status"] in ("running", "waiting") and run._is_open_here():
            # Then `RunHeld` is the news, and the claim raises it.
            return Way.ON
        raise WouldRepay(spec.id, done, note.shape)
    if recorded and not spec.redrive:
        say(f"{spec.id}: its generator runs over all inputs again; its {recorded:,} recorded steps do not")
    return Way.AGAIN


def all_inputs(spec: JobSpec) -> str | None:
    """The digest of all inputs; None where they can be iterated only once."""
    if spec.place is None:
        return hashlib.sha256().hexdigest()
    if not hasattr(spec.given, "__iter__") or hasattr(spec.given, "__next__"):
        return None
    order = hashlib.sha256()
    for index, value in enumerate(spec.given):
        order.update(inputs.digest(value, index).encode())
    return order.hexdigest()


def announce(spec: JobSpec, found: Found, scan: Scan, done: int, imported: int) -> None:
    """Prints what was found when the job starts."""
    store, newest = found.store, found.newest
    if found.is_new:
        lines = f", {imported:,} results imported from {store.path}" if imported else ""
        old = f"; {newest['counts']['done']:,} results of before are history" if newest is not None else ""
        say(f"new job {spec.id}{lines}{old}, record {store.record}")
    else:
        total = _length(spec.given)
        of = f" of {total:,}" if total is not None else ""
        say(f"resuming {spec.id}: {done:,}{of} done, {found.run.view().budget.usd.spent:.2f} usd spent, record {store.record}")
    if store is not spec.store:
        say(f"{spec.id}: this is its fork {found.run.id}, whose results go to {store.path}")
    if scan.torn:
        say(f"{store.path}: a torn last line of {scan.torn} bytes is cut")
    if scan.glued:
        say(f"{store.path}: {scan.glued} lines stand behind the torn beginning of another; they are read")


def _run_id(job_id: str, before: int) -> str:
    """The id of a job's run: the job's own name, if that is a valid id."""
    id = job_id
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,120}", job_id):
        plain = re.sub(r"[^A-Za-z0-9._:-]+", "-", job_id)[:100]
        id = f"{plain}-{hashlib.sha256(job_id.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return id if before == 0 else f"{id}:{before + 1}"


def _length(given: Any) -> int | None:
    try:
        return len(given)
    except TypeError:
        return None
