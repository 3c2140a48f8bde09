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
        general: what is said of all commands; those that have no such option pass it over.
    """
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    options = _options(command)
    tables = {name: value for name, value in own.items() if name in commands and isinstance(value, dict)}
    for name, value in own.items():
        if name not in tables and not any(name in _options(each) for each in (command, *_below(command))):
            wrong = f"is a command: must be a table, not {value!r}" if name in commands else "there is no such option"
            raise ConfigError(wrong, param=name)
    if commands:
        for_all = {**general, **{name: value for name, value in own.items() if name not in tables}}
        return {name: _defaults(each, tables.get(name, {}), for_all) for name, each in commands.items()}
    said = {name: value for name, value in {**general, **own}.items() if name in options}
    return {options[name].name: _checked(name, value, options[name]) for name, value in said.items()}


def _options(command: Any) -> dict[str, Any]:
    """A command's parameters by what a file may call them: their long names with hyphens or underscores."""
    named: dict[str, Any] = {}
    for parameter in command.params:
        for option in parameter.opts:
            name = option.removeprefix("--")
            named |= {name: parameter, name.replace("-", "_"): parameter}
    return named


def _below(command: Any) -> list[Any]:
    """All commands of a group."""
    return [each for sub in getattr(command, "commands", {}).values() for each in (sub, *_below(sub))]


def _checked(name: str, value: Any, parameter: Any) -> Any:
    """The value, where it is of a kind that click would not misread."""
    several = bool(getattr(parameter, "multiple", False))
    if getattr(parameter, "is_flag", False):
        kind, fits = "true or false", isinstance(value, bool)
    else:
        kind, fits = "a list" if several else "one value", isinstance(value, list) is several
        fits = fits and not isinstance(value, bool | dict)
    if not fits:
        raise ConfigError(f"must be {kind}, not {value!r}", param=name)
    return value
