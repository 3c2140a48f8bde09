"""Options from a TOML file: `ferrum --config FILE COMMAND`.

    policy = "fair"          # for every command that has the option
    [serve]                  # for this one
    port = 9000

A name that is a command's and an option's, such as `quantize`, is the command's with a table and else the option's.

What the command line says goes before it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ferrum.core.errors import ConfigError


def read_options(path: Path, program: Any) -> dict[str, Any]:
    """What a file says, as the `default_map` of a click program.

    Raises:
        ConfigError: the file cannot be read or is no TOML: `param` is `config`. Or it names what no command has, or
            gives it what it cannot have: `param` names that.
    """
    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", param="config") from None
    return _defaults(program, given, {})


def _defaults(command: Any, own: Mapping[str, Any], general: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a command's options, or those of a group's commands by their names.

    Args:
        own: what is said of it.
        general: what is said of all commands, by long names; those that have no such option pass it over.
    """
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    options = _options(command)
    tables = {name: value for name, value in own.items() if name in commands and isinstance(value, dict)}
    said: dict[str, Any] = {}
    for name, value in own.items():
        if name in tables:
            continue
        if not any(_long(name) in _options(each) for each in _below(command) or [command]):
            wrong = f"is a command: must be a table, not {value!r}" if name in commands else "there is no such option"
            raise ConfigError(wrong, param=name)
        if _long(name) in said:
            raise ConfigError("is said twice, with hyphens and with underscores", param=name)
        said[_long(name)] = value
    said = {**general, **said}
    if commands:
        return {name: _defaults(each, tables.get(name, {}), said) for name, each in commands.items()}
    return {options[name].name: _checked(name, said[name], options[name]) for name in said if name in options}


def _long(name: str) -> str:
    """A long name as command lines have it; a file may write it with underscores."""
    return name.replace("_", "-")


def _options(command: Any) -> dict[str, Any]:
    """A command's parameters by their long names."""
    return {_long(option.removeprefix("--")): parameter for parameter in command.params for option in parameter.opts}


def _below(command: Any) -> list[Any]:
    """All commands of a group."""
    return [each for sub in getattr(command, "commands", {}).values() for each in (sub, *_below(sub))]


def _checked(name: str, value: Any, parameter: Any) -> Any:
    """The value, where it is of a kind that click would not misread."""
    several = bool(getattr(parameter, "multiple", False))
    if getattr(parameter, "is_flag", False):
        kind, fits = "true or false", isinstance(value, bool)
    else:
        kind, fits = "a list of values" if several else "one value", isinstance(value, list) is several
        fits = fits and not any(isinstance(each, bool | dict | list) for each in (value if several else [value]))
    if not fits:
        raise ConfigError(f"must be {kind}, not {value!r}", param=name)
    return value
