"""The table of a job's results: one schema for `out=`, data frames and `outlast export`."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

from .. import codec
from ..generators.jsonl import untagged

if TYPE_CHECKING:
    from .results import Result

#: Columns of the table. `value` is None where `error` is not; times are in UTC.
COLUMNS = ("key", "ok", "value", "error", "attempts", "cost_usd", "started", "ended")


class Tabular:
    """Results that can be had as a data frame, with a row for each item that has ended, failures included.

    Columns: key, ok, value, error, attempts, cost_usd, started, ended.
    """

    def _results(self) -> Iterator["Result"]:
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The results as a `pandas.DataFrame`. `value` has the values as the function returned them."""
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]

        columns: dict[str, Any] = {**_columns(self._results())}
        values = pd.Series(columns["value"], dtype=object)
        # Beside what has no value, whole numbers would become floats.
        columns["value"] = values if any(value is None for value in values) else values.infer_objects()
        for name in ("started", "ended"):
            columns[name] = pd.to_datetime(columns[name], utc=True)
        return pd.DataFrame(columns, columns=list(COLUMNS))

    def to_arrow(self) -> Any:
        """The results as a `pyarrow.Table`. Values of one kind have its type; others are JSON texts."""
        return _arrow(self._results())

    def to_polars(self) -> Any:
        """The results as a `polars.DataFrame`. Values of one kind have its type; others are JSON texts."""
        return _polars(self._results())


def row(result: "Result") -> dict[str, Any]:
    """A result as a row of plain data, as `outlast export` prints it."""
    times = (None if at is None else at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for at in (result.started, result.ended))
    # JSON has no NaN and no infinities: they become null.
    value = untagged(json.loads(result.recorded(), parse_constant=lambda _: None)) if result.ok else None
    return dict(zip(COLUMNS, (result.key, result.ok, value, _error(result), result.attempts, result.cost_usd, *times), strict=True))


def _error(result: "Result") -> str | None:
    if result.ok:
        return None
    return f"Skip: {result.why()}" if result.status == "skipped" else result.why()


# --- files, by the ending of their names


def _jsonl(path: str, results: Iterable["Result"]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for result in results:
            file.write(codec.compact(row(result)) + "\n")


def _csv(path: str, results: Iterable["Result"]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for result in results:
            writer.writerow(_cell(cell) for cell in row(result).values())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else codec.compact(value)


def _parquet(path: str, results: Iterable["Result"]) -> None:
    if not _is_there("pyarrow"):
        _polars(results).write_parquet(path)
        return
    import pyarrow.parquet  # type: ignore[import-untyped,unused-ignore]

    table = _arrow(results)
    try:
        pyarrow.parquet.write_table(table, path)
    except pyarrow.ArrowException:
        # Some types of values have no form in Parquet, such as a dict that is always empty.
        texts = pyarrow.array(_texts(table["value"].to_pylist()), pyarrow.string())
        pyarrow.parquet.write_table(table.set_column(COLUMNS.index("value"), "value", texts), path)


_WRITERS: dict[str, Callable[[str, Iterable["Result"]], None]] = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}


def writer(path: str) -> Callable[[str, Iterable["Result"]], None]:
    """The function that writes results to a file of this name. Errors: `ValueError` for an ending that means nothing,
    `ImportError` where a library is missing."""
    ending = os.path.splitext(path)[1].lower()
    write = _WRITERS.get(ending)
    if write is None:
        raise ValueError(f"out= wants a file that ends in {', '.join(_WRITERS)}, had {path!r}")
    if write is _parquet and not (_is_there("pyarrow") or _is_there("polars")):
        raise ImportError("out= of a .parquet file needs pyarrow or polars: pip install pyarrow, or write .jsonl or .csv")
    return write


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# --- data frames


def _columns(results: Iterable["Result"]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for r in results:
        cells = (r.key, r.ok, r.value if r.ok else None, _error(r), r.attempts, r.cost_usd, r.started, r.ended)
        for name, cell in zip(COLUMNS, cells, strict=True):
            columns[name].append(cell)
    return columns


def _texts(values: list[Any]) -> list[str | None]:
    return [None if value is None else _cell(untagged(json.loads(codec.encode(value)))) for value in values]


def _arrow(results: Iterable["Result"]) -> Any:
    import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

    columns = _columns(results)
    try:
        values = pa.array(columns["value"])
        if pa.types.is_null(values.type):
            values = values.cast(pa.string())
    except (pa.ArrowException, OverflowError):
        values = pa.array(_texts(columns["value"]), pa.string())
    time = pa.timestamp("us", tz="UTC")
    types = (pa.string(), pa.bool_(), None, pa.string(), pa.int64(), pa.float64(), time, time)
    arrays = [values if of is None else pa.array(columns[name], of) for name, of in zip(COLUMNS, types, strict=True)]
    return pa.Table.from_arrays(arrays, names=list(COLUMNS))


def _polars(results: Iterable["Result"]) -> Any:
    import polars as pl  # type: ignore[import-not-found,unused-ignore]

    columns = _columns(results)
    time = pl.Datetime("us", "UTC")
    types = {"key": pl.String, "ok": pl.Boolean, "error": pl.String, "attempts": pl.Int64, "cost_usd": pl.Float64, "started": time, "ended": time}
    try:
        values = pl.Series("value", columns["value"])
        if values.dtype in (pl.Object, pl.Null):
            raise TypeError
    except Exception:
        # Values of several kinds.
        values = pl.Series("value", _texts(columns["value"]), dtype=pl.String)
    series = [values if name == "value" else pl.Series(name, columns[name], dtype=types[name]) for name in COLUMNS]
    return pl.DataFrame(series)
