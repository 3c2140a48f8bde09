"""Find the `OutputFormat` of a model: chosen, from its tokenizer, by analysis of its chat template, or hand-written.

    chosen (--tool-format)  >  response_template  >  analysis  >  hand-written datum  >  none: tools are refused

Where the analysis finds a format whose first marker a hand-written datum has as well, the markers are those found, with
their white space, and the datum adds what no template shows, such as aliases: see `analysis`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrum.core.errors import RequestError
from ferrum.core.logging import warn_once
from ferrum.core.output_format import OutputFormat
from ferrum.formats.chosen import chosen_format
from ferrum.formats.facts import facts_of
from ferrum.formats.response_template import format_of_response_template
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.model_files import ModelFiles, read_json_object


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
