"""Metadata and validation of option records: dataclasses whose fields describe themselves.

`cli/options.py` and the documents are generated from the same metadata. The options are in `core/config.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
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
    short: str | None = None,
) -> dict[str, Any]:
    """Return the metadata of an option.

    Args:
        help: what the option does, with its unit.
        choices: the valid values.
        least, most: bounds; an integer `least` means that the option is an integer.
        flag: name on command lines, if it differs from the field's.
        needs: name of the field without which this one has no effect.
        short: another name on command lines, after one dash.
    """
    return {
        "help": help,
        "choices": choices,
        "least": least,
        "most": most,
        "flag": flag,
        "needs": needs,
        "short": short,
    }


def option(default: Any, help: str, *arguments: Any, **metadata: Any) -> Any:
    """Return a dataclass field with this default and the metadata of `about`."""
    return field(default=default, metadata=about(help, *arguments, **metadata))


def listed(choices: Iterable[object]) -> str:
    """Return the choices as text; None, which stands for an option that is not set, is left out."""
    return ", ".join(str(each) for each in choices if each is not None)


def accepted(metadata: Mapping[str, Any]) -> list[object]:
    """Return the choices of an option, without None."""
    return [each for each in metadata.get("choices") or () if each is not None]


def check_options(record: Any) -> None:
    """Refuse values that a record's field metadata exclude.

    Raises:
        ConfigError: an invalid value; `param` names the field.
    """
    for item in fields(record):
        value, choices, least = getattr(record, item.name), item.metadata["choices"], item.metadata["least"]
        # An unset shell variable expands to "", which would mean every address or the current directory.
        if isinstance(value, str) and not value:
            raise ConfigError("must not be empty", param=item.name)
        if item.type == "bool":
            check_flag(item.name, value)
        if choices is not None and not is_one_of(value, choices):
            raise ConfigError(f"must be one of {listed(choices)}, not {shown(value)}", param=item.name)
        if item.type in ("str", "str | None") and value is not None and not isinstance(value, str):
            raise ConfigError(f"must be text, not {shown(value)}", param=item.name)
        if least is not None and (value is not None or "None" not in str(item.type)):
            check_number(item.name, value, least, item.metadata["most"])
        needs = item.metadata["needs"]
        if needs is not None and value != item.default and getattr(record, needs) is None:
            raise ConfigError(f"requires {needs}", param=item.name)


def as_text(value: Any) -> Any:
    """Return a path as text, for options and records; any other value as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def path_of(name: str, text: str) -> Path:
    """Return the path that an option names, with a leading `~` expanded.

    Raises:
        ConfigError: the home directory is unknown; `param` is `name`.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"the home directory in {shown(text)} is unknown", param=name) from None


def check_flag(name: str, value: object) -> None:
    """Refuse a value that is no truth value. Raises ConfigError; `param` is `name`."""
    if not isinstance(value, bool):
        raise ConfigError(f"must be true or false, not {shown(value)}", param=name)


def check_number(name: str, value: object, least: float, most: int | None = None) -> None:
    """Refuse a value that is no number or out of bounds; an integer `least` asks for an integer.

    Raises:
        ConfigError: `param` is `name`.
    """
    whole = isinstance(least, int)
    if not isinstance(value, int if whole else int | float) or isinstance(value, bool):
        raise ConfigError(f"must be {'an integer' if whole else 'a number'}, not {shown(value)}", param=name)
    if value == math.inf:  # JSON has no infinity, and options are logged and reported as JSON
        raise ConfigError("must be finite", param=name)
    if not value >= least:
        raise ConfigError(f"must be at least {least}, not {shown(value)}", param=name)
    if most is not None and value > most:
        raise ConfigError(f"must be at most {most}, not {shown(value)}", param=name)
    if is_huge(value):
        raise ConfigError(f"must be a number of fewer digits, not {shown(value)}", param=name)
