"""A JSONL file of results: one line for each, as published by agent-resume, and what a crash can do to it.

    {"job_id": "enrich-docs", "index": 0, "result": {…}, "attempt": 1, "at": "2026-05-24T03:14:15.926Z"}

Lines of the older library have the first three keys only. The file is for reading: what it lacks is appended from
the record beside it, `<path>.outlast.db`. Nothing in it is ever changed but a torn last line, which is cut.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
from pathlib import Path
from typing import Any, Iterator

from .. import codec, values
from ..errors import StoreError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

_RECORD = b'{"job_id"'


@dataclasses.dataclass(frozen=True)
class Line:
    """The place in the file of the newest line of an index, and whether the older library wrote that line."""

    start: int
    end: int
    # Hash of the result, to compare it with the record. Comparable within this process only.
    result: int
    old: bool


@dataclasses.dataclass
class Scan:
    """The contents of a file: the newest line of each index, by job."""

    jobs: dict[str, dict[int, Line]]
    #: Length of all whole lines in bytes; the rest is a torn line.
    whole: int
    size: int
    #: Whether the last line lacks only its newline.
    unended: bool
    #: Number of results that follow a torn beginning in the same line.
    glued: int

    @property
    def torn(self) -> int:
        return self.size - self.whole


class JsonlStore:
    """A JSONL file of results, with its record in `<path>.outlast.db` beside it.

    Several jobs may share a file. The file and the record are made when a job is opened.
    """

    # The record of the file that this one is a fork's of.
    _record: str | None = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def record(self) -> str:
        """The path of the store that has the job, its items, costs and attempts. `outlast jobs --store …` reads it."""
        return self._record or f"{self.path}.outlast.db"

    def _of_fork(self, point: str) -> "JsonlStore":
        """The file of a fork from `point`, `results.point.jsonl` beside `results.jsonl`. Both have one record."""
        own = JsonlStore(self.path.with_name(f"{self.path.stem}.{point}{self.path.suffix}"))
        own._record = self.record
        return own

    def exists(self) -> bool:
        """Whether the file exists."""
        return self.path.exists()

    def results(self, job_id: str) -> dict[int, Any]:
        """The newest result of each index, as the file has it. Errors: `StoreError` where the file is damaged."""
        lines = self.scan().jobs.get(job_id, {})
        return {index: self.read(lines[index]) for index in sorted(lines)}

    def __repr__(self) -> str:
        return f"<outlast.JsonlStore {self.path}>"

    # --- reading

    def scan(self) -> Scan:
        """Reads the whole file. A torn last line is left out; damage before it is refused.

        Errors: `StoreError` with code `jsonl_damaged` and the line's number. Nothing is changed.
        """
        found = Scan({}, 0, 0, False, 0)
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return found
        with file:
            found.size = os.fstat(file.fileno()).st_size
            for number, raw in enumerate(file, 1):
                start, found.whole = found.whole, found.whole + len(raw)
                if not raw.strip():
                    continue
                skipped, parsed = _parse(raw)
                if parsed is None:
                    # A power cut can leave zeros where the last bytes were to be.
                    if found.whole == found.size and not (raw.endswith(b"\n") and raw.strip(b"\0\r\n")):
                        found.whole = start
                        return found
                    raise StoreError(
                        f"line {number} of {self.path} is damaged: it is no result of a job, and lines follow it"
                        if found.whole < found.size
                        else f"line {number} of {self.path} is damaged: it is no result of a job",
                        hint=f"nothing was changed; `outlast verify {self.path} --repair` moves damaged lines aside",
                        code="jsonl_damaged",
                    )
                found.glued += skipped > 0
                found.unended = not raw.endswith(b"\n")
                line = Line(start + skipped, found.whole, hash(plain(parsed["result"])), "attempt" not in parsed)
                found.jobs.setdefault(parsed["job_id"], {})[parsed["index"]] = line
        return found

    def read(self, line: Line) -> Any:
        """The result that a line of the file holds."""
        with open(self.path, "rb") as file:
            file.seek(line.start)
            return json.loads(file.read(line.end - line.start))["result"]

    # --- writing

    def mend(self) -> Scan:
        """Reads the file, and cuts off a torn last line if there is one."""
        with self._locked() as file:
            found = self.scan()
            if found.torn:
                os.ftruncate(file, found.whole)
                os.fsync(file)
            elif found.unended:
                os.write(file, b"\n")
            return found

    def append(self, job_id: str, index: int, text: str, attempt: int, at_us: int) -> Line:
        """Appends a result to the file, without syncing it: the record already has the result on disk."""
        result = plain(json.loads(text))
        at = datetime.datetime.fromtimestamp(at_us / 1_000_000, datetime.timezone.utc)
        head = json.dumps({"job_id": job_id, "index": index}, ensure_ascii=False)[:-1]
        when = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        raw = f'{head}, "result": {result}, "attempt": {attempt}, "at": "{when}"}}\n'.encode("utf-8", "replace")
        with self._locked() as file:
            before = os.fstat(file).st_size
            try:
                written = 0
                while written < len(raw):
                    written += os.write(file, raw[written:])
            except OSError as e:
                # Half a line is not left behind: the disk may have room again.
                with contextlib.suppress(OSError):
                    os.ftruncate(file, before)
                raise StoreError(
                    f"cannot write result {index} of job {job_id} to {self.path}: {e}",
                    hint="its record has it; make room and start the script again, and the line is appended",
                    code="store_full" if e.errno == 28 else "store_io",
                ) from e
        return Line(before, before + len(raw), hash(result), False)

    def sync(self) -> None:
        """Syncs all written lines to disk."""
        with self._locked() as file:
            os.fsync(file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        # Opened each time: a file that was deleted meanwhile is made anew.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def plain(result: Any) -> str:
    """The JSON text of a result in the file: values of classes by their fields."""
    return json.dumps(untagged(result), ensure_ascii=False)


def untagged(value: Any) -> Any:
    """A recorded value, read as JSON, without the names of its classes; of a number that JSON has not, None."""
    if isinstance(value, dict):
        tag = value.get(codec.TAG)
        if tag == values.FLOAT:
            return None
        fields = value if tag is None else dict(value["value"]) if tag == values.DICT else value["value"]
        return {k: untagged(v) for k, v in fields.items()} if isinstance(fields, dict) else untagged(fields)
    return [untagged(v) for v in value] if isinstance(value, list) else value


def _parse(raw: bytes) -> tuple[int, dict[str, Any] | None]:
    """Parses a line: the length in bytes of a torn beginning, and the JSON object after it; None if there is no result."""
    start = 0
    while start >= 0:
        try:
            parsed = json.loads(raw[start:])
        except ValueError:
            parsed = None
        if isinstance(parsed, dict) and _is_result(parsed):
            return start, parsed
        # The older library appended to a torn line: the next one then begins in it.
        start = raw.find(_RECORD, start + 1)
    return 0, None


def _is_result(line: dict[str, Any]) -> bool:
    index = line.get("index")
    return isinstance(line.get("job_id"), str) and type(index) is int and index >= 0 and "result" in line
