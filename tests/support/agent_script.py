"""The script of an assistant with tools, in the format of Qwen3's template, for clients that run agents.

It thinks, calls the first tool with arguments of its schema, and answers with the tool's result. Asked for JSON, it
writes an object of a city.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

MARKERS: Final = ("<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
THOUGHT: Final = "The user wants to know something. é世界"
ANSWER: Final = "It is as the tool says: "
CITY: Final = {"city": "Paris", "degrees": 21}
_VALUES: Final[dict[str, Any]] = {
    "string": "Paris", "integer": 21, "number": 2.5, "boolean": True, "array": [], "object": {}
}  # fmt: skip


def reply(prompt: str) -> str:
    """Return the assistant's reply to a rendered conversation."""
    thought = "" if prompt.rstrip().endswith("</think>") else f"<think>\n{THOUGHT}\n</think>\n\n"
    last = prompt.rsplit("<|im_start|>user\n", 1)[1]
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", last, re.DOTALL)
    tools = [json.loads(line) for line in _between(prompt, "<tools>\n", "\n</tools>").splitlines() if line]
    if results:
        return thought + ANSWER + ", ".join(results)
    if "json" in last.lower():
        return thought + json.dumps(CITY)
    if tools and "no tool" not in last:
        function = tools[-1].get("function", tools[-1])
        properties = (function.get("parameters") or {}).get("properties", {})
        arguments = {name: _value(schema) for name, schema in properties.items()}
        count = 2 if "twice" in last else 1
        call = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
        return thought + "\n".join([f"<tool_call>\n{call}\n</tool_call>"] * count)
    return thought + "Hello."


def _between(text: str, first: str, second: str) -> str:
    found = text.split(first)
    return found[1].split(second)[0] if len(found) > 1 else ""


def _value(schema: dict[str, Any]) -> Any:
    return schema["enum"][0] if "enum" in schema else _VALUES[schema.get("type", "string")]
