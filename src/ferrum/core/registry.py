"""`Registry`: plug-ins register themselves under a name, and users ask for them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ferrum.core.errors import ConfigError, FerrumError, Unsupported
from ferrum.core.values import shown

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to entries.

    Args:
        kind: what the entries are, in the singular, for messages ("architecture").
        missing: makes the error for an unknown name from what is missing and a reason that lists the names.
    """

    def __init__(self, kind: str, *, missing: Callable[[str, str], FerrumError] = Unsupported) -> None:
        self.kind = kind
        self._missing = missing
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds an entry and returns it unchanged. Raises as `add`."""

        def enter(thing: T) -> T:
            self.add(name, thing)
            return thing

        return enter

    def add(self, name: str, thing: T) -> None:
        """Add an entry.

        Raises:
            ConfigError: the name is taken or is no string.
        """
        if not isinstance(name, str):
            raise ConfigError(f"must be a string, not {shown(name)}", param="name")
        if name in self._entries:
            raise ConfigError(f"the {self.kind} {shown(name)} is already registered", param="name")
        self._entries[name] = thing

    def get(self, name: str) -> T:
        """Return the entry of that name.

        Raises:
            Unsupported, or the error of `missing`: the name is unknown; the reason lists the known names.
        """
        try:
            return self._entries[name]
        except (KeyError, TypeError):  # TypeError: an unhashable name
            listing = ", ".join(self.names()) or "none"
            raise self._missing(f"the {self.kind} {shown(name)}", f"known names: {listing}") from None

    def pop(self, name: str) -> T:
        """Remove and return an entry. Raises as `get`."""
        thing = self.get(name)
        del self._entries[name]
        return thing

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._entries)
