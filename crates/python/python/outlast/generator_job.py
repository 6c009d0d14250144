"""A generator's job: which inputs it is handed, what of its results is stored, how it is left.

It does not wait: each of its methods that needs a commit, an input or a result yields what it needs to whoever drives
it, so that threads and asyncio share it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import sys
import time
from collections import deque
from typing import Any, Callable, Generator

from . import _native, codec, inputs, runs, runtime as runtimes, scope, steps
from .budget import Budget
from .errors import Error, OtherShape, RunHeld, WouldRepay
from .inputs import END, Inputs, Watch
from .jsonl import JsonlStore, Scan, plain
from .runs import Run
from .say import say
from .warned import warn

#: What `GeneratorJob.next` asks of whoever drives it, besides to wait for a commit.
PULL, RESUME = object(), object()

# Values up to this length are kept in memory between the start and their turn.
_SMALL = 4096

_PAGE = 2048


class JobRun(Run):
    """A run that is a job: it is claimed also when it is completed, because it may be given more inputs."""

    def _create(self) -> str:
        status = super()._create()
        return "interrupted" if status == "completed" else status


class _Row:
    """What the record has of an input."""

    __slots__ = ("seq", "index", "attempt", "at_us", "value")

    def __init__(self, seq: int, index: int, attempt: int, at_us: int, value: bytes | None) -> None:
        self.seq, self.index, self.attempt, self.at_us, self.value = seq, index, attempt, at_us, value


class _Taken:
    """An input on its way through the generator."""

    __slots__ = ("value", "index", "key", "seq")

    def __init__(self, value: Any, index: int, key: str, seq: int | None) -> None:
        self.value, self.index, self.key, self.seq = value, index, key, seq


class GeneratorJob:
    """One life of a job. `next` and `fail` yield what has to be waited for, so that both kinds of generators drive them."""

    def __init__(
        self,
        job_id: str,
        store: JsonlStore,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        redrive: bool,
        items: int | str | None,
        budget: Budget | None,
        from_snapshot: int | str | datetime.datetime | None,
    ) -> None:
        self.over = True
        self.started: Any = None
        self.id = job_id
        self.store = store
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._place = inputs.chosen(args, kwargs, items)
        self._given: Any = () if self._place is None else (kwargs[self._place] if isinstance(self._place, str) else args[self._place])
        self._source: Any = None
        self._watch = Watch(self._given, self._take, self._take_async, self._other)
        self._ready: deque[_Row] = deque()
        self._hand: _Taken | None = None
        self._current: _Taken | None = None
        self._drained = self._place is None
        self._position = 0
        self._occurrences: dict[str, int] = {}
        self._used = 0
        self._skipped = 0
        self._yields = 0
        self._open(redrive, budget, from_snapshot)

    # --- opening

    def _open(self, redrive: bool, budget: Budget | None, from_snapshot: int | str | datetime.datetime | None) -> None:
        # A damaged file is told before anything is made.
        scan = self.store.scan()
        self.store.path.parent.mkdir(parents=True, exist_ok=True)
        newest, runtimes_newest = None, runtimes._newest
        self.runtime = runtimes.connect(self.store.record)
        # The record is no store that anything else is to work with.
        runtimes._newest = runtimes_newest
        try:
            self._engine = self.runtime._engine
            jobs = json.loads(_native.jobs(self._engine, self.id))
            origin = next((job for job in jobs if job["parent"] is None), None)
            if from_snapshot is not None and origin is not None:
                forked = runs.fork(self._engine, origin["id"], from_snapshot, budget.limits() if budget else {})
                self._take_note(origin["id"], forked)
                found = json.loads(_native.jobs(self._engine, self.id))
                jobs = [next(job for job in found if job["id"] == forked), *jobs]
            newest = jobs[0] if jobs else None
            begun = newest is not None and (sum(newest["counts"].values()) > 0)
            if newest is None or (begun and not self.store.exists()):
                run_id = _run_id(self.id, len(jobs))
            else:
                run_id = newest["id"]
            self._name = f"resume:{run_id}"
            self._note: dict[str, Any] = {"drive": 1, "shape": None, "inputs": None}
            kept = self._engine.state(self._name, "python", "resume")
            if kept is not None:
                self._note.update(json.loads(kept[1]))
            self.run = JobRun(self.runtime, run_id, budget=budget, tags={}, name=self.id, on_divergence=None, if_held="raise")
            self.run._job = self.id
            self._judge(newest, redrive)
            self._said_new = newest is None or run_id != newest["id"]
            try:
                self.run._open()
            except RunHeld as e:
                e.hint = "one at a time works on a job: wait until that one ends, or close it, with the close() of what resume_or_start gave"
                raise
            try:
                self._begin(scan, newest)
            except BaseException:
                self.run._leave("interrupt", quiet=True)
                raise
        except BaseException:
            self._release()
            raise
        self.over = False

    def _take_note(self, origin: str, forked: str) -> None:
        """What is known of the generator's shape, and which drive is the newest, is the fork's, too."""
        kept = self._engine.state(f"resume:{origin}", "python", "resume")
        if kept is not None and self._engine.state(f"resume:{forked}", "python", "resume") is None:
            self._engine.put([(f"resume:{forked}", "python", "resume", kept[1], None)]).wait()

    def _judge(self, newest: dict[str, Any] | None, redrive: bool) -> None:
        """Whether this life hands out all inputs again. Errors: `WouldRepay`."""
        self._redriving = self._replaying = False
        if newest is None or newest["id"] != self.run.id or self._note["shape"] is None:
            return
        done = newest["counts"]["done"]
        inputs = self._note["inputs"]
        if newest["status"] == "completed" and inputs is not None and inputs == self._all_inputs():
            self._replaying = True
            return
        recorded = len(self._engine.recorded(newest["no"], 0))
        if done and not redrive and not recorded:
            if self._held_elsewhere(newest):
                return
            raise WouldRepay(self.id, done, self._note["shape"])
        self._redriving = True
        if recorded and not redrive:
            say(f"{self.id}: its generator runs over all inputs again; its {recorded:,} recorded steps do not")

    def _held_elsewhere(self, newest: dict[str, Any]) -> bool:
        # Then `RunHeld` is the news, and the claim raises it.
        return newest["status"] in ("running", "waiting") and self.run.id in self.runtime._live

    def _all_inputs(self) -> str | None:
        """The digest of all inputs, where they can be gone through twice."""
        if self._place is None:
            return hashlib.sha256().hexdigest()
        if not hasattr(self._given, "__iter__") or hasattr(self._given, "__next__"):
            return None
        order = hashlib.sha256()
        for value in self._given:
            order.update(_digest(value).encode())
        return order.hexdigest()

    def _begin(self, scan: Scan, newest: dict[str, Any] | None) -> None:
        # What is recorded is looked up by inputs; no step is out of its turn.
        assert self.run.steps.recorded is not None
        self.run.steps.recorded.be_concurrent()
        if self._redriving:
            self._note["drive"] += 1
            self._keep_note()
        self._version = f"drive {self._note['drive']}".encode()
        self._read_rows()
        scan = self.store.mend()
        self._lines = scan.jobs.get(self.id, {})
        view = self.run.view()
        done, total = len(self._rows), _length(self._given)
        of = f" of {total:,}" if total is not None else ""
        imported = "" if self._imported else self._old_lines()
        if self._said_new:
            old = f"; {newest['counts']['done']:,} results of before are history" if newest is not None else ""
            say(f"new job {self.id}{imported}{old}, record {self.store.record}")
        else:
            spent = view.budget.usd.spent
            say(f"resuming {self.id}: {done:,}{of} done, {spent:.2f} usd spent, record {self.store.record}")
        if scan.torn:
            say(f"{self.store.path}: a torn last line of {scan.torn} bytes is cut")
        if scan.glued:
            say(f"{self.store.path}: {scan.glued} lines stand behind the torn beginning of another; they are read")

    def _old_lines(self) -> str:
        old = sum(line.old for line in self._lines.values())
        return f", {old:,} results imported from {self.store.path}" if old else ""

    def _read_rows(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._imported: set[str] = set()
        version, after = hashlib.sha256(self._version).hexdigest(), 0
        while True:
            page = _native.results(self._engine, self.run._no, after, _PAGE)
            for seq, key, attempt, closed, _, index, content, has, standing, value in page:
                if content is not None:
                    self._imported.add(content)
                if standing == "done" and has == version:
                    kept = value if value is not None and len(value) <= _SMALL else None
                    self._rows[key] = _Row(seq, index, attempt, closed or 0, kept)
            if len(page) < _PAGE:
                break
            after = page[-1][0]
        if self._replaying:
            self._ready.extend(sorted(self._rows.values(), key=lambda row: row.index))

    # --- one result

    def next(self) -> Generator[Any, Any, Any]:
        while True:
            if self._ready:
                return self._replay(self._ready.popleft())
            if self._replaying:
                return self._finish()
            if self._note["shape"] is None and self._hand is None and not self._drained:
                value = yield PULL
                if value is END:
                    self._drained = True
                elif (yield from self._hand_out(value)):
                    continue
            if self._drained and self.started is None and self._used:
                # Nothing is left to do, and nothing of the generator is run.
                return self._finish()
            value = yield RESUME
            if value is END:
                yield from self._ended()
                return self._finish()
            return (yield from self._keep(value))

    def _hand_out(self, value: Any) -> Generator[Any, Any, bool]:
        """Puts an input where the generator finds it; True where its result is recorded."""
        taken = self._known(value)
        if taken is None:
            return True
        old = None if self._redriving else self._lines.get(taken.index)
        if old is not None and old.old and (mark := _mark(taken.index)) not in self._imported:
            yield from self._import(taken, mark)
            return True
        taken.seq = yield from self._claim(taken)
        if taken.seq is None:
            return True
        self._hand = taken
        return False

    def _known(self, value: Any) -> _Taken | None:
        """The input with its key; None where its result is recorded, and waits to be given out."""
        digest = _digest(value)
        nth = self._occurrences.get(digest, 0)
        self._occurrences[digest] = nth + 1
        key, index = (digest if nth == 0 else f"{digest}#{nth}"), self._position
        self._position += 1
        row = None if self._redriving else self._rows.get(key)
        if row is None:
            return _Taken(value, index, key, None)
        row.index = index
        self._used += 1
        self._skipped += 1
        self._ready.append(row)
        return None

    def _claim(self, taken: _Taken) -> Generator[Any, Any, int | None]:
        seat = self._seat()
        while True:
            claim = yield self._claiming(taken, None)
            what, seq, rest = claim[0], claim[1], claim[2:]
            if what == "run":
                deaths = rest[2]
                if deaths:
                    say(f"input {taken.index} of {self.id} runs again: its process died in it {_times(deaths)}")
                return int(seq)
            standing = rest[0] if what == "ended" else what
            if standing == "dead":
                # Nothing comes after it until it has a result, and somebody started the script again.
                say(f"input {taken.index} of {self.id} failed in its last three starts, and runs again")
                yield self._engine.reset_item(self.run._no, taken.key, False)
                continue
            if standing == "done":
                self._ready.append(_Row(seq, taken.index, seat.attempt, _now_us(), None))
                return None
            raise Error(f"input {taken.index} of job {self.id} cannot be claimed: it is {standing}")

    def _claiming(self, taken: _Taken, content: bytes | None) -> "_native.Ticket":
        version = hashlib.sha256(self._version).digest()
        # One input at a time is all that this worker ever has: it is alone.
        return _native.claim_item(self._seat(), taken.key, taken.index, content, version, "keep", "rerun", True)

    def _import(self, taken: _Taken, mark: str) -> Generator[Any, Any, None]:
        result = self.store.read(self._lines[taken.index])
        text = codec.encode(result)
        seat = self._seat()
        content = _mark_text(taken.index)
        seq = (yield self._claiming(taken, hashlib.sha256(content).digest()))[1]
        # Lost to a power cut it is imported again: the line is still there.
        yield _native.record_item(seat, seq, "done", text.encode(), False)
        self._imported.add(mark)
        self._used += 1
        self._skipped += 1
        row = _Row(seq, taken.index, seat.attempt, _now_us(), text.encode())
        self._ready.append(row)

    def _replay(self, row: _Row) -> Any:
        value = row.value if row.value is not None else self._engine.value(self.run._no, row.seq)
        self._yields += 1
        self._write(row.index, value.decode(), row.attempt, row.at_us)
        return codec.decode(value)

    def _keep(self, value: Any) -> Generator[Any, Any, Any]:
        """Records a result: on disk before it is given out."""
        taken, self._current = self._current, None
        n = self._yields
        self._yields += 1
        if taken is None:
            self._other("gives a result without taking an input for it")
            taken = _Taken(None, n, f"result {n}", None)
        elif self._note["shape"] is not None and taken.index != n:
            # The order of its results is all that is known of them.
            taken.index = n
            if taken.seq is not None:
                yield _native.return_item(self._seat(), taken.seq)
                taken.seq = None
        if taken.seq is None:
            taken.seq = yield from self._claim(taken)
            if taken.seq is None:
                return self._replay(self._ready.popleft())
        self._current = taken
        text = codec.encode(value)
        # From here on it is closed, whatever is raised.
        self._current = None
        seat = self._seat()
        yield _native.record_item(seat, taken.seq, "done", text.encode())
        self._used += 1
        self._write(taken.index, text, seat.attempt, _now_us())
        return codec.decode(text)

    def _write(self, index: int, text: str, attempt: int, at_us: int) -> None:
        """The line of a result, unless the newest one of its index has the same."""
        line = self._lines.get(index)
        if line is None or line.result != hash(plain(json.loads(text))):
            self._lines[index] = self.store.append(self.id, index, text, attempt, at_us)

    # --- what the generator does

    def _next_ready(self) -> Any:
        """What is given before anything is pulled: what is in hand, or the end; else `PULL`."""
        if self._hand is not None:
            self._current, self._hand = self._hand, None
            return self._current.value
        self._pass_over()
        return END if self._drained else PULL

    def _take(self) -> Any:
        ready = self._next_ready()
        if ready is not PULL:
            return ready
        while True:
            value = next(self.source(), END)
            if value is END:
                self._drained = True
                return END
            if self._unhanded(value):
                return value

    async def _take_async(self) -> Any:
        ready = self._next_ready()
        if ready is not PULL:
            return ready
        while True:
            value = await self.pull_async()
            if value is END:
                self._drained = True
                return END
            if self._unhanded(value):
                return value

    def _unhanded(self, value: Any) -> bool:
        """An input that the generator takes before its turn: whether it has no result yet."""
        self._current = self._known(value)
        return self._current is not None

    def _pass_over(self) -> None:
        """An input was taken, and no result came of it."""
        taken, self._current = self._current, None
        if taken is None:
            return
        self._other("takes another input before it gives the result of the last one")
        if taken.seq is not None:
            reason = "the generator took its input and gave no result before the next one"
            _native.record_item(self._seat(), taken.seq, "skipped", reason.encode()).wait()

    def _other(self, what: str) -> None:
        """Its results do not belong to one input each: from now on no resume leaves inputs out."""
        if self._note["shape"] is not None:
            return
        self._note["shape"] = what
        self._keep_note()
        if self._skipped and not self._redriving:
            raise WouldRepay(self.id, self._skipped, what)
        warn(
            f"job {self.id} cannot be resumed without computing results again: its generator {what}. "
            "It wants one plain `for` with one `yield` for each input (items= says which argument has them); or make its calls "
            "steps (outlast.step)",
            OtherShape,
        )

    def _keep_note(self) -> None:
        self._engine.put([(self._name, "python", "resume", json.dumps(self._note).encode(), None)]).wait()

    # --- its two sides

    def source(self) -> Any:
        if self._source is None:
            self._source = iter(self._given)
        return self._source

    async def pull_async(self) -> Any:
        if hasattr(self._given, "__aiter__"):
            if self._source is None:
                self._source = aiter(self._given)
            return await anext(self._source, END)
        return next(self.source(), END)

    def generator(self) -> Any:
        if self.started is None:
            args, kwargs = list(self._args), dict(self._kwargs)
            if isinstance(self._place, str):
                kwargs[self._place] = Inputs(self._watch)
            elif self._place is not None:
                args[self._place] = Inputs(self._watch)
            made = self._fn(*args, **kwargs)
            self.started = made if hasattr(made, "__anext__") else iter(made)
        return self.started

    def inside(self) -> "_Inside":
        taken = self._hand or self._current
        return _Inside(scope.Current(self.run, None, None if taken is None else taken.seq))

    def _seat(self) -> "_native.Seat":
        return self.run._seat_or_raise(f"an input of job {self.id}")

    # --- the end

    def _ended(self) -> Generator[Any, Any, None]:
        if self._current is not None:
            self._pass_over()
        if self._hand is not None:
            seq, self._hand = self._hand.seq, None
            self._other("ends before its inputs do")
            yield _native.return_item(self._seat(), seq)  # type: ignore[arg-type]

    def _finish(self) -> Any:
        if not self._replaying:
            if self._note["shape"] is not None:
                self._note["inputs"] = self._all_inputs()
                self._keep_note()
            gone = len(self._rows) - self._skipped if not self._redriving and self._note["shape"] is None else 0
            if gone > 0:
                say(f"{self.id}: {gone:,} results are of inputs that are not given any more; they stay in the record")
        self.over = True
        if self.store.exists():
            self.store.sync()
        self.run._leave("complete")
        self._release()
        return END

    def fail(self, error: BaseException) -> Generator[Any, Any, None]:
        """Leaves the job, to be resumed: what was under way is given back, or failed."""
        if self.over:
            return
        self.over = True
        taken = self._current or self._hand
        try:
            if taken is not None and taken.seq is not None and self.run._seat is not None:
                seat = self.run._seat
                failed = isinstance(error, Exception) and not isinstance(error, (WouldRepay, RunHeld))
                if failed and self.run.view().status != "halted":
                    told = json.dumps({"error": steps.told(error)}).encode()
                    yield _native.record_item(seat, taken.seq, "failed", told)
                else:
                    yield _native.return_item(seat, taken.seq)
        except Exception:
            # What brought us here is the news; the next life finds the item open.
            pass
        self.run._leave("stopped" if isinstance(error, KeyboardInterrupt) else "interrupt", quiet=True)
        self._release()

    def abandon(self) -> None:
        """Nobody wants more of it."""
        if self.over or sys.is_finalizing():
            return
        self.over = True
        self.run._leave("interrupt", quiet=True)
        self._release()

    def _release(self) -> None:
        if not self.runtime._live:
            self.runtime.close()


class _Inside:
    """The generator's code runs in the job and its item: steps and clients find it."""

    def __init__(self, current: scope.Current) -> None:
        self._current = current

    def __enter__(self) -> None:
        self._token = scope.variable.set(self._current)

    def __exit__(self, *exc: object) -> None:
        scope.variable.reset(self._token)


def _digest(value: Any) -> str:
    return hashlib.sha256(codec.identity((value,), {}).encode("utf-8", "replace")).hexdigest()


def _mark_text(index: int) -> bytes:
    return f"imported line {index}".encode()


def _mark(index: int) -> str:
    return hashlib.sha256(_mark_text(index)).hexdigest()


def _run_id(job_id: str, before: int) -> str:
    """The run of a job: its own name where that can be one."""
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


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _now_us() -> int:
    return time.time_ns() // 1000
