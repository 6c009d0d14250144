"""The file of a batch's results, under another name until all of them are in it."""

from __future__ import annotations

import errno
import fcntl
import glob
import itertools
import os
import re
import stat
from typing import IO, Iterable

from . import table
from .results import Result


class OutFile:
    """File of results, written beside its final path and renamed at the end, so that readers see only a whole file.

    The ending of its name says how: see `table.writer`. A symbolic link stays, and its target is replaced. The permissions of
    an existing file are kept. The next start removes the partial file of a killed process. Errors: `OSError`, `ValueError`,
    `ImportError`, before any item is run.
    """

    _file: IO[str] | None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = os.fsdecode(path)
        self._path = os.path.realpath(path)
        mode = _mode(self._path, path)
        self._write = table.writer(path)
        for left in glob.glob(f"{glob.escape(self._path)}.partial.*"):
            if re.fullmatch(r"\.partial\.\d+(\.\d+)?", left[len(self._path) :]):
                _remove_left(left)
        try:
            self._partial, self._file = _create(self._path)
        except OSError as e:
            raise OSError(e.errno, f"out= cannot be written: {e.strerror}", path) from None
        if mode is not None:
            os.fchmod(self._file.fileno(), mode)

    def finish(self, results: Iterable[Result]) -> None:
        """Writes the results, and puts the file on disk under its final name. Nothing is done the second time."""
        if self._file is None:
            return
        self._write(self._partial, results)
        os.fsync(self._file.fileno())
        os.replace(self._partial, self._path)
        file, self._file = self._file, None
        file.close()
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def drop(self) -> None:
        """Removes the partial file of a batch that did not finish. An earlier file stays. Idempotent."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.unlink(self._partial)
            file.close()
        except OSError:
            # The disk may be full; the content is not needed.
            pass


def _mode(path: str, asked: str) -> int | None:
    """The permissions of the file that is to be replaced; None where there is none."""
    try:
        found = os.stat(path).st_mode
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(path)):
            raise FileNotFoundError(errno.ENOENT, "out= wants a file in a directory that is there", asked) from None
        return None
    if stat.S_ISDIR(found):
        raise IsADirectoryError(errno.EISDIR, "out= wants a file, had a directory", asked)
    if not stat.S_ISREG(found):
        # Renaming would replace the device by a file.
        raise OSError(errno.EINVAL, "out= wants a file, had a device or a pipe", asked)
    return stat.S_IMODE(found)


def _create(path: str) -> tuple[str, IO[str]]:
    for n in itertools.count(1):
        partial = f"{path}.partial.{os.getpid()}" + (f".{n}" if n > 1 else "")
        try:
            file = open(partial, "x", encoding="utf-8")
        except FileExistsError:
            continue
        # The lock is held while this process lives, which tells others that the file is in use.
        if _locked(file.fileno()) is not False and _is(file.fileno(), partial):
            return partial, file
        file.close()
    raise AssertionError("numbers do not end")


def _remove_left(partial: str) -> None:
    """Removes the partial file of a process that has ended."""
    try:
        with open(partial, "rb") as file:
            if _locked(file.fileno()) and _is(file.fileno(), partial):
                os.unlink(partial)
    except OSError:
        # The file belongs to another user, or is gone meanwhile.
        pass


def _locked(file: int) -> bool | None:
    """Whether the file could be locked. None on a file system without locks, where no file is taken for one that a dead
    process left."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is(file: int, path: str) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
