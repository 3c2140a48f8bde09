"""`JsonRecord`: frozen dataclasses to JSON and back by their type hints.

Configs, snapshots and handles use it. Validation beyond types is the records' own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from ferrum.core.errors import RequestError
from ferrum.core.values import shown


class JsonRecord:
    """A base class that gives a dataclass its JSON form.

    Fields may be None, bool, int, float, str, enums, other records, and tuples, frozensets and mappings of these. Sets
    are written sorted, so that equal records have equal text.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    def to_json(self) -> str:
        """Return the fields as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the record of `to_dict`; an absent field takes its default.

        Raises:
            RequestError: an unknown or missing name, a value of the wrong type, or a number that is not finite; `param`
                names it.
        """
        record: Self = _record(cls, values, cls.__name__)
        return record

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the record of `to_json`. Raises as `from_dict`, and RequestError for invalid JSON."""
        try:
            values = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"not JSON: {error}", param=cls.__name__) from None
        record: Self = _record(cls, values, cls.__name__)
        return record


def _plain(value: Any) -> Any:
    if isinstance(value, JsonRecord):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _record(cls: type, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise RequestError(f"must be an object, not {shown(values)}", param=where)
    known = {item.name: item for item in fields(cls)}
    for name in values:
        if name not in known:
            raise RequestError(f"is not a field of {cls.__name__}", param=name)
    for name, item in known.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise RequestError(f"is required in {cls.__name__}", param=name)
    hints = _hints(cls)
    return cls(**{name: _value(hints[name], value, name) for name, value in values.items()})


def _value(hint: Any, value: Any, name: str) -> Any:
    """Return `value` as the type `hint`."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _either(parts, value, name)
    if origin in (tuple, frozenset):
        if not isinstance(value, list | tuple):
            raise RequestError(f"must be a list, not {shown(value)}", param=name)
        return origin(_value(parts[0], item, name) for item in value)
    if origin is not None:
        if not isinstance(value, Mapping):
            raise RequestError(f"must be an object, not {shown(value)}", param=name)
        return {_value(parts[0], key, name): _value(parts[1], item, name) for key, item in value.items()}
    if is_dataclass(hint):
        return _record(hint, value, name)  # type: ignore[arg-type]  # a hint is a class, never an instance
    if issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            raise RequestError(
                f"must be one of {[item.value for item in hint]}, not {shown(value)}", param=name
            ) from None
    return _primitive(hint, value, name)


def _either(parts: tuple[Any, ...], value: Any, name: str) -> Any:
    """Return `value` as one of some types; a union is a type or None here, or an integer, a float or None."""
    if value is None and NoneType in parts:
        return None
    hints = [part for part in parts if part is not NoneType]
    return _value(type(value) if type(value) in hints else hints[0], value, name)


def _primitive(hint: type, value: Any, name: str) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, name)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise RequestError(f"must be {hint.__name__}, not {shown(value)}", param=name)
    return value


def _finite(value: float, name: str) -> float:
    """Return a finite float: Python's JSON reader accepts infinities and NaN, and reads huge numbers as infinities."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"must be finite, not {number}", param=name)
    return number
