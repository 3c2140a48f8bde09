"""Find the `OutputFormat` of a model: chosen, from its tokenizer, by analysis of its chat template, or hand-written.

    chosen (--tool-format)  >  response_template  >  analysis  >  hand-written datum  >  none: tools are refused

Where the analysis finds a format whose first marker a hand-written datum has as well, the markers are those found, with
their white space, and the datum adds what no template shows, such as aliases: see `analysis`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final

from ferrum.core.errors import ConfigError, FerrumError, RequestError
from ferrum.core.logging import warn_once
from ferrum.core.output_format import OutputFormat
from ferrum.formats.analysis import TemplateFacts, analyse
from ferrum.formats.known_formats import KNOWN
from ferrum.formats.response_template import format_of_response_template
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.model_files import ModelFiles, read_json_object
from ferrum.text.untrusted_template import UntrustedTemplate, bounded_job, run_bounded


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
    facts = facts_of(template)
    stored = _from_tokenizer(files) if files is not None else None
    if stored is None or stored.calls is None:
        return FoundFormat(facts.format, facts.reason)
    if not facts.renders_tools:
        return FoundFormat(replace(stored, calls=None), facts.reason)
    return FoundFormat(_with_spaces(stored, facts.format))


def _with_spaces(stored: OutputFormat, shown: OutputFormat | None) -> OutputFormat:
    """Return the format of a response template, with the white space that the chat template writes.

    A response template describes markers only, and accepts any white space next to them.
    """
    if shown is None or shown.calls is None or _markers(stored) != _markers(shown):
        return stored
    return replace(shown, name=stored.name, source=stored.source)


def _markers(format: OutputFormat) -> tuple[str, ...]:
    """Return what the formats of two sources must share to be the same one."""
    calls, reasoning = format.calls, format.reasoning
    assert calls is not None
    texts = (
        *(calls.section_open + calls.open, calls.after_name, calls.close + calls.section_close),
        *(calls.name_key, calls.arguments_key, calls.arguments.key_open),
        *((reasoning.open, reasoning.close) if reasoning is not None else ()),
    )
    return calls.style.value, calls.arguments.style.value, *("".join(text.split()) for text in texts)


def _from_tokenizer(files: ModelFiles) -> OutputFormat | None:
    stored = (read_json_object(files, "tokenizer_config.json") or {}).get("response_template")
    if stored is None:
        return None
    try:
        return format_of_response_template(stored)
    except RequestError as error:
        warn_once(f"ignoring response_template of {files.where('tokenizer_config.json')}: {error}")
        return None


def prompt_reasoning(template: ChatTemplate) -> tuple[str, ...]:
    """Return which of `enable_thinking`, `thinking` and `reasoning_effort` change the prompt of a template."""
    return facts_of(template).variables


def opens_thought(prompt: str, format: OutputFormat, continued: str | None = None) -> bool:
    """Return whether a prompt ends within reasoning, so that the output continues it.

    Args:
        prompt: as the template renders it.
        format: of the model.
        continued: the text of the final message, if `continue_final_message` is set.
    """
    if format.reasoning is None:
        return False
    open_, close = format.reasoning.open.strip(), format.reasoning.close.strip()
    begun, last = _before_and_after(prompt, continued)
    if open_ in last or close in last:
        return last.rfind(open_) > last.rfind(close)
    return begun.rstrip().endswith(open_)


def closes_thought(prompt: str, format: OutputFormat, continued: str | None = None) -> bool:
    """Return whether a prompt has ended the reasoning, so that the output has none; arguments as `opens_thought`.

    Templates write an empty reasoning where a client switches it off.
    """
    if format.reasoning is None:
        return False
    close = format.reasoning.close.strip()
    begun, last = _before_and_after(prompt, continued)
    return not opens_thought(prompt, format, continued) and (close in last or begun.rstrip().endswith(close))


def _before_and_after(prompt: str, continued: str | None) -> tuple[str, str]:
    """Return a prompt up to the text that the output continues, and from there on."""
    place = -1 if continued is None else prompt.rfind(continued.strip())
    return (prompt, "") if place < 0 else (prompt[:place], prompt[place:])


# Facts about templates: kept, and found in a bounded process for those of requests

MAX_KEPT: Final = 64
"""Templates whose facts are kept: those of a server's models, and the last ones of requests."""

_kept: OrderedDict[str, TemplateFacts] = OrderedDict()
_lock = Lock()


def facts_of(template: ChatTemplate) -> TemplateFacts:
    """Return the facts about a template; they are found at the first call, in less than 0.3 s for known templates.

    Raises:
        FerrumError: the template has no source for requests with tools.
    """
    untrusted = isinstance(template, UntrustedTemplate)
    key = _key(template)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    facts = _bounded(template) if untrusted else _trusted(template)
    with _lock:
        _kept[key] = facts
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return facts


def _key(template: ChatTemplate) -> str:
    """Return a hash of what the facts depend on."""
    parts = [template.source_for_tools, template.special_tokens]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _trusted(template: ChatTemplate) -> TemplateFacts:
    try:
        return analyse(template)
    except FerrumError as error:
        return TemplateFacts(format=None, reason=str(error))


def _bounded(template: ChatTemplate) -> TemplateFacts:
    """Analyse in one child process: it renders all probes and returns the facts as JSON."""
    job = {"source": template.source_for_tools, "special_tokens": dict(template.special_tokens)}
    try:
        return TemplateFacts.from_dict(run_bounded(__name__, job))
    except RequestError as error:
        return TemplateFacts(format=None, reason=f"the chat template {error.message}")


def child() -> None:
    """Analyse the template on standard input; write the facts to standard output."""
    job = bounded_job()
    facts = _trusted(ChatTemplate(job["source"], job["special_tokens"]))
    json.dump(facts.to_dict(), sys.stdout)


# The format that the option `tool_format` names

MAX_FILE: Final = 1 << 20
"""Maximum bytes of a file of an output format."""


def chosen_format(chosen: str) -> OutputFormat:
    """Return the format of a name or of a JSON file. Raises ConfigError, about `tool_format`, for anything else."""
    if chosen in KNOWN:
        return KNOWN[chosen]
    path = Path(chosen).expanduser()
    try:
        if not path.is_file():
            names = ", ".join(sorted(KNOWN))
            raise ConfigError(f"{chosen!r} is neither a file nor a format: use one of {names}", param="tool_format")
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"{chosen} has more than {MAX_FILE} bytes: give a smaller file", param="tool_format")
        found = replace(OutputFormat.from_json(path.read_bytes()), source="file")
    except ConfigError:
        raise
    except (OSError, ValueError, RequestError) as error:
        raise ConfigError(f"cannot use {chosen}: {error}", param="tool_format") from error
    if found.calls is None and found.reasoning is None:
        raise ConfigError(f"{chosen} has neither reasoning nor calls: add one of them", param="tool_format")
    return found
