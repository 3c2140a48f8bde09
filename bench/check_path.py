"""Count the stays of a reader who follows the check of a chat's body, from `ask_chat` to the engine's request.

    python bench/check_path.py            the numbers
    python bench/check_path.py --list     every stay with its functions

Chats with tools, constraints and other options are checked under a profile hook, and the walk enters each function
once, in the order of the source. A stay is a run of functions of one file; a climb goes to a later room; a return is a
stay in a file that was left before. Walks of their own do not count: rendering, finding the template's format, the
keywords of a schema, and values of `core`.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

from path import NOT_FUNCTIONS, SOURCE, send, serving
from script import run_script

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from source_tree import ROOMS

Station: TypeAlias = tuple[str, str]
"""A file of ferrum and a function of it."""

OTHER_WALKS: Final = {"ModelClient.render", "ModelClient.output_format", "checked_schema"}
TEMPLATE: Final = """{% if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content or '' }}{% for call in m.tool_calls or () %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
"""Writes reasoning and calls as Qwen 3 does."""

_SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION: Final = {"name": "weather", "parameters": _SCHEMA}
_TOOL: Final = {"type": "function", "function": _FUNCTION}
_STRICT: Final = {"type": "function", "function": {**_FUNCTION, "strict": True}}
_NAMED: Final = {"type": "function", "function": {"name": "weather"}}
_CALL: Final = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
_QUESTION: Final = {"role": "user", "content": "How do you do?"}
BODIES: Final[Sequence[Mapping[str, Any]]] = (
    {},
    {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            _QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "a", "content": "warm"},
        ],
        "tools": [_TOOL],
    },
    {"tools": [_STRICT], "tool_choice": "auto"},
    {"tools": [_TOOL], "tool_choice": "required"},
    {"tools": [_STRICT], "tool_choice": _NAMED, "parallel_tool_calls": False},
    {"tools": [_STRICT], "response_format": {"type": "json_object"}},
    {"tools": [{"type": "custom", "custom": {"name": "note"}}]},
    {"functions": [_FUNCTION], "function_call": "auto", "stop": ["x"], "logit_bias": {"3": 1}, "dry_multiplier": 0.8},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}},
    {"response_format": {"type": "json_object"}, "thinking_token_budget": 4, "logprobs": True, "top_logprobs": 2},
    {"structured_outputs": {"regex": "a+"}, "truncate_prompt_tokens": -1, "reasoning_effort": "low"},
    {"guided_choice": ["a", "b"], "priority": 0, "cache_salt": "x"},
    {"guided_grammar": 'start: "a"', "n": 2, "logprobs": True},
    {"prediction": {"type": "content", "content": "Well."}, "prompt_logprobs": 1},
    {"chat_template": "{{ messages[0].content }}"},
    {
        "messages": [_QUESTION, {"role": "assistant", "content": "I"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
)
"""What the bodies have besides a question, or instead of it."""


class Walk:
    """The calls below a function, by caller, each with its first line; install it as a `path.Profile`."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._stack = threading.local()
        self.calls: dict[Station | None, dict[Station, int]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call; the signature is that of `sys.setprofile` hooks."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(SOURCE) or code.co_name in NOT_FUNCTIONS:
            return
        stack: list[Station] = self._stack.__dict__.setdefault("stations", [])
        if event == "return":
            del stack[-1:]
        elif stack or code.co_name == self._start:
            station = (code.co_filename.removeprefix(SOURCE), code.co_qualname)
            caller = stack[-1] if stack else None
            lines = self.calls.setdefault(caller, {})
            line = _line(frame, caller)
            lines[station] = min(line, lines.get(station, line))
            stack.append(station)

    def stations(self) -> list[Station]:
        """Return the functions in the order of the source, each once."""
        found: dict[Station, None] = {}

        def enter(station: Station) -> None:
            if station not in found and not station[0].startswith("core/") and station[1] not in OTHER_WALKS:
                found[station] = None
                below(station)

        def below(caller: Station | None) -> None:
            for each, _ in sorted(self.calls.get(caller, {}).items(), key=lambda item: item[1]):
                enter(each)

        below(None)
        return list(found)


def _line(frame: FrameType, caller: Station | None) -> int:
    """Return the line of a caller that is running."""
    outer = frame.f_back
    while outer is not None and caller is not None:
        if (outer.f_code.co_filename.removeprefix(SOURCE), outer.f_code.co_qualname) == caller:
            return outer.f_lineno
        outer = outer.f_back
    return 0


def measure() -> Walk:
    """Return the walk of the check of all bodies."""
    walk = Walk("ask_chat")
    threading.setprofile(walk)
    with serving(TEMPLATE) as port:
        for body in BODIES:
            send(port, {"messages": [_QUESTION], **body})
    threading.setprofile(None)
    return walk


def main() -> None:
    """Print the number of stays, files, climbs and returns."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--list", action="store_true", help="print every stay with its functions")
    options = arguments.parse_args()
    stays: list[tuple[str, list[str]]] = []
    for file, name in measure().stations():
        if not stays or stays[-1][0] != file:
            stays.append((file, []))
        stays[-1][1].append(name)
    if options.list:
        print("".join(f"{file}: {', '.join(names)}\n" for file, names in stays))
    floors = [ROOMS.index(file.partition("/")[0]) for file, _ in stays]
    climbs = sum(later > earlier for earlier, later in pairwise(floors))
    files = len({file for file, _ in stays})
    print(f"{len(stays)} stays, {files} files, {climbs} climbs, {len(stays) - files} returns")


if __name__ == "__main__":
    run_script(main)
