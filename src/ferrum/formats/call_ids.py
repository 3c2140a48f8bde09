"""Ids of tool calls: those that models write, and new ones that templates accept."""

from __future__ import annotations

import hashlib
import string
from typing import Final

from ferrum.core.output_format import Calls
from ferrum.formats.cuts import tags
from ferrum.text.tool_calls import ID_LENGTH

_LETTERS: Final = string.ascii_letters + string.digits


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


def written_id(calls: Calls, name: str, number: int) -> str:
    """Return the id as a part of the output: Kimi's models write `functions.NAME:NUMBER`, which is the call's id."""
    prefix = calls.open[tags(calls.open)[-1].end() :] if tags(calls.open) else ""
    return f"{prefix}{name}{calls.id_separator}{number}"
