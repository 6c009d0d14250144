"""Opening a generator's job: its run is found or made in the record, with what earlier lives left there (a note of the generator's
shape, results), and judged what this life does again."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import re
from typing import Any, Callable

from .. import _native, budget, runtime as runtimes
from ..batch.jobrun import JobRun
from ..budget import Budget
from ..errors import WouldRepay
from ..opening import RunSpec, Store, fork
from ..say import say
from ..waiting import paged
from . import inputs
from .jsonl import JsonlStore, Scan

# Where the note is kept in the state, below the namespace of the run.
_AGENT, _KEY = "python", "resume"

# Values up to this length are kept in memory between the start and their turn.
_SMALL = 4096

_PAGE = 2048


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


class Note:
    """Facts about one job's run that are kept in the state beside the run."""

    def __init__(self, engine: _native.Engine, run: str) -> None:
        self._engine = engine
        self._namespace = f"resume:{run}"
        #: The number of the newest drive over all inputs, from 1.
        self.drive = 1
        #: Why results do not follow one plain pull each; None while they do.
        self.shape: str | None = None
        #: The digest of all inputs of the last life that ended; None while nobody needs it.
        self.inputs: str | None = None
        kept = _note(engine, run)
        if kept is not None:
            found = json.loads(kept)
            self.drive, self.shape, self.inputs = found["drive"], found["shape"], found["inputs"]

    def keep(self) -> None:
        """Writes the note to the state. On disk before `keep` returns."""
        text = json.dumps({"drive": self.drive, "shape": self.shape, "inputs": self.inputs})
        self._engine.put([(self._namespace, _AGENT, _KEY, text.encode(), None)]).wait()


def inherit(engine: _native.Engine, origin: str, fork: str) -> None:
    """Copies the note of a fork's origin to the fork, once."""
    kept = _note(engine, origin)
    if kept is not None and _note(engine, fork) is None:
        engine.put([(f"resume:{fork}", _AGENT, _KEY, kept, None)]).wait()


def _note(engine: _native.Engine, run: str) -> bytes | None:
    found = _native.States.of(engine).get(f"resume:{run}", _AGENT, _KEY)
    return None if found is None else found[2]


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """A recorded result. `value` is None if the value is read from the store when it is given out."""

    seq: int
    index: int
    attempt: int
    at_us: int
    value: bytes | None


class Record:
    """The results of the job's newest drive, and which lines of an older library's file are imported."""

    def __init__(self, run: JobRun, version: bytes) -> None:
        self.rows: dict[str, Row] = {}
        #: Keys of inputs that the generator left out.
        self.left_out: set[str] = set()
        #: Digests of `mark`.
        self.imported: set[str] = set()
        wanted = hashlib.sha256(version).hexdigest()
        rows = paged(lambda last: run._engine.items(run._no, last[0] if last else 0, _PAGE, True), _PAGE)
        for seq, key, standing, index, _, attempt, _, _, _, closed, _, (content, has, value) in rows:
            if content is not None:
                self.imported.add(content)
            if standing == "done" and has == wanted:
                kept = value if value is not None and len(value) <= _SMALL else None
                self.rows[key] = Row(seq, index, attempt, closed or 0, kept)
            elif standing == "skipped" and has == wanted:
                self.left_out.add(key)


def mark(index: int) -> bytes:
    """The content of an item that is imported from line `index`: its digest says so in every life. 32 bytes."""
    return hashlib.sha256(f"imported line {index}".encode()).digest()


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


def connect(record: str) -> runtimes.Runtime:
    """Opens the store of the job's record. The store that other work uses by default stays the same."""
    newest = runtimes._newest
    runtime = runtimes.connect(record)
    runtimes._newest = newest
    return runtime


def find(spec: JobSpec, opened: Store) -> Found:
    """Finds the run of a job, or names a new one. Forks it first, where a snapshot was asked for.

    A fork has a file of its own: without `from_snapshot`, the job goes on in the file and the run that it had.
    """
    engine, store = opened._engine, spec.store
    jobs = json.loads(_native.jobs(engine, spec.id))
    newest = next((job for job in jobs if job["parent"] is None), None)
    if spec.from_snapshot is not None and newest is not None:
        id = fork(engine, newest["id"], spec.from_snapshot, spec.budget.limits() if spec.budget else {})
        inherit(engine, newest["id"], id)
        store = store._of_fork(id.removeprefix(f"{newest['id']}:"))
        newest = next(job for job in json.loads(_native.jobs(engine, spec.id)) if job["id"] == id)
    else:
        begun = newest is not None and any(count for standing, count in newest["counts"].items() if standing != "expected")
        is_over = newest is None or (begun and not store.exists())
        id = _run_id(spec.id, len(jobs)) if is_over else newest["id"]  # type: ignore[index]
    run = JobRun(opened, RunSpec(id, spec.budget, name=spec.id, job=spec.id))
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
        total = length(spec.given)
        of = f" of {total:,}" if total is not None else ""
        spent = round(found.run.view().budget.usd.spent * budget.NANO)
        say(f"resuming {spec.id}: {done:,}{of} done, {budget.usd(spent)} usd spent, record {store.record}")
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


def length(given: Any) -> int | None:
    """The number of inputs; None where that is not known before the end."""
    try:
        return len(given)
    except TypeError:
        return None
