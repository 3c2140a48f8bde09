"""Find the `OutputFormat` of a model: chosen, from its tokenizer, by analysis of its chat template, or hand-written.

    chosen (--tool-format)  >  response_template  >  analysis  >  hand-written datum  >  none: tools are refused

A hand-written datum comes before the analysis where it says more than a template can: see `_by_template`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.logging import warn_once
from ferrum.core.output_format import OutputFormat
from ferrum.formats.analysis import analyse
from ferrum.formats.response_template import format_of_response_template
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.model_files import ModelFiles, read_json_object

MAX_FILE = 1 << 20
"""Maximum bytes of a file of an output format."""


@dataclass(frozen=True, slots=True)
class FoundFormat:
    """The output format of a model.

    Attributes:
        format: None if there is none; without `format.calls`, tools are refused.
        reason: why tools are refused, as a sentence for a user; empty if they are not.
    """

    format: OutputFormat | None
    reason: str = ""


def find_format(template: ChatTemplate, files: ModelFiles | None, chosen: str | None) -> FoundFormat:
    """Return the output format of a model.

    Args:
        template: the one that renders the prompts, of the checkpoint or of a request.
        files: of the model; None if its template is not that of its checkpoint.
        chosen: the option `tool_format`: a name or a file.

    Raises:
        ConfigError: `chosen` is neither the name of a format nor a file of one.
        CheckpointError: a file of the model is damaged.
    """
    if chosen is not None:
        return FoundFormat(chosen_format(chosen))
    if files is not None and (found := _from_tokenizer(files)) is not None and found.calls is not None:
        return FoundFormat(found)
    return _by_template(template)


def chosen_format(chosen: str) -> OutputFormat:
    """Return the format of a name or file. Raises ConfigError, about `tool_format`, for anything else."""
    from ferrum.formats.known_formats import KNOWN

    if chosen in KNOWN:
        return KNOWN[chosen]
    names = ", ".join(sorted(KNOWN))
    path = Path(chosen).expanduser()
    if not path.is_file():
        raise ConfigError(f"{chosen!r} is no file and no format: use one of {names}", param="tool_format")
    try:
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"{chosen} has more than {MAX_FILE} bytes", param="tool_format")
        return replace(OutputFormat.from_json(path.read_bytes()), source="file")
    except (OSError, RequestError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot use {chosen}: {error}", param="tool_format") from error


def _from_tokenizer(files: ModelFiles) -> OutputFormat | None:
    stored = (read_json_object(files, "tokenizer_config.json") or {}).get("response_template")
    if stored is None:
        return None
    try:
        return format_of_response_template(stored)
    except RequestError as error:
        warn_once(f"ignoring response_template of {files.where('tokenizer_config.json')}: {error}")
        return None


def _by_template(template: ChatTemplate) -> FoundFormat:
    from ferrum.formats.known_formats import known_by_template

    found, reason = analyse(template)
    if found is not None and found.calls is not None:
        return FoundFormat(found)
    known = known_by_template(template.source_for_tools)
    return FoundFormat(known) if known is not None else FoundFormat(found, reason)
