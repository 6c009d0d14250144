"""Arrays, frames and images by their content, for keys. No library is imported here: its values exist only where it is."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
from typing import Any, Callable

from .errors import Unkeyable

#: What values that hold arrays of numbers have, of whatever library.
_PROTOCOLS = (
    "__array__",
    "__array_interface__",
    "__arrow_c_array__",
    "__arrow_c_stream__",
    "__cuda_array_interface__",
    "__dataframe__",
    "__dlpack__",
)  # fmt: skip


def is_array(cls: type) -> bool:
    """Whether values of the class hold an array, judged by the array protocols that the class has."""
    return any(hasattr(cls, name) for name in _PROTOCOLS)


def written(value: Any) -> list[Any] | None:
    """Returns the content of a value of a known library; None for any other value. Errors: `Unkeyable`.

    The content counts, whatever its layout in memory: order, strides, chunks, device.
    """
    library = _library(type(value))
    if library is None:
        return None
    try:
        return _WRITERS[library](sys.modules[library], value)
    except Unkeyable:
        raise
    except Exception as e:
        raise Unkeyable(f"the content of a {type(value).__qualname__} cannot be read: {type(e).__name__}: {e}") from e


@functools.lru_cache(maxsize=512)
def _library(cls: type) -> str | None:
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next((root for root in roots if root in _WRITERS and root in sys.modules), None)


def _sha(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


# --- numpy


def _numpy(np: Any, value: Any) -> list[Any] | None:
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        return [_array(np, value.data), _array(np, mask), repr(value.fill_value)]
    if isinstance(value, np.ndarray):
        if not type(value).__module__.startswith("numpy") and getattr(value, "__dict__", None):
            raise Unkeyable(f"{type(value).__qualname__} is an array with attributes of its own ({', '.join(value.__dict__)})")
        return _array(np, value)
    if isinstance(value, np.generic):
        return [repr(value)] if value.dtype.names is None else _array(np, np.asarray(value))
    return None


def _array(np: Any, value: Any) -> list[Any]:
    """Type, shape and content of an array, in the order of its rows."""
    value, dtype = np.asarray(value), value.dtype
    head = [str(dtype), list(value.shape)]
    if dtype.hasobject or dtype.names is not None:
        # Addresses, or gaps between the fields: the elements count.
        return [*head, value.ravel().tolist()]
    if dtype.char in "gG":
        # Long doubles have bytes that mean nothing.
        return [*head, value.ravel().astype(str).tolist()]
    return [*head, _sha(value.tobytes())]


# --- pandas


def _pandas(pd: Any, value: Any) -> list[Any] | None:
    if isinstance(value, pd.DataFrame):
        columns = [_column(pd, value.iloc[:, i]) for i in range(value.shape[1])]
        return [value.index, value.columns, columns, dict(value.attrs)]
    if isinstance(value, pd.Series):
        return [value.index, value.name, _column(pd, value), dict(value.attrs)]
    if isinstance(value, pd.MultiIndex):
        return [list(value.names), [_column(pd, value.get_level_values(i)) for i in range(value.nlevels)]]
    if isinstance(value, pd.Index):
        return [value.name, _column(pd, value)]
    if isinstance(value, pd.api.extensions.ExtensionArray):
        return _column(pd, value)
    return None


def _column(pd: Any, column: Any) -> list[Any]:
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return ["category", dtype.ordered, dtype.categories, getattr(column, "array", column).codes]
    if isinstance(dtype, sys.modules["numpy"].dtype):
        return _array(sys.modules["numpy"], column.to_numpy())
    return [str(dtype), column.tolist()]


# --- pyarrow


def _pyarrow(pa: Any, value: Any) -> list[Any] | None:
    if isinstance(value, (pa.Table, pa.RecordBatch)):
        return [_schema(value.schema), [_chunks(pa, column) for column in value.columns]]
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return [str(value.type), _chunks(pa, value)]
    if isinstance(value, pa.Schema):
        return _schema(value)
    return _schema([value]) if isinstance(value, pa.Field) else None


def _schema(schema: Any) -> list[Any]:
    fields = [[f.name, str(f.type), f.nullable, _metadata(f.metadata)] for f in schema]
    return [fields, _metadata(getattr(schema, "metadata", None))]


def _metadata(metadata: Any) -> list[list[str]]:
    return sorted([key.hex(), value.hex()] for key, value in (metadata or {}).items())


def _chunks(pa: Any, column: Any) -> list[Any]:
    """The values of a column. Those of plain numbers by their bytes, which is a hundred times as fast."""
    if "numpy" in sys.modules and column.null_count == 0 and pa.types.is_primitive(column.type):
        array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
        return _array(sys.modules["numpy"], array)
    return column.to_pylist()  # type: ignore[no-any-return]


# --- torch


def _torch(torch: Any, value: Any) -> list[Any] | None:
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise Unkeyable(f"a tensor of layout {value.layout} on {value.device.type} has no plain content")
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return [str(value.dtype), list(value.shape), _sha(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))]


# --- pillow


def _pillow(pil: Any, value: Any) -> list[Any] | None:
    images = sys.modules.get("PIL.Image")
    if images is None or not isinstance(value, images.Image):
        return None
    frames, here = [], value.tell()
    for frame in range(getattr(value, "n_frames", 1)):
        if frame != here or frames:
            value.seek(frame)
        frames.append(_sha(value.tobytes()))
    if value.tell() != here:
        value.seek(here)
    # What changes how the pixels are seen.
    seen = {name: value.info[name] for name in ("exif", "icc_profile", "transparency", "gamma") if name in value.info}
    return [value.mode, list(value.size), here, frames, value.getpalette(), seen]


_WRITERS: dict[str, Callable[[Any, Any], "list[Any] | None"]] = {
    "numpy": _numpy,
    "pandas": _pandas,
    "pyarrow": _pyarrow,
    "torch": _torch,
    "PIL": _pillow,
}
