"""A generator's job in this process: inputs are handed out, results recorded, the job is left.

`next` and `fail` are processes (see `effects`): threads and tasks share them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections import deque
from operator import attrgetter
from typing import Any

from .. import _native, codec, scope
from ..effects import Do, Process, drive, drive_async
from ..errors import Error, OtherShape, RunHeld, WouldRepay
from ..metering import Meter
from ..passing import watch
from ..say import say, warn
from ..steps import life
from . import opening
from .inputs import END, Inputs, Watch, digest, is_left_out
from .jsonl import plain
from .opening import Found, JobSpec, Record, Row, Way, mark


@dataclasses.dataclass(slots=True, eq=False)
class Taken:
    """An input that was taken from the given iterable, and whose result is not recorded yet."""

    value: Any
    index: int
    key: str
    seq: int | None


@dataclasses.dataclass(slots=True, eq=False)
class Computed:
    """A result that was just computed, and is given out after recorded results of earlier inputs."""

    value: Any


class GeneratorJob:
    """A job of a generator, for the time that one process runs the job."""

    def __init__(self, spec: JobSpec) -> None:
        self.over = True
        #: The generator, once it is called.
        self.started: Any = None
        self._spec = spec
        self.id = spec.id
        self.store = spec.store
        self._source: Any = None
        self._watch = Watch(spec.given, lambda: drive(self._take()), lambda: drive_async(self._take()), self._other)
        #: Takes the next input from the given iterable; gives `END` after the last one.
        self._pull = Do(lambda: next(self.source(), END), self._pull_async)
        #: Runs the generator, inside the job, up to its next result; gives `END` after the last one.
        self._resume = Do(self._resumed, self._resumed_async)
        # Results that wait to be given out: recorded ones, and computed ones behind those.
        self._ready: deque[Row | Computed] = deque()
        self._hand: Taken | None = None
        self._current: Taken | None = None
        self._drained = spec.place is None
        self._position = 0
        self._occurrences: dict[str, int] = {}
        self._used = 0
        self._skipped = 0
        self._yields = 0
        self._open()

    def _open(self) -> None:
        # A damaged file is told before anything is made.
        self.store.scan()
        self.store.path.parent.mkdir(parents=True, exist_ok=True)
        self.runtime = opening.connect(self.store.record)
        try:
            found = opening.find(self._spec, self.runtime)
            self.run, self._note, self._engine = found.run, found.note, self.runtime._engine
            self.store = found.store
            self._way = opening.judge(self._spec, found)
            try:
                self.run._open()
            except RunHeld as e:
                e.hint = "one at a time works on a job: wait until that one ends, or close it, with the close() of what resume_or_start gave"
                raise
            try:
                self._begin(found)
            except BaseException:
                self.run._leave("interrupt", quiet=True)
                raise
        except BaseException:
            self._release()
            raise
        self.over = False

    def _begin(self, found: Found) -> None:
        # Results are looked up by input, so a step out of its recorded order is no divergence.
        assert self.run.steps.recorded is not None
        self.run.steps.recorded.be_concurrent()
        if self._way is Way.AGAIN:
            self._note.drive += 1
            self._note.keep()
        version = f"drive {self._note.drive}".encode()
        self._version = hashlib.sha256(version).digest()
        self._record = Record(self.run, version)
        if self._way is Way.REPLAY:
            self._ready.extend(sorted(self._record.rows.values(), key=attrgetter("index")))
        scan = self.store.mend()
        self._lines = scan.jobs.get(self.id, {})
        imported = 0 if self._record.imported else sum(line.old for line in self._lines.values())
        opening.announce(self._spec, found, scan, len(self._record.rows), imported)
        total = opening.length(self._spec.given)
        if total is not None:
            self._engine.expect_items(self.run._no, total)
        budget = self._spec.budget
        self._meter = Meter(self.run, budget is not None and budget._meters, len(self._record.rows))

    # --- one result

    def next(self) -> Process[Any]:
        """The next result; `END` after the last one."""
        while True:
            if self._ready:
                return self._replay(self._ready.popleft())
            if self._way is Way.REPLAY:
                return self._finish()
            if self._note.shape is None and self._hand is None and not self._drained:
                value = yield self._pull
                if value is END:
                    self._drained = True
                elif (yield from self._hand_out(value)):
                    continue
            if self._drained and self.started is None and self._used:
                # Nothing is left to do, and nothing of the generator is run.
                return self._finish()
            value = yield self._resume
            if value is END:
                yield from self._ended()
                return self._finish()
            value = yield from self._keep(value)
            if not self._ready:
                return value
            self._ready.append(Computed(value))

    def _hand_out(self, value: Any) -> Process[bool]:
        """Hands an input out to the generator; True if its result is recorded already, so that nothing is handed out."""
        taken = self._known(value)
        if taken is None:
            return True
        old = None if self._way is Way.AGAIN else self._lines.get(taken.index)
        if old is not None and old.old and mark(taken.index).hex() not in self._record.imported:
            yield from self._import(taken)
            return True
        taken.seq = yield from self._claim(taken)
        if taken.seq is None:
            return True
        self._hand = taken
        return False

    def _known(self, value: Any) -> Taken | None:
        """The input with its key; None where it was left out, or its result is recorded and waits to be given out."""
        content = digest(value, self._position)
        nth = self._occurrences.get(content, 0)
        self._occurrences[content] = nth + 1
        key, index = (content if nth == 0 else f"{content}#{nth}"), self._position
        self._position += 1
        row = None if self._way is Way.AGAIN else self._record.rows.get(key)
        if row is None and self._way is not Way.AGAIN and key in self._record.left_out:
            self._used += 1
            return None
        if row is None:
            return Taken(value, index, key, None)
        row.index = index
        self._used += 1
        self._skipped += 1
        self._ready.append(row)
        return None

    def _claim(self, taken: Taken) -> Process[int | None]:
        open_run = self._open_run()
        while True:
            claim: _native.Claim = yield self._claiming(taken, None)
            match claim:
                case "run", seq, _, _, deaths, _:
                    if deaths:
                        say(f"input {taken.index} of {self.id} runs again: its process died in it {_times(deaths)}")
                    return seq
                case "ended", seq, "done":
                    self._ready.append(Row(seq, taken.index, open_run.attempt, _now_us(), None))
                    return None
                case "ended", _, "dead":
                    # A dead input runs again: later inputs need its result first, and a person has started the script again.
                    say(f"input {taken.index} of {self.id} failed in its last three starts, and runs again")
                    yield self._engine.reset_item(self.run._no, taken.key, False)
                case _:
                    standing = claim[2] if claim[0] == "ended" else claim[0]
                    raise Error(f"input {taken.index} of job {self.id} cannot be claimed: it is {standing}")

    def _claiming(self, taken: Taken, content: bytes | None) -> "_native.Ticket[_native.Claim]":
        # Claimed as alone, because this worker never has more than one input.
        return _native.claim_item(self._open_run(), taken.key, taken.index, content, self._version, "keep", "rerun", True)

    def _import(self, taken: Taken) -> Process[None]:
        """Records a result that the older library had written as a line of the file."""
        text = codec.encode(self.store.read(self._lines[taken.index]))
        open_run, content = self._open_run(), mark(taken.index)
        seq = (yield self._claiming(taken, content))[1]
        # Not synced: if a power cut loses the record, the line of the file is imported again.
        yield _native.record_item(open_run, seq, "done", text.encode(), False)
        self._record.imported.add(content.hex())
        self._used += 1
        self._skipped += 1
        self._ready.append(Row(seq, taken.index, open_run.attempt, _now_us(), text.encode()))

    def _replay(self, row: "Row | Computed") -> Any:
        if isinstance(row, Computed):
            return row.value
        value = row.value if row.value is not None else self._engine.value(self.run._no, row.seq)
        self._yields += 1
        line = self._lines.get(row.index)
        if line is None or line.result != hash(plain(json.loads(value))):
            self._write(row.index, value.decode(), row.attempt, row.at_us)
        return codec.decode(value)

    def _keep(self, value: Any) -> Process[Any]:
        """Records a result. On disk before the result is given out."""
        taken, self._current = self._current, None
        n = self._yields
        self._yields += 1
        if taken is None:
            self._other("gives a result without taking an input for it")
            taken = Taken(None, n, f"result {n}", None)
        elif self._note.shape is not None and taken.index != n:
            # Without a pull for each result, only the order of the results identifies them.
            taken.index = n
            if taken.seq is not None:
                yield _native.return_item(self._open_run(), taken.seq)
                taken.seq = None
        if taken.seq is None:
            taken.seq = yield from self._claim(taken)
            if taken.seq is None:
                return self._replay(self._ready.popleft())
        self._current = taken
        text = codec.encode(value)
        # The item counts as closed from here on, whatever is raised.
        self._current = None
        open_run = self._open_run()
        yield _native.record_item(open_run, taken.seq, "done", text.encode())
        self._used += 1
        self._write(taken.index, text, open_run.attempt, _now_us())
        unmetered = self._meter.item_done(f"input {taken.index}", open_run)
        if unmetered is not None:
            raise unmetered
        return codec.decode(text)

    def _write(self, index: int, text: str, attempt: int, at_us: int) -> None:
        """The line of a result. What was computed again has another one, also where it is the same: an audit counts lines."""
        self._lines[index] = self.store.append(self.id, index, text, attempt, at_us)

    # --- what the generator does

    def _take(self) -> Process[Any]:
        """The input that the generator takes: the one in hand, or the next without a result; `END` after the last one."""
        if self._hand is not None:
            self._current, self._hand = self._hand, None
            return self._current.value
        yield from self._pass_over()
        while not self._drained:
            value = yield self._pull
            if value is END:
                self._drained = True
            elif (yield from self._is_unhanded(value)):
                return value
        return END

    def _is_unhanded(self, value: Any) -> Process[bool]:
        """Whether an input that the generator pulls by itself has no result yet, so that it is handed out."""
        taken = self._known(value)
        if taken is not None and self._note.shape is None:
            # The loop goes on with it after one that it left out.
            taken.seq = yield from self._claim(taken)
            taken = taken if taken.seq is not None else None
        self._current = taken
        return taken is not None

    def _pass_over(self) -> Process[None]:
        """Notes that an input was taken and no result came of it: it was left out, or the generator looks ahead."""
        taken, self._current = self._current, None
        if taken is None:
            return
        # The lines of an older library's file are numbered by results, and not by inputs.
        if self._record.imported or not is_left_out(self.started):
            self._other("takes another input before it gives the result of the last one")
        if taken.seq is not None:
            reason = "the generator took its input and gave no result before the next one"
            yield _native.record_item(self._open_run(), taken.seq, "skipped", reason.encode())

    def _other(self, what: str) -> None:
        """Notes that results do not belong to one input each: from now on no resume leaves inputs out."""
        if self._note.shape is not None:
            return
        self._note.shape = what
        self._note.keep()
        if self._skipped and self._way is not Way.AGAIN:
            raise WouldRepay(self.id, self._skipped, what)
        warn(
            f"job {self.id} cannot be resumed without computing results again: its generator {what}. "
            "It wants one plain `for` with one `yield` for each input (items= says which argument has them); or make its calls "
            "steps (outlast.step)",
            OtherShape,
        )

    # --- the two sides of the job: its inputs, and the generator

    def source(self) -> Any:
        """The iterator over the given inputs."""
        if self._source is None:
            self._source = iter(self._spec.given)
        return self._source

    async def _pull_async(self) -> Any:
        """The next input of the given iterable, plain or asynchronous; `END` after the last one."""
        if hasattr(self._spec.given, "__aiter__"):
            if self._source is None:
                self._source = aiter(self._spec.given)
            return await anext(self._source, END)
        return next(self.source(), END)

    def generator(self) -> Any:
        """The generator, which is called at the first access."""
        if self.started is None:
            args, kwargs = list(self._spec.args), dict(self._spec.kwargs)
            if isinstance(self._spec.place, str):
                kwargs[self._spec.place] = Inputs(self._watch)
            elif self._spec.place is not None:
                args[self._spec.place] = Inputs(self._watch)
            made = self._spec.fn(*args, **kwargs)
            self.started = made if hasattr(made, "__anext__") else iter(made)
        return self.started

    def _resumed(self) -> Any:
        watch()
        token = scope.variable.set(self._scope())
        try:
            return next(self.generator(), END)
        finally:
            scope.variable.reset(token)

    async def _resumed_async(self) -> Any:
        watch()
        token = scope.variable.set(self._scope())
        try:
            return await anext(self.generator(), END)
        finally:
            scope.variable.reset(token)

    def _scope(self) -> scope.Current[Any]:
        """The current run and item, in which the generator's code finds the job for steps and clients."""
        taken = self._hand or self._current
        return scope.Current(self.run, None, None if taken is None else taken.seq)

    def _open_run(self) -> "_native.OpenRun":
        return self.run._open_run_or_raise(f"an input of job {self.id}")

    # --- the end

    def _ended(self) -> Process[None]:
        if self._current is not None:
            yield from self._pass_over()
        if self._hand is not None:
            seq, self._hand = self._hand.seq, None
            self._other("ends before its inputs do")
            if seq is not None:
                yield _native.return_item(self._open_run(), seq)

    def _finish(self) -> Any:
        if self._way is not Way.REPLAY:
            if self._note.shape is not None:
                self._note.inputs = opening.all_inputs(self._spec)
                self._note.keep()
            gone = len(self._record.rows) - self._skipped if self._way is not Way.AGAIN and self._note.shape is None else 0
            if gone > 0:
                say(f"{self.id}: {gone:,} results are of inputs that are not given any more; they stay in the record")
        self.over = True
        if self.store.exists():
            self.store.sync()
        self.run._leave("complete")
        self._release()
        return END

    def fail(self, error: BaseException) -> Process[None]:
        """Leaves the job, to be resumed. The input under way is given back, or its failure is recorded."""
        if self.over:
            return
        self.over = True
        taken = self._current or self._hand
        try:
            if taken is not None and taken.seq is not None and self.run._open_run is not None:
                open_run = self.run._open_run
                failed = isinstance(error, Exception) and not isinstance(error, (WouldRepay, RunHeld))
                if failed and self.run.view().status != "halted":
                    yield _native.record_item(open_run, taken.seq, "failed", life.failed(error))
                else:
                    yield _native.return_item(open_run, taken.seq)
        except Exception:
            # The original error counts more; the next life finds the item open.
            pass
        self.run._leave("stopped" if isinstance(error, KeyboardInterrupt) else "interrupt", quiet=True, error=error)
        self._release()

    def abandon(self) -> None:
        """Leaves the job, to be resumed, when its results were dropped."""
        if self.over or sys.is_finalizing():
            return
        self.over = True
        self.run._leave("interrupt", quiet=True)
        self._release()

    def _release(self) -> None:
        if not self.runtime._is_in_use():
            self.runtime.close()


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _now_us() -> int:
    return time.time_ns() // 1000
