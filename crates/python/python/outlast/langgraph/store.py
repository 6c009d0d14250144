"""`OutlastStore`: LangGraph's long-term memory in a store of Outlast."""

from __future__ import annotations

import asyncio
import datetime
import json
import operator
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from langgraph.store.base import (  # type: ignore[import-not-found,unused-ignore]
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    PutOp,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from .. import runtime
from ..state.table import Table

if TYPE_CHECKING:
    from ..runtime import Runtime

# All items are rows of one agent: `a/b/=KEY`, where no quoted label has a `=`.
_AGENT = "items"

_ORDERS = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


class OutlastStore(BaseStore):  # type: ignore[misc,unused-ignore]
    """Items by namespace and key, for `compile(store=OutlastStore())`. What a batch puts is on disk in one commit before `batch` returns.

    Inside `with rt.run(…)` writes carry the run's fence. What is deleted is erased. A search lists by namespace and filter;
    it has no index of meanings, and `query` orders nothing. Items have no time to live.
    """

    def __init__(self, store: "str | os.PathLike[str] | Runtime | None" = None) -> None:
        self._table = Table(runtime.of(store), "langgraph_store")

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        """Performs the operations: first all that read, then all that write."""
        asked = list(ops)
        for op in asked:
            validate_op_namespace(op)
        answers = [self._read(op) for op in asked]
        # Of several puts of one key, the last one counts.
        puts = {_key(op.namespace, op.key): op for op in asked if isinstance(op, PutOp)}
        self._table.commit(_AGENT, [(key, self._written(key, op), None) for key, op in puts.items()])
        return answers

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        return await asyncio.to_thread(self.batch, list(ops))

    def _read(self, op: Any) -> Any:
        if isinstance(op, GetOp):
            value = self._table.row(_AGENT, _key(op.namespace, op.key))[1]
            return None if value is None else Item(key=op.key, namespace=tuple(op.namespace), **json.loads(value))
        if isinstance(op, SearchOp):
            found = [SearchItem(*_place(key), **json.loads(value)) for key, _, value in self._table.scan(_AGENT, _prefix(op.namespace_prefix))]
            kept = [item for item in found if all(_fits(item.value.get(name), wanted) for name, wanted in (op.filter or {}).items())]
            return kept[op.offset : op.offset + op.limit]
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        if isinstance(op, PutOp):
            return None
        raise ValueError(f"a store wants a GetOp, SearchOp, PutOp or ListNamespacesOp, had {type(op).__name__}")

    def _namespaces(self, op: Any) -> list[tuple[str, ...]]:
        found = {_place(key)[0] for key in self._table.keys(_AGENT, "")}
        matching = [ns for ns in found if all(_matches(condition, ns) for condition in op.match_conditions or ())]
        cut = sorted({ns[: op.max_depth] for ns in matching})
        return cut[op.offset : op.offset + op.limit]

    def _written(self, key: str, op: PutOp) -> bytes | None:
        if op.value is None:
            return None
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        before = self._table.row(_AGENT, key)[1]
        created = now if before is None else json.loads(before)["created_at"]
        row = {"value": op.value, "created_at": created, "updated_at": now}
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def _prefix(namespace: tuple[str, ...]) -> str:
    return "".join(f"{quote(label, safe='')}/" for label in namespace)


def _key(namespace: tuple[str, ...], key: str) -> str:
    return f"{_prefix(namespace)}={quote(key, safe='')}"


def _place(key: str) -> tuple[tuple[str, ...], str]:
    labels, _, name = key.partition("=")
    return tuple(map(unquote, labels.split("/")[:-1])), unquote(name)


def _matches(condition: Any, namespace: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return len(part) == len(path) <= len(namespace) and all(wanted in ("*", label) for wanted, label in zip(path, part))


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value satisfies a filter: is equal to it, or satisfies its operators."""
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    if not any(name.startswith("$") for name in wanted):
        return isinstance(value, dict) and all(_fits(value.get(name), part) for name, part in wanted.items())
    return all(_compares(value, name, bound) for name, bound in wanted.items())


def _compares(value: Any, name: str, bound: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool((value == bound) == (name == "$eq"))
    if name not in _ORDERS:
        raise ValueError(f"a filter wants $eq, $ne, $gt, $gte, $lt or $lte, had {name}")
    return value is not None and bool(_ORDERS[name](float(value), float(bound)))
