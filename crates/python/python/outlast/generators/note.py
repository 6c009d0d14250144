"""The note on a job's generator, from life to life: its shape, and how often it was driven over all inputs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import _native

_AGENT, _KEY = "python", "resume"


class Note:
    """Facts about one job's run that are kept in the state beside the run."""

    def __init__(self, engine: "_native.Engine", run: str) -> None:
        self._engine = engine
        self._namespace = f"resume:{run}"
        #: The number of the newest drive over all inputs, from 1.
        self.drive = 1
        #: Why results do not follow one plain pull each; None while they do.
        self.shape: str | None = None
        #: The digest of all inputs of the last life that ended; None while nobody needs it.
        self.inputs: str | None = None
        kept = engine.state(self._namespace, _AGENT, _KEY)
        if kept is not None:
            found = json.loads(kept[1])
            self.drive, self.shape, self.inputs = found["drive"], found["shape"], found["inputs"]

    def keep(self) -> None:
        """Writes the note to the state. On disk before `keep` returns."""
        text = json.dumps({"drive": self.drive, "shape": self.shape, "inputs": self.inputs})
        self._engine.put([(self._namespace, _AGENT, _KEY, text.encode(), None)]).wait()


def inherit(engine: "_native.Engine", origin: str, fork: str) -> None:
    """Copies the note of a fork's origin to the fork, once."""
    kept = engine.state(f"resume:{origin}", _AGENT, _KEY)
    if kept is not None and engine.state(f"resume:{fork}", _AGENT, _KEY) is None:
        engine.put([(f"resume:{fork}", _AGENT, _KEY, kept[1], None)]).wait()
