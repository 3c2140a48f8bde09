"""Command-line options generated from dataclass fields: a new field of `SamplingParams` is a new option.

Annotations decide how options are parsed: lists repeat the option, mappings are `KEY=VALUE`, records are JSON. Errors
are worded in `cli/main.py`.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.option_fields import accepted, listed
from ferrum.core.params import SamplingParams, over_recommended
from ferrum.server.server_config import ServerConfig

if TYPE_CHECKING:
    from ferrum.bench.report import Document


Command = TypeVar("Command", bound=Callable[..., None])

TYPES: Final[Mapping[str, Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "Sequence[int]": list[int],
    "Sequence[str]": list[str],
    "tuple[str, ...]": list[str],
    "Mapping[int, float]": list[str],
    "StructuredOutputs": str,
}
"""Types of options by the annotations of their fields; `| None` is ignored."""

NOT_FOR_TEXT: Final = frozenset({"n", "logprobs", "logprob_token_ids", "prompt_logprobs"})
"""Sampling fields without an option: one printed text does not show their effect."""

COMMON: Final = frozenset(
    {
        *("quantize", "threads", "max_sequence_length", "max_batch_size", "speculative"),
        *("host", "port", "api_key_file", "served_model_name"),
        *("max_tokens", "temperature", "top_p", "seed", "stop"),
        *("url", "arrivals", "rate", "clients", "requests", "prompt_tokens", "output_tokens"),
    }
)
"""Fields whose options `--help` lists first."""

OPTION: Final = inspect.Parameter.KEYWORD_ONLY

MODEL_HELP: Final = "A directory, a GGUF file, a hub id, or a name that `ferrum list` shows."

_MODELS_DIR: Final = next(field for field in fields(ModelConfig) if field.name == "models_dir")


def writable(path: Path | None) -> Path | None:
    """Return the path of a report if it can be written: an option's callback, so that it fails before measuring.

    Raises:
        ConfigError: it is a directory, or its directory is missing or read-only.
    """
    if path is not None:
        try:
            target = path if path.exists() else path.parent
            possible = not path.is_dir() and path.parent.is_dir() and os.access(target, os.W_OK)
        except OSError:  # such as a name that is too long
            possible = False
        if not possible:
            raise ConfigError(f"cannot write {path}: give a file in an existing directory", param="output")
    return path


ReportFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JSON report here.", callback=writable)]
"""`--output` of the commands that measure."""


ModelsDirectory = Annotated[str | None, typer.Option(metavar="DIR", help=_MODELS_DIR.metadata["help"])]
"""`--models-dir` of the commands that have no other option of the model."""


@contextmanager
def written(report: Document, output: Path | None) -> Iterator[None]:
    """Write a report after its table is printed, even if printing fails."""
    try:
        yield
    finally:
        if output is not None:
            report.write(output)


def sampling_fields() -> list[Field[Any]]:
    """Return the fields of `SamplingParams` for commands that print one text."""
    return [field for field in fields(SamplingParams) if field.name not in NOT_FOR_TEXT]


def model_fields() -> list[Field[Any]]:
    """Return the fields for loading a model."""
    return [field for field in fields(ModelConfig) if field.name not in ("model", "switches")]


def engine_fields() -> list[Field[Any]]:
    """Return the fields for loading and serving a model."""
    return [*model_fields(), *(field for field in fields(EngineConfig) if field.name != "model")]


def server_fields() -> list[Field[Any]]:
    """Return the fields of the HTTP server."""
    return list(fields(ServerConfig))


def chosen(option_fields: Iterable[Field[Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that were given."""
    return {field.name: given[field.name] for field in option_fields if given.get(field.name) not in (None, [])}


def checked_engine(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine options after validation, which thus happens before anything is loaded.

    Raises:
        ConfigError: an invalid value or combination.
    """
    of_model = {field.name for field in model_fields()}
    loaded = ModelConfig(model=model, **{name: value for name, value in options.items() if name in of_model})
    EngineConfig(model=loaded, **{name: value for name, value in options.items() if name not in of_model})
    return dict(options)


def with_options(
    option_fields: Iterable[Field[Any]], panel: str, defaults: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:
    """Give a command one option per field, passed as keywords; an option that is not given is None.

    Args:
        option_fields: the fields.
        panel: heading in `--help` for all but the common ones.
        defaults: for `--help`, where the command has other defaults than the fields.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        made = [_parameter(field, panel, (defaults or {}).get(field.name, field.default)) for field in option_fields]
        every = sorted([*own, *made], key=lambda each: (each.kind, each.kind is OPTION and each.name not in COMMON))
        # Typer reads a command's signature, and calls it with these names as keywords.
        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        return command

    return decorate


def option_names(field: Field[Any]) -> list[str]:
    """Return a field's option; for a boolean also its negation."""
    name = field.metadata.get("flag") or field.name.replace("_", "-")
    return [f"--{name}", f"--no-{name}"] if field.type == "bool" else [f"--{name}"]


def _short(field: Field[Any]) -> list[str]:
    """Return the short form of a field's option, if it has one."""
    return [f"-{field.metadata['short']}"] if field.metadata.get("short") else []


def _parameter(field: Field[Any], panel: str, default: Any) -> inspect.Parameter:
    kind = TYPES[str(field.type).removesuffix(" | None")]
    choices = accepted(field.metadata)
    described = typer.Option(
        "/".join(option_names(field)),
        *_short(field),
        help=_help(field.metadata["help"], choices, default),
        rich_help_panel="Common options" if field.name in COMMON else panel,
        show_default=False,  # the default is None, which stands for the one in the text
    )
    return inspect.Parameter(field.name, OPTION, default=None, annotation=Annotated[kind | None, described])


def _help(text: str, choices: Sequence[object], default: Any) -> str:
    """Return a help text with the choices and the default."""
    notes = [f"one of {listed(choices)}"] if choices else []
    if default not in (None, ()) and "default:" not in text:
        shown = {True: "on", False: "off"}[default] if isinstance(default, bool) else default
        notes.append(f"default: {shown:g}" if isinstance(shown, float) else f"default: {shown}")
    if not notes:
        return text
    text, added = text.removesuffix("."), "; ".join(notes)
    return f"{text[:-1]}; {added})." if text.endswith(")") else f"{text} ({added})."


def read_text(path: Path, option: str) -> str:
    """Return the text of a file that an option names. Raises ConfigError."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param=option) from None


def sampling_params(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
    """Return parameters from defaults and the given options.

    Raises:
        RequestError: an invalid value; `param` names the field.
    """
    values = chosen(sampling_fields(), given)
    if "logit_bias" in values:
        pairs = [_pair(each) for each in values["logit_bias"]]
        values["logit_bias"] = dict(pairs)
        if len(values["logit_bias"]) < len(pairs):
            raise RequestError("must name each token once", param="logit_bias")
    return over_recommended(defaults, values)


def _pair(text: str) -> tuple[str, float]:
    token, _, bias = text.partition("=")
    try:
        return token, float(bias)
    except ValueError:
        raise RequestError(f"must look like 42=-1.5, not {text!r}", param="logit_bias") from None


# ---- Options from a TOML file: `ferrum --config FILE COMMAND` ----


def read_options(path: Path, program: Any) -> dict[str, Any]:
    """Return a file's options as the `default_map` of a click program.

        policy = "fair"          # for every command that has the option
        [serve]                  # for this command
        port = 9000

    A name of both a command and an option, such as `quantize`, is the command if it is a table. The command line
    overrides the file.

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
