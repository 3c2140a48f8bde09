"""`Conversation`: what a prompt was rendered from, in a form to keep and to compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_CHUNK: Final = 4096


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt was rendered from: JSON texts, which compare fast and keep the order of fields.

    Attributes:
        messages, tools: one text each.
        variables: of the template, by name.
        flags: further arguments of `ModelClient.render`, by name.
    """

    messages: tuple[str, ...]
    tools: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """Characters of all texts, with an allowance for objects."""
        named = sum(len(name) + len(value) + 100 for name, value in (*self.variables, *self.flags))
        return named + sum(len(text) + 64 for text in (*self.messages, *self.tools))


def conversation_of(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any] | None,
    flags: Mapping[str, Any],
) -> Conversation:
    """Return what a prompt is rendered from; all values are JSON."""
    return Conversation(
        tuple(map(written, messages)),
        tuple(map(written, tools or ())),
        tuple((name, written(value)) for name, value in (variables or {}).items()),
        tuple((name, written(value)) for name, value in flags.items()),
    )


def written(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation with its text."""

    conversation: Conversation
    text: str


def common_prefix(first: str | bytes, second: str | bytes) -> int:
    """Return the length of the common prefix of two texts, or of two byte strings."""
    end = min(len(first), len(second))
    at = 0
    while at < end and first[at : at + _CHUNK] == second[at : at + _CHUNK]:
        at += _CHUNK
    low, high = min(at, end), min(at + _CHUNK, end)
    while low < high:
        middle = (low + high + 1) // 2
        if first[at:middle] == second[at:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(first: str, second: str) -> int:
    """Return the length of the common suffix of two texts."""
    most = min(len(first), len(second))
    at = 0
    while at < most and _tail(first, at) == _tail(second, at):
        at += _CHUNK
    low, high = min(at, most), min(at + _CHUNK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if first[len(first) - middle :] == second[len(second) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


def _tail(text: str, at: int) -> str:
    """Return the chunk that ends `at` characters before the end."""
    return text[max(0, len(text) - at - _CHUNK) : len(text) - at]
