"""Formats of outputs that were written by hand, as data, and the texts by which a chat template shows that it has one.

How formats are found is in `find`; nothing here reads a template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ferrum.core.output_format import (
    Arguments,
    ArgumentStyle,
    Calls,
    CallStyle,
    Header,
    IdPlace,
    OutputFormat,
    Reasoning,
)

_THINK: Final = Reasoning(open="<think>", close="</think>")
_THINK_LINES: Final = Reasoning(open="<think>\n", close="\n</think>\n\n")
_DSML: Final = "｜DSML｜"  # noqa: RUF001 - DeepSeek's tokens contain fullwidth bars


def _format(
    name: str,
    calls: Calls,
    reasoning: Reasoning | None = None,
    *,
    content: tuple[str, ...] = (),
    content_close: str = "",
    ignored: tuple[str, ...] = (),
    prefix: str = "",
    header: Header | None = None,
) -> OutputFormat:
    """Return a format of this module. `content` are the texts that begin content, that of the template first."""
    return OutputFormat(
        name=name,
        source="known",
        reasoning=reasoning,
        calls=calls,
        content_open=content[0] if content else "",
        content_aliases=content[1:],
        content_close=content_close,
        ignored=ignored,
        prefix=prefix,
        header=header,
    )


def _objects(
    section_open: str, section_close: str, extra_keys: tuple[str, ...] = (), aliases: tuple[str, ...] = ()
) -> Calls:
    """Return calls as a JSON list of objects."""
    return Calls(
        section_open=section_open,
        section_close=section_close,
        between=", ",
        extra_keys=extra_keys,
        aliases=aliases,
    )


_HERMES: Final = Calls(open="<tool_call>\n", close="\n</tool_call>", between="\n")
_XML_ARGUMENTS: Final = Arguments(
    style=ArgumentStyle.TAGGED, key_open="<parameter=", key_close=">\n", value_close="\n</parameter>\n"
)
_QWEN_XML: Final = Calls(
    style=CallStyle.NAMED,
    open="<tool_call>\n<function=",
    aliases=("<function=",),
    after_name=">\n",
    close="</function>\n</tool_call>",
    between="\n",
    arguments=_XML_ARGUMENTS,
)
_SEED: Final = Calls(
    style=CallStyle.NAMED,
    open="<seed:tool_call>\n<function=",
    after_name=">\n",
    close="</function>\n</seed:tool_call>",
    between="\n",
    arguments=Arguments(
        style=ArgumentStyle.TAGGED, key_open="<parameter=", key_close=">", value_close="</parameter>\n"
    ),
)
_MINICPM: Final = Calls(
    style=CallStyle.NAMED,
    open='<function name="',
    after_name='">',
    close="</function>",
    between="\n",
    arguments=Arguments(
        style=ArgumentStyle.TAGGED,
        key_open='<param name="',
        key_close='">',
        value_close="</param>",
        raw_open="<![CDATA[",
        raw_close="]]>",
    ),
)


def _glm(line: str) -> Calls:
    """Return GLM's calls, with `line` after the name and around the tags of arguments."""
    return Calls(
        style=CallStyle.NAMED,
        open="<tool_call>",
        after_name=line,
        close="</tool_call>",
        between=line,
        arguments=Arguments(
            style=ArgumentStyle.TAGGED,
            key_open="<arg_key>",
            key_close=f"</arg_key>{line}",
            value_open="<arg_value>",
            value_close=f"</arg_value>{line}",
        ),
    )


def _dsml(section: str, empty: str = "") -> Calls:
    """Return calls in DeepSeek's markup; V3.2 and V4 name the section differently."""
    other = {"function_calls": "tool_calls", "tool_calls": "function_calls"}[section]
    return Calls(
        section_open=f"\n\n<{_DSML}{section}>\n",
        section_close=f"</{_DSML}{section}>",
        aliases=(f"<{_DSML}{other}>",),
        style=CallStyle.NAMED,
        open=f'<{_DSML}invoke name="',
        after_name='">\n',
        close=f"</{_DSML}invoke>\n",
        arguments=Arguments(
            style=ArgumentStyle.TAGGED,
            key_open=f'<{_DSML}parameter name="',
            key_close='" string="',
            string_mark="true",
            other_mark="false",
            value_open='">',
            value_close=f"</{_DSML}parameter>\n",
            empty=empty,
        ),
    )


_MINIMAX: Final = Calls(
    section_open="<minimax:tool_call>\n",
    section_close="</minimax:tool_call>",
    style=CallStyle.NAMED,
    open='<invoke name="',
    after_name='">\n',
    close="</invoke>\n",
    arguments=Arguments(
        style=ArgumentStyle.TAGGED, key_open='<parameter name="', key_close='">', value_close="</parameter>\n"
    ),
)

# Models write the recipient in the header before the channel, as the template does, or after the channel's name.
_HARMONY: Final = Calls(
    style=CallStyle.NAMED,
    open=" to=functions.",
    aliases=(
        "<|channel|>commentary to=functions.",
        "<|channel|>analysis to=functions.",
        "<|channel|>commentary<|constrain|>json to=functions.",
    ),
    after_name="<|channel|>commentary json<|message|>",
    after_name_aliases=(
        "<|message|>",
        "<|channel|>commentary<|message|>",
        "<|channel|>analysis<|message|>",
    ),
    close="<|call|>",
    parallel=False,
)
_SOLAR: Final = Calls(
    section_open="<|tool_calls|>",
    section_close="<|calls|>",
    style=CallStyle.NAMED,
    open="<|tool_call:begin|>",
    id_place=IdPlace.BEFORE,
    id_separator="<|tool_call:name|>",
    after_name="<|tool_call:args|>",
    close="<|tool_call:end|>",
)


def _gemma(open_text: str, close: str, quote: str) -> Calls:
    """Return Gemma's calls, whose texts differ between Gemma 4 and FunctionGemma."""
    return Calls(
        style=CallStyle.NAMED,
        open=f"{open_text}call:",
        close=close,
        arguments=Arguments(style=ArgumentStyle.GEMMA, item_separator=",", key_separator=":", quote=quote),
    )


_MISTRAL: Final = Calls(style=CallStyle.NAMED, open="[TOOL_CALLS]", after_name="[ARGS]")
_MISTRAL_IDS: Final = Calls(
    style=CallStyle.NAMED,
    open="[TOOL_CALLS]",
    id_place=IdPlace.AFTER,
    id_separator="[CALL_ID]",
    after_name="[ARGS]",
)
_KIMI: Final = Calls(
    section_open="<|tool_calls_section_begin|>",
    section_close="<|tool_calls_section_end|>",
    style=CallStyle.NAMED,
    open="<|tool_call_begin|>functions.",
    id_place=IdPlace.AFTER,
    id_separator=":",
    after_name="<|tool_call_argument_begin|>",
    close="<|tool_call_end|>",
)
_DEEPSEEK_ALIASES: Final = ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool▁calls｜>")  # noqa: RUF001
_DEEPSEEK_V3: Final = Calls(
    section_open="<｜tool▁calls▁begin｜>",  # noqa: RUF001
    section_close="<｜tool▁calls▁end｜>",  # noqa: RUF001
    aliases=_DEEPSEEK_ALIASES,
    style=CallStyle.NAMED,
    open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",  # noqa: RUF001
    after_name="\n```json\n",
    close="\n```<｜tool▁call▁end｜>",  # noqa: RUF001
    between="\n",
)
_DEEPSEEK_V31: Final = Calls(
    section_open="<｜tool▁calls▁begin｜>",  # noqa: RUF001
    section_close="<｜tool▁calls▁end｜>",  # noqa: RUF001
    aliases=_DEEPSEEK_ALIASES,
    style=CallStyle.NAMED,
    open="<｜tool▁call▁begin｜>",  # noqa: RUF001
    after_name="<｜tool▁sep｜>",  # noqa: RUF001
    close="<｜tool▁call▁end｜>",  # noqa: RUF001
)
_COHERE: Final = Calls(
    section_open="<|START_ACTION|>[\n    ",
    section_close="\n]<|END_ACTION|>",
    between=",\n    ",
    name_key="tool_name",
    arguments_key="parameters",
    first_keys=("tool_call_id",),
)
_LLAMA3: Final = Calls(arguments_key="parameters", parallel=False, between="; ", aliases=("<|python_tag|>",))
_FUNCTIONARY_31: Final = Calls(style=CallStyle.NAMED, open="<function=", after_name=">", close="</function>")
_FUNCTIONARY_32: Final = Calls(style=CallStyle.NAMED, open=">>>", after_name="\n")


def _pythonic(section_open: str, section_close: str, between: str, *aliases: str) -> Calls:
    return Calls(
        style=CallStyle.PYTHONIC,
        section_open=section_open,
        section_close=section_close,
        between=between,
        aliases=aliases,
    )


_FORMATS: Final = (
    _format("hermes", _HERMES),
    _format("qwen3", _HERMES, _THINK_LINES),
    _format("qwen-xml", _QWEN_XML, _THINK_LINES),
    _format("seed-oss", _SEED, Reasoning(open="<seed:think>", close="</seed:think>\n")),
    _format("minicpm5", _MINICPM, _THINK_LINES),
    _format(
        "harmony",
        _HARMONY,
        Reasoning(open="<|channel|>analysis<|message|>", close="<|end|>"),
        content=("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
        content_close="<|end|>",
        ignored=("<|start|>assistant", "<|return|>"),
        header=Header(open="<|channel|>", close="<|message|>", marks=("<|constrain|>",), recipient="to="),
    ),
    _format(
        "gemma4",
        _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
        Reasoning(open="<|channel>thought\n", close="<channel|>"),
    ),
    _format("functiongemma", _gemma("<start_function_call>", "<end_function_call>", "<escape>")),
    _format("mistral", _MISTRAL, Reasoning(open="[THINK]", close="[/THINK]")),
    _format("mistral-ids", _MISTRAL_IDS, Reasoning(open="[THINK]", close="[/THINK]")),
    _format("mistral-list", _objects("[TOOL_CALLS][", "]", extra_keys=("id",))),
    _format("glm", _glm("\n"), Reasoning(open="\n<think>", close="</think>\n")),
    _format("glm-4.7", _glm(""), _THINK),
    _format("kimi-k2", _KIMI, _THINK),
    _format("minimax-m2", _MINIMAX, Reasoning(open="<think>\n", close="\n</think>\n\n")),
    _format("deepseek-v3", _DEEPSEEK_V3, Reasoning(open="<think>\n", close="\n</think>\n\n")),
    _format("deepseek-v3.1", _DEEPSEEK_V31, _THINK),
    _format("dsml", _dsml("function_calls"), _THINK),
    _format("dsml-v4", _dsml("tool_calls", "\n"), _THINK),
    _format("llama3-json", _LLAMA3),
    _format("pythonic", _pythonic("[", "]", ", ", "<|python_start|>["), ignored=("<|python_end|>",)),
    _format("lfm2", _pythonic("<|tool_call_start|>[", "]<|tool_call_end|>", ", "), _THINK),
    _format("olmo3", _pythonic("<function_calls>", "</function_calls>", "\n"), _THINK),
    _format("granite3", _objects("<|tool_call|>[", "]"), _THINK, ignored=("<response>", "</response>")),
    _format("phi4", _objects("functools[", "]", aliases=("<|tool_call|>[",)), _THINK, ignored=("<|/tool_call|>",)),
    _format("firefunction", _objects(" functools[", "]")),
    _format(
        "command-r7b",
        _COHERE,
        Reasoning(open="<|START_THINKING|>", close="<|END_THINKING|>"),
        content=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        content_close="<|END_RESPONSE|>",
        ignored=("<|END_TEXT|>",),
    ),
    _format("functionary-3.1", _FUNCTIONARY_31),
    _format("functionary-3.2", _FUNCTIONARY_32, content=(">>>all\n",), prefix=">>>"),
    _format(
        "apriel",
        _objects("<tool_calls>[", "]</tool_calls>"),
        Reasoning(open="Here are my reasoning steps:\n", close="\n[BEGIN FINAL RESPONSE]\n"),
    ),
    _format(
        "solar",
        _SOLAR,
        Reasoning(open="<|think|>", close="<|end|>"),
        content=("<|content|>",),
        content_close="<|end|>",
        ignored=("<|begin|>assistant",),
    ),
)

KNOWN: Final[Mapping[str, OutputFormat]] = MappingProxyType({each.name: each for each in _FORMATS})
"""The formats by the names that users type."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """A template that has all of these texts, and none of the absent ones, writes this format."""

    name: str
    texts: tuple[str, ...]
    absent: tuple[str, ...] = ()


_SIGNS: Final = (
    _Sign("harmony", ("<|channel|>", "<|message|>", "to=", "functions.")),
    _Sign("gemma4", ("<|tool_call>call:", "<tool_call|>")),
    _Sign("functiongemma", ("<start_function_call>", "<end_function_call>")),
    _Sign("solar", ("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>")),
    _Sign("kimi-k2", ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>")),
    _Sign("minimax-m2", ("<minimax:tool_call>", "<invoke name=")),
    _Sign("dsml-v4", (_DSML, "tool_calls>"), ("function_calls>",)),
    _Sign("dsml-v4", ("dsml_token", "tool_calls>"), ("function_calls>",)),
    _Sign("dsml", (_DSML, "function_calls")),
    _Sign("deepseek-v3", ("<｜tool▁calls▁begin｜>", "```json")),  # noqa: RUF001
    _Sign("deepseek-v3.1", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")),  # noqa: RUF001
    _Sign("mistral-ids", ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")),
    _Sign("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    _Sign("mistral-list", ("[TOOL_CALLS]",)),
    _Sign("seed-oss", ("<seed:tool_call>", "<function=")),
    _Sign("minicpm5", ("<function name=", "<param name=", "CDATA")),
    _Sign("qwen-xml", ("<tool_call>", "<function=", "<parameter=")),
    _Sign("glm", ("<tool_call>", "<arg_key>", "</arg_key>\\n<arg_value>")),
    _Sign("glm", ("<tool_call>", "<arg_key>", "</arg_key>\n<arg_value>")),
    _Sign("glm-4.7", ("<tool_call>", "<arg_key>", "<arg_value>")),
    _Sign("functionary-3.2", (">>>all", ">>>${recipient}")),
    _Sign("functionary-3.1", ("<function=", "</function>"), ("<tool_call>",)),
    _Sign("firefunction", ("functools[", "<|start_header_id|>")),
    _Sign("phi4", ("functools",)),
    _Sign("phi4", ("<|tool|>", "<|/tool|>")),
    _Sign("command-r7b", ("<|START_ACTION|>", "tool_name")),
    _Sign("granite3", ("<|tool_call|>", "<|start_of_role|>")),
    _Sign("lfm2", ("<|tool_call_start|>",)),
    _Sign("lfm2", ("<|tool_list_start|>",)),
    _Sign("lfm2", ("List of tools: [", "<|im_start|>")),
    _Sign("olmo3", ("<function_calls>", "<functions>")),
    _Sign("apriel", ("<tool_calls>[", "[BEGIN FINAL RESPONSE]")),
    _Sign("qwen3", ("<tool_call>", "</tool_call>", "<think>")),
    _Sign("hermes", ("<tool_call>", "</tool_call>")),
    _Sign("pythonic", ("<|python_start|>",)),
    _Sign("llama3-json", ("<|start_header_id|>", '"parameters": ')),
)
"""In order: the first that fits counts."""


def known_by_template(source: str) -> OutputFormat | None:
    """Return the format whose distinctive texts a chat template has, or None."""
    for sign in _SIGNS:
        if all(text in source for text in sign.texts) and not any(text in source for text in sign.absent):
            return KNOWN[sign.name]
    return None
