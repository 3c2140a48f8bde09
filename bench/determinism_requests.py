"""The requests of `determinism.py`: chats, code, tool calls and long prompts, rendered by a model's own template."""

from __future__ import annotations

import bisect
import colorsys
import fnmatch
import hashlib
import heapq
import json
import posixpath
import shlex
import statistics
import string
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ferrum import LLM

ROOT: Final = Path(__file__).parents[1]
PROSE: Final = ROOT / "src/ferrum/assets/quality/prose.txt"
COUNT: Final = 200
PLAIN: Final = 160
"""Tokens of a request to a model without a chat template."""

KINDS: Final = ("chat", "code", "chat", "tools", "chat", "code", "chat", "tools", "code", "long")
"""Kinds of ten requests in a row, which repeat; in three of four rows the last one is a chat."""

MODULES: Final = (bisect, colorsys, fnmatch, heapq, posixpath, shlex, statistics, string, textwrap)
"""Code that requests quote: Python's own, which does not change with this repository."""

QUESTIONS: Final = (
    "Name three benefits of walking every day.",
    "Why is the sky blue? Answer for a child of eight.",
    "I have eggs, rice and spinach. What can I cook in twenty minutes?",
    "Explain the difference between a virus and a bacterium.",
    "What should I see in Lisbon in two days?",
    "Write a polite e-mail that moves a meeting from Tuesday to Thursday.",
    "How do I keep basil alive on a window sill?",
    "Which is larger, 9.11 or 9.9? Explain.",
    "Translate into French: The train leaves at half past six.",
    "Give me a rhyme about a cat that is afraid of the sea.",
    "What does a heat pump do, and when does it pay?",
    "My bicycle chain slips under load. What do I check first?",
    "Summarise the plot of Hamlet in four sentences.",
    "How many litres does a tank of 40 x 30 x 25 cm hold?",
    "What is the difference between a will and a trust?",
    "List five questions to ask before renting a flat.",
)
FOLLOW_UPS: Final = (
    "Can you say that in one sentence?",
    "Which of these matters most, and why?",
    "Give an example.",
    "What would you leave out if time is short?",
)
TASKS: Final = (
    "Explain what this code does.",
    "Write a unit test for this code.",
    "Find a possible mistake in this code.",
    "Rewrite this code with clearer names.",
)
ACTIONS: Final = (
    "What is the weather in {place} in {number} days?",
    "Book a table for {number} in {place} on Friday at eight.",
    "Send Anna a message that I arrive in {place} in {number} hours.",
    "How far is it from {place} to an airport with {number} runways?",
    "Remind me in {number} days to call the office in {place}.",
)
PLACES: Final = ("Lisbon", "Oslo", "Kyoto", "Quito", "Perth", "Ghent", "Fes", "Lima")


def _function(name: str, about: str, /, **fields: str) -> dict[str, Any]:
    """Return a tool in OpenAI's form."""
    properties = {field: {"type": kind} for field, kind in fields.items()}
    parameters = {"type": "object", "properties": properties, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS: Final = (
    _function("get_weather", "Weather of a place at a time.", place="string", time="string"),
    _function("book_table", "Book a table.", place="string", persons="integer", time="string"),
    _function("send_message", "Send a message to a contact.", contact="string", text="string"),
    _function("get_distance", "Distance between two places.", origin="string", target="string"),
    _function("add_reminder", "Add a reminder.", text="string", days="integer"),
)


def passages() -> list[str]:
    """Return the paragraphs of the prose."""
    return [each for each in PROSE.read_text().split("\n\n") if len(each) > 200]


def sources() -> list[str]:
    """Return short functions of Python's own library."""
    blocks = [block.strip() for module in MODULES for block in Path(str(module.__file__)).read_text().split("\n\n")]
    return [block for block in blocks if 120 < len(block) < 360 and "def " in block]


def messages(index: int) -> list[dict[str, str]]:
    """Return the conversation of a request."""
    kind, turn = KINDS[index % len(KINDS)], index // len(KINDS)
    texts, code = passages(), sources()
    text = texts[index % len(texts)]
    if kind == "code":
        number = 3 * turn + index % len(KINDS) // 3
        task = TASKS[(number + number // len(code)) % len(TASKS)]
        return [_user(f"{task}\n\n```python\n{code[number % len(code)]}\n```")]
    if kind == "tools":
        place, number, action = PLACES[index % len(PLACES)], 2 + turn, (index + turn) % len(ACTIONS)
        rules = "Call it by writing {name, arguments} as JSON between <tool_call> and </tool_call>."
        wish = ACTIONS[action].format(place=place, number=number)
        system = f"You have this function:\n{json.dumps(TOOLS[action])}\n{rules}"
        return [{"role": "system", "content": system}, _user(wish)]
    if kind == "long" and turn % 4 == 0:
        whole = "\n\n".join(texts[turn // 4 :])[: 2600 + 20 * turn]
        return [_user(f"{whole}\n\nWho is Marian, and what did she learn? Answer from the text above.")]
    question = QUESTIONS[index % len(QUESTIONS)]
    if turn % 2:
        reply = {"role": "assistant", "content": text[: 40 + index // 2]}
        return [_user(question), reply, _user(FOLLOW_UPS[turn % len(FOLLOW_UPS)])]
    more = f"Answer in {3 + turn} sentences." if turn % 4 else f"Here is what I read today: {text[: 40 + index // 2]}"
    return [_user(f"{question} {more}")]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chosen(count: int) -> Iterator[int]:
    """Yield the indices of that many requests, of all kinds."""
    for place in range(count):
        yield place * COUNT // count // len(KINDS) * len(KINDS) + place % len(KINDS)


def token_ids(model: str, count: int) -> list[list[int]]:
    """Return the requests as token ids of a model; without a chat template, the beginning of their text."""
    with LLM(model, kv_capacity=64, max_sequence_length=64) as llm:
        client = llm.client
        assert client.tokenizer is not None
        if client.chat_template is None:
            texts = ["\n\n".join(each["content"] for each in messages(index)) for index in chosen(count)]
            return [list(client.tokenizer.encode(text))[:PLAIN] for text in texts]
        return [list(client.tokenizer.encode(client.render(messages(index)))) for index in chosen(count)]


def digest(prompts: Sequence[Sequence[int]]) -> str:
    """Return a digest of prompts, which names them in a report."""
    return hashlib.sha256(json.dumps([list(each) for each in prompts]).encode()).hexdigest()[:16]
