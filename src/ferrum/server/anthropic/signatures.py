"""Signatures of reasoning: clients send them back with it. They carry reasoning that a client does not want to see."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

_PREFIX: Final = "ferrum."
"""Nothing is signed: the reasoning is the model's text."""


def signature_of(hidden: str = "") -> str:
    """Return the signature of a block of reasoning; `hidden` is its text if the block has none."""
    return _PREFIX + b64encode(hidden.encode()).decode()


def hidden_in(signature: str | None) -> str:
    """Return the reasoning that a signature carries; empty if it carries none or is another server's."""
    if signature is None or not signature.startswith(_PREFIX):
        return ""
    try:
        return b64decode(signature.removeprefix(_PREFIX), validate=True).decode()
    except ValueError:
        return ""
