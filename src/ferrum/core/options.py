"""Option records: dataclasses whose fields tell in their metadata what they do and which values they take.

Command lines and documents are made of the same metadata (`cli/options.py`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ferrum.core.errors import ConfigError


def about(
    help: str,
    choices: tuple[str | int | None, ...] | None = None,
    least: float | None = None,
    flag: str | None = None,
) -> dict[str, Any]:
    """The metadata of an option: what it does, which values it takes, and the least one; a whole `least` wants ints.

    Args:
        flag: its name on command lines, where that is not the field's.
    """
    return {"help": help, "choices": choices, "least": least, "flag": flag}


def help_of(record: type, name: str) -> str:
    """What the option does, for people."""
    text: str = next(item.metadata["help"] for item in fields(record) if item.name == name)
    return text


def check_options(record: Any) -> None:
    """Refuse values that the metadata of a record's fields exclude.

    Raises:
        ConfigError: `param` names the field.
    """
    for item in fields(record):
        value, choices, least = getattr(record, item.name), item.metadata["choices"], item.metadata["least"]
        if item.type == "bool" and not isinstance(value, bool):
            raise ConfigError(f"must be true or false, not {value!r}", param=item.name)
        if choices is not None and value not in choices:
            raise ConfigError(f"must be one of {', '.join(map(str, choices))}, not {value!r}", param=item.name)
        if least is not None and value is not None:
            kind = int | float if isinstance(least, float) else int
            if not isinstance(value, kind) or isinstance(value, bool):
                name = "a number" if isinstance(least, float) else "an integer"
                raise ConfigError(f"must be {name}, not {value!r}", param=item.name)
            if not value >= least:
                raise ConfigError(f"must be at least {least}, not {value}", param=item.name)
