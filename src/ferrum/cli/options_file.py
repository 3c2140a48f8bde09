"""Options from a TOML file: `ferrum --config FILE COMMAND`.

    policy = "fair"          # for every command that has the option
    [serve]                  # for this command
    port = 9000

A name of both a command and an option, such as `quantize`, is the command if it is a table. The command line overrides
the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ferrum.core.errors import ConfigError


def read_options(path: Path, program: Any) -> dict[str, Any]:
    """Return a file's options as the `default_map` of a click program.

    Raises:
        ConfigError: the file is unreadable or no TOML, names an unknown option, or has a value of the wrong kind.
    """
    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
        return _defaults(program, given, {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", param="config") from None


def _defaults(command: Any, own: Mapping[str, Any], general: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a command's options, or for a group those of its commands by name.

    Args:
        command: the command or group.
        own: options for it.
        general: options for all commands, by long names; a command ignores those it does not have.

    Raises:
        ValueError: an unknown option or a value of the wrong kind.
    """
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    options = _options(command)
    tables = {name: value for name, value in own.items() if name in commands and isinstance(value, dict)}
    values: dict[str, Any] = {}
    known = {name for each in _below(command) or [command] for name in _options(each)}
    for name, value in own.items():
        if name in tables:
            continue
        if _long(name) not in known:
            if name in commands:
                raise ValueError(f"{name!r} is a command and must be a table, not {value!r}")
            close = get_close_matches(_long(name), known, n=1)
            raise ValueError(f"unknown option {name!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
        if _long(name) in values:
            raise ValueError(f"option {name!r} appears twice, with hyphens and with underscores")
        values[_long(name)] = value
    values = {**general, **values}
    if commands:
        return {name: _defaults(each, tables.get(name, {}), values) for name, each in commands.items()}
    return {options[name].name: _checked(name, values[name], options[name]) for name in values if name in options}


def _long(name: str) -> str:
    """Return an option's name with hyphens; files may use underscores."""
    return name.replace("_", "-")


def _options(command: Any) -> dict[str, Any]:
    """Return a command's parameters by their long names."""
    return {_long(option.removeprefix("--")): parameter for parameter in command.params for option in parameter.opts}


def _below(command: Any) -> list[Any]:
    """Return all commands of a group."""
    return [each for sub in getattr(command, "commands", {}).values() for each in (sub, *_below(sub))]


def _checked(name: str, value: Any, parameter: Any) -> Any:
    """Return a value if it has a kind that click reads correctly."""
    several = bool(getattr(parameter, "multiple", False))
    if getattr(parameter, "is_flag", False):
        kind, fits = "true or false", isinstance(value, bool)
    else:
        kind, fits = "a list of values" if several else "one value", isinstance(value, list) is several
        fits = fits and not any(isinstance(each, bool | dict | list) for each in (value if several else [value]))
    if not fits:
        raise ValueError(f"option {name!r} must be {kind}, not {value!r}")
    return value
