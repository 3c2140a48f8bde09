"""The option `lora`: adapters by name, or those that `ferrum quantize` merges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.core.errors import ConfigError
from ferrum.core.values import shown

_FIELDS: Final = ("name", "path", "base_model_name")
"""Fields of vLLM's JSON form."""

_MAX_SCALE: Final = 1e30


@dataclass(frozen=True, slots=True)
class AdapterToMerge:
    """A value of the option where adapters are merged.

    Attributes:
        path: directory, GGUF file or hub id.
        scale: factor of its low-rank products.
    """

    path: str
    scale: float = 1.0


def named_adapters(given: object) -> tuple[str, ...]:
    """Return the values as NAME=PATH. Raises ConfigError."""
    several = (given,) if isinstance(given, str) else given
    if not isinstance(several, list | tuple) or not all(isinstance(each, str) for each in several):
        raise ConfigError(f"must be a list of texts, not {shown(given)}", param="lora")
    named = [_named_path(text) for text in several]
    names = [name for name, _ in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"names {twice[0]!r} twice: each adapter needs its own name", param="lora")
    return tuple(f"{name}={path}" for name, path in named)


def _named_path(text: str) -> tuple[str, str]:
    """Return name and path of NAME=PATH or of vLLM's JSON object. Raises ConfigError."""
    name: object
    path: object
    name, _, path = text.partition("=")
    if _is_json(text):
        fields = _json_fields(text, _FIELDS, "name and path")
        name, path = fields.get("name"), fields.get("path")
    if not (isinstance(name, str) and isinstance(path, str) and name and path and "=" not in name):
        raise ConfigError(f"must look like NAME=PATH, not {shown(text)}", param="lora")
    return name, path


def adapters_to_merge(given: Iterable[str]) -> tuple[AdapterToMerge, ...]:
    """Return the adapters of PATH, NAME=PATH or JSON objects with a scale; names are ignored. Raises ConfigError."""
    return tuple(map(_to_merge, given))


def _to_merge(text: str) -> AdapterToMerge:
    fields: dict[str, Any] = {"path": text.partition("=")[2] if "=" in text else text}
    if _is_json(text):
        fields = _json_fields(text, (*_FIELDS, "scale"), "path and scale")
    path, scale = fields.get("path"), fields.get("scale", 1.0)
    if not isinstance(path, str) or not path:
        raise ConfigError(f"must be a directory, a GGUF file or a hub id, not {shown(text)}", param="lora")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < abs(scale) <= _MAX_SCALE:
        raise ConfigError(f"must have a scale of at most {_MAX_SCALE:g} and not 0, not {shown(scale)}", param="lora")
    return AdapterToMerge(path, float(scale))


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _json_fields(text: str, known: tuple[str, ...], wanted: str) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises ConfigError."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{shown(text)} is not JSON: {error}", param="lora") from None
    unknown = sorted(set(fields) - {*known})
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no field of an adapter: give {wanted}", param="lora")
    return fields


# ---- `AdapterFacts`: what clients of an engine know about an adapter, without its numbers ----


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What requests with an adapter depend on, and what servers report about it.

    Attributes:
        path: of the directory or the file.
        digest: of the tensors, and of what else changes the result.
        nbytes: bytes of all numbers.
        rank: the largest.
        scales: whether requests may scale it: it only adds low-rank products.
        invocation: tokens that switch it on (aLoRA); empty for any other adapter.
        about: of GGUF files: task_name and prompt_prefix.
    """

    path: str
    digest: bytes
    nbytes: int
    rank: int
    scales: bool = True
    invocation: tuple[int, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The digest as spans name it."""
        return self.digest.hex()


def start_of(invocation: tuple[int, ...], prompt: Sequence[int]) -> int | None:
    """Return the position of the first token that an adapter changes, or None if it changes none.

    An adapter with invocation tokens (aLoRA) begins at their last occurrence in the prompt.
    """
    size, tokens = len(invocation), tuple(prompt)
    if not size:
        return 0
    starts = range(len(tokens) - size, -1, -1)
    return next((at for at in starts if tokens[at : at + size] == invocation), None)
