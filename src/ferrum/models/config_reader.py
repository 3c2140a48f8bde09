"""Reader of `config.json`: typed values, or an error that names the field."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported

MAX_INTEGER: Final = 2**31 - 1
"""Largest integer of a configuration: token ids and positions have 32 bits."""

_MAX_LAYERS: Final = 10_000
"""Limit of the layer list, which is built before any tensor is read."""


class FamilyConfig:
    """A checkpoint's configuration.

    Args:
        values: the parsed `config.json`, or a section of it.
        context: sequence length configured by the user, or None. Dynamic rope scaling is fixed for this length.
    """

    def __init__(self, values: Mapping[str, Any], context: int | None = None) -> None:
        self.values = values
        self.context = context

    def with_values(self, **values: Any) -> FamilyConfig:
        """Return a copy with other values of these fields."""
        return FamilyConfig({**self.values, **values}, self.context)

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> int:
        """Read an integer within bounds; null counts as absent."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise CheckpointError(f"config.json: {name} must be an integer from {minimum} to {maximum}, got {value!r}")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Read a positive integer; null, 0 and absence mean none."""
        return self.integer(name, 0, minimum=0) or None

    def integers(self, name: str) -> list[int] | None:
        """Read a list of integers; null counts as absent."""
        value = self.values.get(name)
        if value is not None and (not isinstance(value, list) or any(not isinstance(each, int) for each in value)):
            raise CheckpointError(f"config.json: {name} must be a list of integers, got {value!r}")
        return value

    def num_layers(self) -> int:
        """Return the number of layers of the decoder."""
        return self.integer("num_hidden_layers", maximum=_MAX_LAYERS)

    def number(self, name: str, default: Any = None, *, zero: bool = False) -> float:
        """Read a finite positive number, or 0 if it is allowed; null counts as absent."""
        value = self.values.get(name)
        value = default if value is None else value
        valid = isinstance(value, int | float) and not isinstance(value, bool)
        if not valid or not 0 <= value <= sys.float_info.max or (value == 0 and not zero):
            kind = "a positive number or 0" if zero else "a positive number"
            raise CheckpointError(f"config.json: {name} must be {kind}, got {value!r}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Read a positive number; null, 0 and absence mean none."""
        return self.number(name, 0.0, zero=True) or None

    def flag(self, name: str, default: bool = False) -> bool:
        """Read a boolean; null counts as absent."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: {name} must be true or false, got {value!r}")
        return value

    def section(self, name: str) -> FamilyConfig | None:
        """Return a nested object, or None if it is absent, null or empty."""
        value = self.values.get(name)
        if not value:
            return None
        if not isinstance(value, Mapping):
            raise CheckpointError(f"config.json: {name} must be an object, got {value!r}")
        return FamilyConfig(value, self.context)

    def require(self, name: str, supported: Any, default: Any = None) -> None:
        """Raise Unsupported unless a field has the only supported value."""
        value = self.values.get(name)
        value = default if value is None else value
        if value != supported:
            raise Unsupported(f"config.json: {name}={value!r}", f"only {supported!r} is implemented for this family")
