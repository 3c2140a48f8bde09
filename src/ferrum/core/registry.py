"""Names for things of one kind: plug-ins register themselves, users ask for them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ferrum.core.errors import ConfigError, FerrumError, Unsupported
from ferrum.core.values import shown

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to things.

    Args:
        kind: what the things are, in the singular, for messages ("architecture").
        missing: makes the error for an unknown name, of what is missing and a reason that lists what there is.
    """

    def __init__(self, kind: str, *, missing: Callable[[str, str], FerrumError] = Unsupported) -> None:
        self.kind = kind
        self._missing = missing
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that adds a thing under `name` and returns it unchanged. Raises as `add`."""

        def enter(thing: T) -> T:
            self.add(name, thing)
            return thing

        return enter

    def add(self, name: str, thing: T) -> None:
        """Add a thing.

        Raises:
            ConfigError: the name is taken, or is none.
        """
        if not isinstance(name, str):
            raise ConfigError(f"must be a string, not {shown(name)}", param="name")
        if name in self._entries:
            raise ConfigError(f"the {self.kind} {shown(name)} is registered already", param="name")
        self._entries[name] = thing

    def get(self, name: str) -> T:
        """The thing of that name.

        Raises:
            Unsupported, or what `missing` makes: there is none; the reason lists those that exist.
        """
        try:
            return self._entries[name]
        except (KeyError, TypeError):  # also what cannot be a name
            listing = ", ".join(self.names()) or "none yet"
            raise self._missing(f"the {self.kind} {shown(name)}", f"there is {listing}") from None

    def pop(self, name: str) -> T:
        """Take a thing out. Raises as `get`."""
        thing = self.get(name)
        del self._entries[name]
        return thing

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._entries)
