"""Ids of tool calls: those that models write, and new ones that templates accept."""

from __future__ import annotations

import secrets
import string
from typing import Final

from ferrum.core.output_format import Calls, IdPlace
from ferrum.formats.cuts import tags
from ferrum.text.tool_calls import ID_LENGTH

_LETTERS: Final = string.ascii_letters + string.digits


def new_id(calls: Calls, name: str, number: int) -> str:
    """Return an id for a call of a reply, so that the template renders it in the next turn's history.

    Args:
        calls: the format.
        name: of the called tool.
        number: of the call in the conversation, from 0.
    """
    if _is_of_name(calls):
        return written_id(calls, name, number)
    return "".join(secrets.choice(_LETTERS) for _ in range(ID_LENGTH))


def written_id(calls: Calls, name: str, number: int) -> str:
    """Return the id as a part of the output: Kimi's models write `functions.NAME:NUMBER`, which is the call's id."""
    prefix = calls.open[tags(calls.open)[-1].end() :] if tags(calls.open) else ""
    return f"{prefix}{name}{calls.id_separator}{number}"


def _is_of_name(calls: Calls) -> bool:
    return calls.id_place is IdPlace.AFTER and not tags(calls.id_separator)
