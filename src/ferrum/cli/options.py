"""Command-line options made from dataclass fields: a new field of `SamplingParams` is a new option, with its help.

A field's annotation decides how its option is parsed; lists are given by repeating the option, mappings as `KEY=VALUE`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.option_fields import listed
from ferrum.core.params import SamplingParams
from ferrum.server.server_config import ServerConfig
from ferrum.text.generation_config import over_recommended

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
    "Mapping[int, float]": list[str],
}
"""How the annotations of option fields are parsed; an optional one like its other half."""

NOT_FOR_TEXT: Final = frozenset({"n", "logprobs", "prompt_logprobs"})
"""Fields whose effect is not visible in one printed text: they have no option."""


def writable(path: Path | None) -> Path | None:
    """The path of a report, as an option's callback: what cannot be written is to be known before it is measured.

    Raises:
        ConfigError: it is a directory, or in none that can be written.
    """
    if path is None:
        return None
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a directory", param="output")
        if not path.parent.is_dir():
            raise ConfigError(f"there is no directory {path.parent}", param="output")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigError(f"{path} cannot be written", param="output")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", param="output") from None
    return path


ReportFile = Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.", callback=writable)]
"""`--output` of the commands that measure."""


@contextmanager
def written(report: Document, output: Path | None) -> Iterator[None]:
    """Write a report, if asked to, behind its table: what was measured is not lost with the reader of that."""
    try:
        yield
    finally:
        if output is not None:
            report.write(output)


def sampling_fields() -> list[Field[Any]]:
    """The fields of `SamplingParams` that a command printing one text offers."""
    return [field for field in fields(SamplingParams) if field.name not in NOT_FOR_TEXT]


def model_fields() -> list[Field[Any]]:
    """The fields that say how a model is loaded."""
    return [field for field in fields(ModelConfig) if field.name not in ("model", "switches")]


def engine_fields() -> list[Field[Any]]:
    """The fields that say how a model is loaded and served."""
    return [*model_fields(), *(field for field in fields(EngineConfig) if field.name != "model")]


def server_fields() -> list[Field[Any]]:
    """The fields that say how requests come in over HTTP."""
    return list(fields(ServerConfig))


def chosen(option_fields: Iterable[Field[Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the fields' options that were given."""
    return {field.name: given[field.name] for field in option_fields if given.get(field.name) not in (None, [])}


def with_options(option_fields: Iterable[Field[Any]], panel: str) -> Callable[[Command], Command]:
    """Give a command one option for each field. The command takes them as keywords, None for those not given."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        made = [_parameter(field, panel) for field in option_fields]
        # Typer reads a command's signature, and calls it with these names as keywords.
        command.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        return command

    return decorate


def option_names(field: Field[Any]) -> list[str]:
    """A field's option, and for one that is true or false the option that says no."""
    name = field.metadata.get("flag") or field.name.replace("_", "-")
    return [f"--{name}", f"--no-{name}"] if field.type == "bool" else [f"--{name}"]


def _parameter(field: Field[Any], panel: str) -> inspect.Parameter:
    kind = TYPES[str(field.type).removesuffix(" | None")]
    choices = field.metadata.get("choices")
    text = field.metadata["help"] + (f" One of {listed(choices)}." if choices else "")
    described = typer.Option("/".join(option_names(field)), help=text, rich_help_panel=panel, show_default=False)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, described]
    )


def sampling_params(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
    """Parameters from defaults and the options that were given.

    Raises:
        RequestError: a value that makes no sense; `param` names the option.
    """
    values = chosen(sampling_fields(), given)
    if "logit_bias" in values:
        pairs = [_pair(each) for each in values["logit_bias"]]
        values["logit_bias"] = dict(pairs)
        if len(values["logit_bias"]) < len(pairs):
            raise RequestError("a token has two", param="logit_bias")
    return over_recommended(defaults, values)


def _pair(text: str) -> tuple[str, float]:
    token, _, bias = text.partition("=")
    try:
        return token, float(bias)
    except ValueError:
        raise RequestError(f"must look like 42=-1.5, not {text!r}", param="logit_bias") from None
