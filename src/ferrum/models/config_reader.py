"""Reading `config.json`: typed values, or an error that names the field."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported

MOST: Final = 2**31 - 1
"""Largest integer of a configuration: token ids and positions have 32 bits."""

_MOST_LAYERS: Final = 10_000
"""A list of the layers is made before any tensor shows how many there are."""


class FamilyConfig:
    """A checkpoint's configuration as a family's function reads it.

    Args:
        values: the parsed `config.json` (or a part of it).
        context: the sequence length that the user configured, or None for the checkpoint's own; dynamic rope scaling is
            frozen for it.
    """

    def __init__(self, values: Mapping[str, Any], context: int | None = None) -> None:
        self.values = values
        self.context = context

    def with_defaults(self, **values: Any) -> FamilyConfig:
        """The same configuration with these values for what is absent or null."""
        unsaid = {name: value for name, value in values.items() if self.values.get(name) is None}
        return FamilyConfig({**self.values, **unsaid}, self.context)

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        """An integer within bounds; null counts as absent."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise CheckpointError(f"config.json: {name} must be an integer from {least} to {most}, got {value!r}")
        return value

    def num_layers(self) -> int:
        """Layers of the decoder."""
        return self.integer("num_hidden_layers", most=_MOST_LAYERS)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite positive number; null counts as absent."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
            raise CheckpointError(f"config.json: {name} must be a positive number, got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; null counts as absent."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: {name} must be true or false, got {value!r}")
        return value

    def section(self, name: str) -> FamilyConfig | None:
        """A nested object, or None where it is absent, null or empty."""
        value = self.values.get(name)
        if not value:
            return None
        if not isinstance(value, Mapping):
            raise CheckpointError(f"config.json: {name} must be an object, got {value!r}")
        return FamilyConfig(value, self.context)

    def only(self, name: str, supported: Any, default: Any = None) -> None:
        """Refuse any value but one, for features that this engine does not compute."""
        value = self.values.get(name)
        value = default if value is None else value
        if value != supported:
            raise Unsupported(f"config.json: {name}={value!r}", f"only {supported!r} is implemented for this family")
