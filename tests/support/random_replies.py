"""Random replies of an assistant in Qwen3's format: reasoning, texts and calls, some of them malformed."""

from __future__ import annotations

import json
import random
from typing import Final

TEXTS: Final = ("plain", "é 世界 🦀", "{", '"name"', "<tool_call", "</", "\n\n", "<think", " ", "\\u00e9")


def call(draw: random.Random) -> str:
    """Return a call, sometimes one that does not parse."""
    name = draw.choice(["get_weather", "look", "unknown", "shell"])
    value = draw.choice(["Paris", 'a "quoted" é', 3, None, {"deep": [1, {"x": "</tool_call>"}]}, ""])
    text = json.dumps({"name": name, "arguments": {"city": value}}, ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.3:
        text = text[: draw.randrange(len(text))]
    return f"<tool_call>\n{text}" + ("\n</tool_call>" if draw.random() < 0.9 else "")


def said(prompt: str) -> str:
    """Return the random reply of the seed that the user's message names."""
    draw = random.Random(prompt.rsplit("seed ", 1)[1].split("<", 1)[0])
    pieces = []
    if draw.random() < 0.7:
        pieces.append(f"<think>\n{''.join(draw.choices(TEXTS, k=draw.randrange(5)))}")
        pieces.append("\n</think>\n\n" if draw.random() < 0.8 else "")
    rest = (call(draw) if draw.random() < 0.5 else "".join(draw.choices(TEXTS, k=3)) for _ in range(draw.randrange(4)))
    return "".join([*pieces, *rest])
