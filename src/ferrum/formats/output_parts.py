"""`Part`: a piece of a parsed output: reasoning, content, or a part of a tool call; and the whole output of parts."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ferrum.core.output_format import Calls
from ferrum.text.template_messages import ID_LENGTH


class PartKind(StrEnum):
    """What a part is.

    CALL begins a call: its text is the name. ARGUMENTS is text of its arguments: of the JSON object, or of a custom
    tool. END ends it, without text; a call that was cut in its arguments has none. Between CALL and END of a call stand
    only its ARGUMENTS.
    """

    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"
    ARGUMENTS = "arguments"
    END = "end"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an output; consecutive pieces of one kind are one text.

    Attributes:
        kind: what it is.
        text: of the output, or the name of a call.
        id: that the model wrote for a call; empty if its format has none.
    """

    kind: PartKind
    text: str = ""
    id: str = ""


_TEXTS = (PartKind.REASONING, PartKind.CONTENT, PartKind.ARGUMENTS)


def joined_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts with consecutive texts of one kind joined, and without empty texts."""
    found: list[tuple[Part, list[str]]] = []
    for part in parts:
        if part.kind in _TEXTS and not part.text:
            continue
        if part.kind in _TEXTS and found and found[-1][0].kind is part.kind:
            found[-1][1].append(part.text)
        else:
            found.append((part, [part.text]))
    return tuple(first if len(texts) == 1 else Part(first.kind, "".join(texts)) for first, texts in found)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an output.

    Attributes:
        name: of the tool.
        arguments: as JSON text, or as the text of a custom tool.
        id: that the model wrote for it; empty if its format has none.
        complete: the output was not cut in its arguments.
    """

    name: str
    arguments: str
    id: str = ""
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """A whole output; None for what is absent."""

    reasoning: str | None
    content: str | None
    calls: tuple[Call, ...]


def message_of(parts: Sequence[Part]) -> Message:
    """Fold the parts of a whole output."""
    texts: dict[PartKind, list[str]] = {PartKind.REASONING: [], PartKind.CONTENT: []}
    calls: list[tuple[Part, list[str]]] = []
    ended: set[int] = set()
    for part in parts:
        if part.kind is PartKind.CALL:
            calls.append((part, []))
        elif part.kind is PartKind.ARGUMENTS:
            calls[-1][1].append(part.text)
        elif part.kind is PartKind.END:
            ended.add(len(calls) - 1)
        else:
            texts[part.kind].append(part.text)
    reasoning, content = ("".join(each) if each else None for each in texts.values())
    found = (
        Call(part.text, "".join(texts), part.id, complete=place in ended) for place, (part, texts) in enumerate(calls)
    )
    return Message(reasoning, content, tuple(found))


# Ids of calls

_LETTERS: Final = string.ascii_letters + string.digits
_LAST_WORD: Final = re.compile(r"[\w.]*\Z")


def new_id(reply_id: str, choice: int, number: int) -> str:
    """Return an id for a call whose model writes none: one that templates accept in the next turn's history.

    Args:
        reply_id: id of the reply; the same reply has the same ids.
        choice: index of its choice.
        number: of the call in the choice, from 0.
    """
    digest = hashlib.sha256(f"{reply_id} {choice} {number}".encode()).digest()
    value = int.from_bytes(digest[:8], "big")
    return "".join(_LETTERS[value // len(_LETTERS) ** place % len(_LETTERS)] for place in range(ID_LENGTH))


def id_text(calls: Calls, name: str, written: str) -> str:
    """Return the id of a call whose id follows its name: with the name if only a sign stands between them."""
    if len(calls.id_separator.strip()) != 1:
        return written
    word = _LAST_WORD.search(calls.open)
    return f"{word.group() if word else ''}{name}{calls.id_separator.strip()}{written}"
