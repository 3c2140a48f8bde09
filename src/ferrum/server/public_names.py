"""Names for clients: a model's name and options in replies, without directories of this machine.

Logs and records on disk keep the paths as typed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def public_name(text: str) -> str:
    """Return the last part of a path on this machine; any other text, such as a hub id, unchanged."""
    try:
        path = os.path.expanduser(text)
        if os.path.isabs(path) or os.path.exists(path):
            return os.path.basename(os.path.abspath(path)) or text
    except (OSError, ValueError):  # such as a text that is too long for a path
        pass
    return text


def without_directories(value: Any) -> Any:
    """Return options with `public_name` of every text."""
    if isinstance(value, str):
        return public_name(value)
    if isinstance(value, Mapping):
        return {name: without_directories(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_directories(each) for each in value]
    return value
