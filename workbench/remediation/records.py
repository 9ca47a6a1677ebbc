"""Turn frozen records into plain values that JSON holds, and back into the same records."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

__all__ = ["plain", "record"]

T = TypeVar("T")
_PLAIN = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """Return records, tuples and mappings as dicts and lists; what is plain already as it is."""
    cls = type(value)
    if cls in _PLAIN:
        return value
    if dataclasses.is_dataclass(cls):
        return {name: plain(getattr(value, name)) for name in _kinds(cls)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return value


@lru_cache(maxsize=64)
def _kinds(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {one.name: hints[one.name] for one in dataclasses.fields(cls)}


def record(cls: type[T], value: Any) -> T:
    """
    Return the record that `plain` made these values of.

    Raises
    ------
    ValueError
        A field is missing, has another type, or is none of the record's.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{cls.__name__} is an object, not {type(value).__name__}")
    kinds = _kinds(cls)  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
    if strange := sorted(set(value) - set(kinds)):
        raise ValueError(f"{cls.__name__} has no {strange[0]!r}")
    try:
        return cls(**{name: _value(kinds[name], one, f"{cls.__name__}.{name}") for name, one in value.items()})
    except TypeError as error:
        raise ValueError(str(error).replace("__init__() ", "")) from None


def _value(kind: Any, value: Any, name: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        if value is None:
            return None
        return _value(kinds[0], value, name)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is a list, not {type(value).__name__}")
        return tuple(_value(typing.get_args(kind)[0], one, name) for one in value)
    if origin is not None:  # a mapping
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is an object, not {type(value).__name__}")
        of = typing.get_args(kind)[1]
        return {str(key): _value(of, one, f"{name}.{key}") for key, one in value.items()}
    if dataclasses.is_dataclass(kind):
        return record(cast("type[Any]", kind), value)
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {kind.__name__}, not {type(value).__name__}")
    return value
