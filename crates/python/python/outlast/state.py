"""A run's state and context: versioned values that outlive its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import codec

if TYPE_CHECKING:
    from .runs import Run


class State:
    """`run.state`: values by key, in the namespace `run:<id>`. Each write is on disk before it returns."""

    _AGENT = ""

    def __init__(self, run: "Run") -> None:
        self._run = run

    @property
    def _namespace(self) -> str:
        return f"run:{self._run.id}"

    def put(self, key: str, value: Any, *, expected: int | None = None) -> None:
        """Stores a JSON value, dataclass or pydantic model as the newest version of `key`.

        Errors: `Conflict` unless the newest version is `expected` (0: absent), when that is given; `LeaseLost`.
        """
        self._change({key: codec.encode(value).encode()}, expected)

    def delete(self, key: str, *, expected: int | None = None) -> None:
        """Deletes `key`; its history stays."""
        self._change({key: None}, expected)

    def get(self, key: str, default: Any = None) -> Any:
        """The newest value of `key`, or `default`."""
        return self.get_versioned(key, default)[1]

    def get_versioned(self, key: str, default: Any = None) -> tuple[int, Any]:
        """Version and value; version 0 with `default` where there is none."""
        found = self._run._engine.state(self._namespace, self._AGENT, key)
        return (0, default) if found is None else (found[0], codec.decode(found[1]))

    def _change(self, values: dict[str, bytes | None], expected: int | None = None) -> None:
        changes = [(self._namespace, self._AGENT, key, value, expected) for key, value in values.items()]
        seat = self._run._seat_or_replay()
        # A completed run only replays: its state is what it was.
        if seat is not None:
            seat.put(changes).wait()


class Context(State):
    """`run.context`: what the agent is at, set in one commit: `run.context.set(task_id="1411")`."""

    _AGENT = "context"

    def set(self, **values: Any) -> None:
        """Sets all of the values, or none of them."""
        if values:
            self._change({key: codec.encode(value).encode() for key, value in values.items()})
