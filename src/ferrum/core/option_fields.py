"""Option records: dataclasses whose fields tell in their metadata what they do and which values they take.

Command lines and documents are made of the same metadata (`cli/options.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from ferrum.core.errors import ConfigError
from ferrum.core.span_checks import is_one_of
from ferrum.core.values import is_huge, shown


def about(
    help: str,
    choices: tuple[str | int | None, ...] | None = None,
    least: float | None = None,
    most: int | None = None,
    flag: str | None = None,
    needs: str | None = None,
) -> dict[str, Any]:
    """The metadata of an option: what it does, its values or bounds; a whole `least` wants ints.

    Args:
        flag: its name on command lines, where that is not the field's.
        needs: the field without which it would have no effect.
    """
    return {"help": help, "choices": choices, "least": least, "most": most, "flag": flag, "needs": needs}


def help_of(record: type, name: str) -> str:
    """What the option does, for people."""
    text: str = next(item.metadata["help"] for item in fields(record) if item.name == name)
    return text


def listed(choices: Iterable[object]) -> str:
    """The values to choose from, for people: None is what an option is that was not given."""
    return ", ".join(str(each) for each in choices if each is not None)


def check_options(record: Any) -> None:
    """Refuse values that the metadata of a record's fields exclude.

    Raises:
        ConfigError: `param` names the field.
    """
    for item in fields(record):
        value, choices, least = getattr(record, item.name), item.metadata["choices"], item.metadata["least"]
        # As a variable that was never set: it would mean every address, or this directory.
        if isinstance(value, str) and not value:
            raise ConfigError("must not be empty", param=item.name)
        if item.type == "bool" and not isinstance(value, bool):
            raise ConfigError(f"must be true or false, not {shown(value)}", param=item.name)
        if choices is not None and not is_one_of(value, choices):
            raise ConfigError(f"must be one of {listed(choices)}, not {shown(value)}", param=item.name)
        if item.type in ("str", "str | None") and value is not None and not isinstance(value, str):
            raise ConfigError(f"must be text, not {shown(value)}", param=item.name)
        if least is not None and (value is not None or "None" not in str(item.type)):
            check_number(item.name, value, least, item.metadata["most"])
        needs = item.metadata["needs"]
        if needs is not None and value != item.default and getattr(record, needs) is None:
            raise ConfigError(f"has no effect without {needs}", param=item.name)


def as_text(value: Any) -> Any:
    """A path as options, records and other processes have it; anything else as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def path_of(name: str, text: str) -> Path:
    """The path that an option names; a `~` at its beginning is a home.

    Raises:
        ConfigError: whose home is not known; `param` is `name`.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{shown(text)} is in the home of nobody who is known here", param=name) from None


def check_number(name: str, value: object, least: float, most: int | None = None) -> None:
    """Refuse what is no number, less than `least` or more than `most`; a whole `least` wants an int.

    Raises:
        ConfigError: `param` is `name`.
    """
    whole = isinstance(least, int)
    if not isinstance(value, int if whole else int | float) or isinstance(value, bool):
        raise ConfigError(f"must be {'an integer' if whole else 'a number'}, not {shown(value)}", param=name)
    if value == math.inf:  # which JSON cannot say, and options are logged and reported
        raise ConfigError("must be finite", param=name)
    if not value >= least:
        raise ConfigError(f"must be at least {least}, not {shown(value)}", param=name)
    if most is not None and value > most:
        raise ConfigError(f"must be at most {most}, not {shown(value)}", param=name)
    if is_huge(value):
        raise ConfigError(f"must be a number that can be written, not {shown(value)}", param=name)
