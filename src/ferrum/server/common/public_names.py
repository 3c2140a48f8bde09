"""Names for clients: a model's name and options in replies, without directories of this machine.

Logs and records on disk keep the paths as typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def public_name(text: str) -> str:
    """Return the last part of a path on this machine; any other text, such as a hub id, unchanged."""
    try:
        path = Path(text).expanduser()
        if not (text and (path.is_absolute() or path.exists())):
            return text
    except (OSError, RuntimeError, ValueError):  # too long for a path, or the home of an unknown user
        return text
    name = path.absolute().name  # not resolved: links of the hub's cache lead to hashes
    return path.resolve().name if name in ("", "..") else name


def without_directories(value: Any) -> Any:
    """Return options with `public_name` of every text, also of the path in NAME=PATH."""
    if isinstance(value, str):
        name, equals, path = value.partition("=")  # an adapter as NAME=PATH
        return f"{name}={public_name(path)}" if equals else public_name(value)
    if isinstance(value, Mapping):
        return {name: without_directories(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_directories(each) for each in value]
    return value
