"""Dataclasses and pydantic models as they are recorded: the name of the class, and the fields.

A value that could not be read back is refused at once, while its caller still has it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from typing import Any

from .errors import NotSerializable

_HINT = "return plain data of it, or a class whose fields are enough to make it again"


def is_model(cls: Any) -> bool:
    """Whether a class is a pydantic model, by its methods."""
    return hasattr(cls, "model_validate") and hasattr(cls, "model_dump")


def fields(value: Any) -> Any:
    """The recorded form of a value's fields: of a dataclass the fields unchanged, of a pydantic model as JSON.

    Errors: `NotSerializable` when the value cannot be rebuilt from these fields.
    """
    cls: Any = type(value)
    if not is_model(cls):
        made = {f.name: getattr(value, f.name) for f in dataclasses.fields(cls) if hasattr(value, f.name)}
        _tried(cls, made)
        return made
    if is_lenient(cls):
        made = on_the_wire(value)
        _tried(cls, made)
        return made
    # Only fields that were set are recorded: APIs refuse a null in place of a field that was not sent.
    made = value.model_dump(mode="json", round_trip=True, by_alias=not _knows_names(cls), exclude_unset=True)
    whole = value.model_dump(mode="json", round_trip=True, by_alias=not _knows_names(cls))
    if made != whole and not _gives(cls, made, whole):
        # A default differs each time it is made, so that all fields are recorded.
        made = whole
    _tried(cls, made)
    return made


def on_the_wire(value: Any) -> Any:
    """The form that a lenient model had on the wire, with fields that this version of its SDK does not know."""
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


def _gives(cls: Any, made: Any, whole: Any) -> bool:
    try:
        again = of(cls, made)
        return bool(again.model_dump(mode="json", round_trip=True, by_alias=not _knows_names(cls)) == whole)
    except Exception:
        return False


def _tried(cls: Any, made: Any) -> None:
    try:
        of(cls, made)
    except Exception as e:
        raise NotSerializable(f"a value of class {shown(cls)} cannot be made again of its fields: {e}", hint=_HINT) from e


def of(cls: Any, values: Any) -> Any:
    """Makes a value of class `cls` from its recorded `values`. Errors: whatever the class raises."""
    if is_model(cls):
        if is_lenient(cls):
            return cls.model_construct(**values)
        # Validates by field names, not aliases. Not strict, so that a text becomes a time again in strict models, too.
        return cls.model_validate(values, strict=False, by_name=True) if _knows_names(cls) else cls.model_validate(values)
    # The constructor is not called: the recorded value is already past __post_init__.
    made = cls.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in values:
            object.__setattr__(made, field.name, values[field.name])
        elif field.default_factory is not dataclasses.MISSING:
            # A field that was added to the class later.
            object.__setattr__(made, field.name, field.default_factory())
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(made, field.name, field.default)
    return made


@functools.lru_cache(maxsize=512)
def _knows_names(cls: Any) -> bool:
    """Whether a model can be validated by the names of its fields: pydantic from 2.11 on."""
    return "by_name" in inspect.signature(cls.model_validate).parameters


@functools.lru_cache(maxsize=512)
def is_lenient(cls: Any) -> bool:
    """Whether a model builds its values without validation, as the SDKs of providers do: answers need not be valid."""
    own, old = (getattr(inspect.getattr_static(cls, name, None), "__func__", None) for name in ("model_construct", "construct"))
    # SDKs override both names with one method that builds nested models; in pydantic itself, the two differ.
    return own is not None and own is old


# --- names


def shown(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def name(cls: Any) -> str:
    """The name by which `named` finds a class: `module:Class`; of a generic model `module:Class[module:Argument]`.

    Errors: `NotSerializable` for a class that is not of module level.
    """
    generic = getattr(cls, "__pydantic_generic_metadata__", None)
    if generic and generic["origin"] is not None:
        if not all(isinstance(arg, type) for arg in generic["args"]):
            raise NotSerializable(
                f"a value of class {shown(cls)} cannot be read back: its arguments are more than classes",
                hint=f"give it a name at module level: class Named({cls.__qualname__}): pass",
            )
        return f"{name(generic['origin'])}[{','.join(name(arg) for arg in generic['args'])}]"
    made = f"{cls.__module__}:{cls.__qualname__}"
    try:
        found = lookup(made)
    except NotSerializable:
        found = None
    if found is not cls:
        raise NotSerializable(
            f"a value of class {made} cannot be read back: the class is not found under its name",
            hint="define the class at module level",
        )
    return made


def named(recorded: str) -> Any:
    """The dataclass or pydantic model that a recorded name stands for. Errors: `NotSerializable`."""
    found = lookup(recorded)
    if not (isinstance(found, type) and (dataclasses.is_dataclass(found) or is_model(found))):
        raise NotSerializable(f"a recorded value names {recorded}, which is neither a dataclass nor a pydantic model")
    return found


def lookup(recorded: str) -> Any:
    origin, _, rest = recorded.partition("[")
    module_name, _, qualname = origin.partition(":")
    try:
        module = sys.modules.get(module_name)
        if module is None:
            import importlib

            module = importlib.import_module(module_name)
        found: Any = module
        for part in qualname.split("."):
            found = getattr(found, part)
        if rest:
            arguments = tuple(lookup(argument) for argument in _split(rest[:-1]))
            found = found[arguments]
    except (ImportError, AttributeError, TypeError, ValueError) as e:
        raise NotSerializable(
            f"a recorded value is of class {recorded}, which is not there any more: {e}",
            hint="put the class back, or start a new run",
        ) from e
    return found


def _split(arguments: str) -> list[str]:
    """Splits a text at the commas that are outside of brackets."""
    parts, depth = [""], 0
    for piece in re.split(r"([\[\],])", arguments):
        depth += (piece == "[") - (piece == "]")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts
