"""Outputs in each hand-written format as its models write them: reasoning, content, and two calls."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ferrum.core.output_format import OutputFormat, Tool, ToolKind
from ferrum.formats.output_parts import Call, Message

_PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "opt": {"type": "object"}}
TOOLS = (
    Tool(name="weather", parameters=json.dumps({"type": "object", "properties": _PROPERTIES})),
    Tool(name="ping"),
    Tool(name="patch", kind=ToolKind.CUSTOM),
)

CITY = 'Bo"nn é'
OPTIONS = '{"a": [1, "x"], "b": true}'
ARGUMENTS = f'{{"city": "Bo\\"nn é", "days": 3, "opt": {OPTIONS}}}'
"""Arguments as most formats write them, and as the parser returns them for all."""

_OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
_PING = '{"name": "ping", "arguments": {}}'


@dataclass(frozen=True)
class Sample:
    """An output.

    Attributes:
        parts: what is read from it: R reasoning, C content, W the call of `weather`, P that of `ping`.
        opened: the prompt ends within reasoning.
    """

    text: str
    parts: str
    opened: bool = False

    @property
    def message(self) -> Message:
        names = {"W": Call("weather", ARGUMENTS), "P": Call("ping", "{}")}
        return Message(
            reasoning="Hm." if "R" in self.parts else None,
            content="Hi." if "C" in self.parts else None,
            calls=tuple(names[each] for each in self.parts if each in names),
        )


def _xml(text: str) -> str:
    """Return text with a call's arguments in place of `{...}` between tags: `@key|open|middle|close`."""
    values = {"city": CITY, "days": "3", "opt": OPTIONS}

    def arguments(found: re.Match[str]) -> str:
        before, middle, after = found.group(1).split("¦")
        return "".join(f"{before}{key}{middle}{value}{after}" for key, value in values.items())

    return re.sub("@(.*?)@", arguments, text, flags=re.DOTALL)


_QWEN_CALLS = _xml(
    "<tool_call>\n<function=weather>\n@<parameter=¦>\n¦\n</parameter>\n@</function>\n</tool_call>\n"
    "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
)
_SEED_CALLS = _xml(
    "<seed:tool_call>\n<function=weather>\n@<parameter=¦>¦</parameter>\n@</function>\n</seed:tool_call>\n"
    "<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>"
).replace(OPTIONS, "{'a': [1, 'x'], 'b': True}")
_MINICPM_CALLS = _xml(
    '<function name="weather">@<param name="¦">¦</param>@</function>\n<function name="ping"></function>'
).replace(CITY, f"<![CDATA[{CITY}]]>")
_GLM_CALLS = _xml(
    "<tool_call>weather\n@<arg_key>¦</arg_key>\n<arg_value>¦</arg_value>\n@</tool_call>\n<tool_call>ping\n</tool_call>"
)
_MINIMAX_CALLS = _xml(
    '<minimax:tool_call>\n<invoke name="weather">\n@<parameter name="¦">¦</parameter>\n@</invoke>\n'
    '<invoke name="ping">\n</invoke>\n</minimax:tool_call>'
)
_D = "\uff5cDSML\uff5c"
_DSML_CALLS = _xml(
    f'\n\n<{_D}function_calls>\n<{_D}invoke name="weather">\n'
    f'@<{_D}parameter name="¦" string="false">¦</{_D}parameter>\n@</{_D}invoke>\n'
    f'<{_D}invoke name="ping">\n</{_D}invoke>\n</{_D}function_calls>'
).replace('city" string="false', 'city" string="true')
_B = "\uff5c"
_V3 = (
    f"<{_B}tool▁calls▁begin{_B}><{_B}tool▁call▁begin{_B}>function<{_B}tool▁sep{_B}>weather\n```json\n{ARGUMENTS}\n```"
    f"<{_B}tool▁call▁end{_B}>\n<{_B}tool▁call▁begin{_B}>function<{_B}tool▁sep{_B}>ping\n```json\n{{}}\n```"
    f"<{_B}tool▁call▁end{_B}><{_B}tool▁calls▁end{_B}>"
)
_V31 = (
    f"<{_B}tool▁calls▁begin{_B}><{_B}tool▁call▁begin{_B}>weather<{_B}tool▁sep{_B}>{ARGUMENTS}<{_B}tool▁call▁end{_B}>"
    f"<{_B}tool▁call▁begin{_B}>ping<{_B}tool▁sep{_B}>{{}}<{_B}tool▁call▁end{_B}><{_B}tool▁calls▁end{_B}>"
)
_GEMMA = f'call:weather{{city:<|"|>{CITY}<|"|>,days:3,opt:{{a:[1,<|"|>x<|"|>],b:true}}}}'
_FUNCTION_GEMMA = _GEMMA.replace('<|"|>', "<escape>")
_PYTHONIC = f"weather(city='{CITY}', days=3, opt={{\"a\": [1, 'x'], \"b\": True}})"
_KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    f"{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
_COHERE = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
    f'{ARGUMENTS}}},\n    {{"tool_call_id": "1", "tool_name": "ping", "parameters": {{}}}}\n]<|END_ACTION|>'
)
_SOLAR = (
    "<|tool_calls|><|tool_call:begin|>call00001<|tool_call:name|>weather<|tool_call:args|>"
    f"{ARGUMENTS}<|tool_call:end|><|tool_call:begin|>call00002<|tool_call:name|>ping<|tool_call:args|>{{}}"
    "<|tool_call:end|><|calls|>"
)
_HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Hi.<|end|>"
    f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
    "<|start|>assistant to=functions.ping<|channel|>commentary json<|message|>{}<|call|>"
)
_HERMES = f"<tool_call>\n{_OBJECT}\n</tool_call>\n<tool_call>\n{_PING}\n</tool_call>"
_LIST = f"[{_OBJECT}, {_PING}]"

SAMPLES: dict[str, Sample] = {
    "hermes": Sample(f"Hi.\n{_HERMES}", "CWP"),
    "qwen3": Sample(f"<think>\nHm.\n</think>\n\nHi.\n{_HERMES}", "RCWP"),
    "qwen-xml": Sample(f"Hm.\n</think>\n\nHi.\n\n{_QWEN_CALLS}", "RCWP", opened=True),
    "seed-oss": Sample(f"<seed:think>Hm.</seed:think>\nHi.\n\n{_SEED_CALLS}", "RCWP"),
    "minicpm5": Sample(f"<think>\nHm.\n</think>\n\nHi.\n{_MINICPM_CALLS}", "RCWP"),
    "harmony": Sample(_HARMONY, "RCWP"),
    "gemma4": Sample(
        f"<|channel>thought\nHm.<channel|>Hi.<|tool_call>{_GEMMA}<tool_call|><|tool_call>call:ping{{}}<tool_call|>",
        "RCWP",
    ),
    "functiongemma": Sample(
        f"<start_function_call>{_FUNCTION_GEMMA}<end_function_call><start_function_call>call:ping{{}}<end_function_call>",
        "WP",
    ),
    "mistral": Sample(f"[THINK]Hm.[/THINK]Hi.[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]ping[ARGS]{{}}", "RCWP"),
    "mistral-ids": Sample(
        f"Hi.[TOOL_CALLS]weather[CALL_ID]call00001[ARGS]{ARGUMENTS}[TOOL_CALLS]ping[CALL_ID]call00002[ARGS]{{}}", "CWP"
    ),
    "mistral-list": Sample(
        f'[TOOL_CALLS][{_OBJECT[:-1]}, "id": "call00001"}}, {_PING[:-1]}, "id": "call00002"}}]', "WP"
    ),
    "glm": Sample(f"\n<think>Hm.</think>\nHi.\n{_GLM_CALLS}", "RCWP"),
    "glm-4.7": Sample("Hm.</think>Hi." + _GLM_CALLS.replace("\n", ""), "RCWP", opened=True),
    "kimi-k2": Sample(f"<think>Hm.</think>Hi.{_KIMI}", "RCWP"),
    "minimax-m2": Sample(f"Hm.\n</think>\n\nHi.\n{_MINIMAX_CALLS}", "RCWP", opened=True),
    "deepseek-v3": Sample(f"Hm.\n</think>\n\nHi.{_V3}", "RCWP", opened=True),
    "deepseek-v3.1": Sample(f"Hi.{_V31}", "CWP"),
    "dsml": Sample(f"<think>Hm.</think>Hi.{_DSML_CALLS}", "RCWP"),
    "dsml-v4": Sample(
        f"Hm.</think>Hi.{_DSML_CALLS}".replace("function_calls", "tool_calls").replace('ping">\n', 'ping">\n\n'),
        "RCWP",
        opened=True,
    ),
    "llama3-json": Sample(f"{_OBJECT}; {_PING}".replace("arguments", "parameters"), "WP"),
    "pythonic": Sample(f"[{_PYTHONIC}, ping()]", "WP"),
    "lfm2": Sample(f"<think>Hm.</think>Hi.<|tool_call_start|>[{_PYTHONIC}, ping()]<|tool_call_end|>", "RCWP"),
    "olmo3": Sample(f"Hi.<function_calls>{_PYTHONIC}\nping()</function_calls>", "CWP"),
    "granite3": Sample(f"<|tool_call|>{_LIST}", "WP"),
    "phi4": Sample(f"functools{_LIST}", "WP"),
    "firefunction": Sample(f"Hi. functools{_LIST}", "CWP"),
    "command-r7b": Sample(f"<|START_THINKING|>Hm.<|END_THINKING|>{_COHERE}", "RWP"),
    "functionary-3.1": Sample(f"Hi.<function=weather>{ARGUMENTS}</function><function=ping>{{}}</function>", "CWP"),
    "functionary-3.2": Sample(f"all\nHi.>>>weather\n{ARGUMENTS}>>>ping\n{{}}", "CWP"),
    "apriel": Sample(f"Hm.\n[BEGIN FINAL RESPONSE]\nHi.\n<tool_calls>{_LIST}</tool_calls>", "RCWP", opened=True),
    "solar": Sample(f"<|think|>Hm.<|end|><|begin|>assistant<|content|>Hi.<|end|><|begin|>assistant{_SOLAR}", "RCWP"),
}


def calls_begin(text: str, form: OutputFormat) -> int:
    """Return where the first call of an output, or its section, begins."""
    calls = form.calls
    assert calls is not None
    found = [text.find(each.strip()) for each in (calls.section_open, calls.open, *calls.aliases) if each.strip()]
    return min(each for each in found if each >= 0)
