"""`AdapterRegistry`: the names of an engine's adapters on the client's side, and how requests choose them.

The engine knows adapters by their digests. Two names of one digest are one adapter there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from ferrum.client.router import Router
from ferrum.core.errors import RequestError
from ferrum.core.lora_option import AdapterFacts, start_of
from ferrum.core.memory_plan import size
from ferrum.core.types import Adapter
from ferrum.core.values import shown

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter of a request, with vLLM's field names. It is loaded at first use.

    Attributes:
        lora_name: the adapter's name.
        lora_int_id: at least 1. A request's adapters add their results in ascending order of it.
        lora_path: directory, GGUF file or hub id; empty for a name that is loaded already.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""


AdapterChoice: TypeAlias = str | LoRARequest
"""The name of a loaded adapter, or one to load."""


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """A loaded adapter under one of its names.

    Attributes:
        id: adapters of one request add their results in ascending order of it.
        facts: what the engine replied.
        scale: factor for requests that give none.
        places: where it was loaded from, see `_place`: as the caller and as the engine named it.
    """

    id: int
    name: str
    facts: AdapterFacts
    scale: float = 1.0
    places: frozenset[str] = frozenset()

    def scaled(self, scale: float) -> NamedAdapter:
        """Return the adapter with another factor. Raises RequestError if it cannot be scaled."""
        if scale not in (0.0, 1.0) and not self.facts.scales:
            reason = f"must be 1, not {scale:g}: {self.name!r} replaces weights or scales outputs (DoRA)"
            raise RequestError(reason, param="scale")
        return replace(self, scale=float(scale))


def adapters_in(chosen: Iterable[NamedAdapter], prompt: tuple[int, ...]) -> tuple[Adapter, ...]:
    """Return the adapters of a request with this prompt.

    One whose invocation tokens the prompt does not hold, or whose scale is 0, changes nothing and is left out.
    """
    found = []
    for each in sorted(chosen, key=lambda each: (each.id, each.name)):
        start = start_of(each.facts.invocation, prompt)
        if start is not None and each.scale:
            found.append(Adapter(each.name, each.facts.digest, each.scale, start))
    return tuple(found)


def choices_of(choice: AdapterChoice | Sequence[AdapterChoice] | None) -> tuple[AdapterChoice, ...]:
    """Return what a caller has chosen as a list."""
    if choice is None:
        return ()
    return (choice,) if isinstance(choice, str | LoRARequest) else tuple(choice)


class AdapterRegistry:
    """The adapters of one engine by name; safe to use from any thread.

    Args:
        router: loads and unloads them.
    """

    def __init__(self, router: Router) -> None:
        self._router, self._lock = router, Lock()
        self._named: dict[str, NamedAdapter] = {}

    def __iter__(self) -> Iterator[NamedAdapter]:
        return iter(sorted(self._named.values(), key=lambda each: each.id))

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def begin_load(self, path: str) -> Future[AdapterFacts]:
        """Let the engine load an adapter; `add` names it then. Raises EngineDead, RequestError."""
        if not path:
            raise RequestError(f"must be a directory, a GGUF file or a hub id, not {shown(path)}", param="lora_path")
        local = _local(path)  # the engine's process may be in another directory
        return self._router.load_adapter(path if local is None else str(local.absolute()))

    def load_all(self, texts: Iterable[str]) -> None:
        """Load the adapters of the option `lora`, each NAME=PATH. Raises FerrumError."""
        for text in texts:
            name, _, path = text.partition("=")
            try:
                self.add(name, self.begin_load(path).result(), asked=path)
            except RequestError as error:
                raise error.about("lora") from None

    def add(
        self, name: str, facts: AdapterFacts, *, asked: str = "", id: int | None = None, scale: float = 1.0
    ) -> NamedAdapter:
        """Give a loaded adapter a name; one that has the name already loses it.

        Args:
            asked: the path or hub id that the caller gave.
            id: default: that of the adapter which has the name, or one more than the largest.
        """
        with self._lock:
            before = self._named.get(name)
            if id is None:
                id = max((each.id for each in self._named.values()), default=0) + 1 if before is None else before.id
            named = NamedAdapter(id, name, facts, places=frozenset(map(_place, (asked or facts.path, facts.path))))
            try:
                named = self._named[name] = named.scaled(scale)
            except RequestError:
                self._free(named)
                raise
            self._free(before)
        _LOG.info("adapter %s is loaded: rank %d, %s, %s", name, facts.rank, size(facts.nbytes), facts.path)
        return named

    def remove(self, name: str) -> NamedAdapter:
        """Forget a name. Requests that use the adapter keep it. Raises RequestError."""
        with self._lock:
            if name not in self._named:
                raise self._unknown(name)
            before = self._named.pop(name)
            self._free(before)
        _LOG.info("adapter %s is unloaded", name)
        return before

    def _free(self, before: NamedAdapter | None) -> None:
        """Unload an adapter that has no name any more. The lock is held."""
        if before is not None and all(each.facts.digest != before.facts.digest for each in self._named.values()):
            self._router.unload_adapter(before.facts.key)

    def find(self, name: str) -> NamedAdapter:
        """Return the adapter of a name. Raises RequestError."""
        found = self._named.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def of_digest(self, digest: bytes) -> NamedAdapter | None:
        """Return an adapter of this digest, or None."""
        return next((each for each in self if each.facts.digest == digest), None)

    def chosen(self, choice: AdapterChoice | Sequence[AdapterChoice] | None) -> tuple[NamedAdapter, ...]:
        """Return the adapters that a caller has chosen, and load those that are not loaded.

        It blocks while an adapter is read.

        Raises:
            RequestError: an unknown name, or a name of another path.
            FerrumError: an adapter cannot be loaded.
        """
        found = tuple(map(self._one, choices_of(choice)))
        if len({each.name for each in found}) < len(found):
            raise RequestError("names one adapter twice", param="lora_request")
        return found

    def _one(self, choice: object) -> NamedAdapter:
        if isinstance(choice, str):
            return self.find(choice)
        if not isinstance(choice, LoRARequest):
            raise RequestError(f"must be a name or a LoRARequest, not {shown(choice)}", param="lora_request")
        if self.missing(choice):
            facts = self.begin_load(choice.lora_path).result()
            return self.add(choice.lora_name, facts, asked=choice.lora_path, id=choice.lora_int_id)
        return replace(self.find(choice.lora_name), id=choice.lora_int_id)

    def missing(self, choice: LoRARequest) -> bool:
        """Return whether an adapter has to be loaded. Raises RequestError if its name has another path."""
        name, id, path = choice.lora_name, choice.lora_int_id, choice.lora_path
        if not name:
            raise RequestError(f"must be a name, not {shown(name)}", param="lora_name")
        if not isinstance(path, str):
            raise RequestError(f"must be a string, not {shown(path)}", param="lora_path")
        if type(id) is not int or id < 1:
            raise RequestError(f"must be an integer of at least 1, not {shown(id)}", param="lora_int_id")
        if name not in self._named:
            return True
        loaded = self._named[name]
        if path and _place(path) not in loaded.places:
            reason = f"{name!r} is loaded from {loaded.facts.path!r}: unload it, or choose another name"
            raise RequestError(reason, param="lora_path")
        return False

    def _unknown(self, name: str) -> RequestError:
        loaded = ", ".join(repr(each.name) for each in self) or "none"
        return RequestError(f"no adapter {shown(name)} is loaded (loaded: {loaded})", param="lora_request")


def _local(path: str) -> Path | None:
    """Return the path of a directory or file of this machine; None for a hub id."""
    with suppress(OSError, RuntimeError, ValueError):  # no path; the engine says what is wrong
        if (found := Path(path).expanduser()).exists():
            return found
    return None


def _place(path: str) -> str:
    """Return a text that is equal for paths to the same files, and a hub id as it is."""
    local = _local(path)
    return path if local is None else str(local.resolve())
