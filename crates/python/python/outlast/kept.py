"""The choice of the files that are kept with a run."""

from __future__ import annotations

import dataclasses
import os
from typing import Sequence


@dataclasses.dataclass(frozen=True)
class Files:
    """A directory whose files are kept with a run, and which of them, as the options of `outlast run --files` say it.

    `ignored` keeps files too that `.gitignore` names. `exclude`: patterns of files that are not kept, in the syntax of
    `.gitignore`, beside those that usually hold secrets; `!NAME` keeps one of these. `max_bytes`: the most room that the files
    of all runs of the store may take (10 GiB): a snapshot beyond it is not taken, and the program goes on. A later life that
    names a directory alone keeps what an earlier one has set.
    """

    directory: str | os.PathLike[str]
    ignored: bool = False
    exclude: Sequence[str] = ()
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.directory, (str, os.PathLike)):
            raise TypeError(f"files wants a directory, had {self.directory!r}")
        if isinstance(self.exclude, str) or not all(isinstance(pattern, str) for pattern in self.exclude):
            raise TypeError(f"exclude wants a list of patterns, had {self.exclude!r}")
        if self.max_bytes is not None and (isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int)):
            raise TypeError(f"max_bytes wants a whole number of bytes, had {self.max_bytes!r}")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"max_bytes wants a number above 0, had {self.max_bytes}")
        # What is kept must not change with the directory that the program works in.
        object.__setattr__(self, "directory", os.path.abspath(self.directory))
