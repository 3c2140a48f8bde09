"""Agents that talk as Claude Code, Codex and an OpenAI client do, and their conversations in OpenAI's form.

Each keeps its history in its own dialect. `messages` and `tools` are what a template has to get of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx

import messages_kit
import responses_kit

Wire = dict[str, Any]
IDENTITY: Final = "You are a coding agent. Edit files with the tools below, and answer briefly."
_WORDS: Final = ("read", "write", "search", "list", "edit", "run", "find", "apply", "move", "copy", "check", "build")


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply as its client got it.

    Attributes:
        id: of the response.
        prompt, cached: tokens of the prompt, and those of them that were not computed.
        calls: ids of the calls to answer.
    """

    id: str
    prompt: int
    cached: int
    calls: tuple[str, ...]


class Agent(Protocol):
    """A client of one dialect."""

    messages: list[Wire]
    tools: list[Wire]
    thinks: bool

    def say(self, text: str) -> None:
        """Add a message of the user."""

    def give(self, results: Sequence[tuple[str, str]]) -> None:
        """Add results of calls, by id."""

    def remind(self, text: str) -> None:
        """Add instructions in the middle of the conversation, as this client does."""

    def ask(self, http: httpx.Client, *, call: bool, limit: int) -> Answer:
        """Ask for a reply, which calls a tool if `call`, and add it to the conversation."""


def functions(number: int, count: int, length: int) -> list[Wire]:
    """Return `count` tools of about `length` characters each; `number` makes them differ from other lists."""
    draw = random.Random(number)
    found = []
    for place in range(count):
        words = " ".join(draw.choice(_WORDS) for _ in range(length // 6))
        properties = {
            "path": {"type": "string", "enum": ["src/a.py", "src/b.py", "README.md"]},
            "mode": {"type": "string", "enum": ["fast", "slow"]},
        }
        schema = {"type": "object", "properties": properties, "required": ["path", "mode"]}
        schema["additionalProperties"] = False
        name = f"{draw.choice(_WORDS)}_{number}_{place}"
        found.append({"name": name, "description": words[: max(0, length - 300)], "parameters": schema, "strict": True})
    return found


class ChatAgent:
    """A client of chat completions, which sends reasoning back or leaves it out."""

    def __init__(self, functions: Sequence[Wire], draw: random.Random) -> None:
        self.tools = [{"type": "function", "function": each} for each in functions]
        self.messages: list[Wire] = [{"role": "system", "content": IDENTITY}]
        self.thinks = draw.random() < 0.5
        self._keeps = draw.random() < 0.5

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def give(self, results: Sequence[tuple[str, str]]) -> None:
        self.messages += [{"role": "tool", "tool_call_id": id, "content": text} for id, text in results]

    def remind(self, text: str) -> None:
        self.messages.append({"role": "system", "content": text})

    def ask(self, http: httpx.Client, *, call: bool, limit: int) -> Answer:
        body = {
            "messages": self.messages,
            "tools": self.tools,
            "tool_choice": "required" if call else "auto",
            "max_tokens": limit,
            "chat_template_kwargs": {"enable_thinking": self.thinks},
            "thinking_token_budget": limit // 4,
        }
        reply = _posted(http, "/v1/chat/completions", body).json()
        message, usage = reply["choices"][0]["message"], reply["usage"]
        calls = [each for each in message.get("tool_calls") or () if _is_whole(each["function"]["arguments"])]
        kept: Wire = {"role": "assistant", "content": message["content"] or ""}
        if self._keeps and message.get("reasoning_content"):
            kept["reasoning_content"] = message["reasoning_content"]
        self.messages.append(kept | ({"tool_calls": calls} if calls else {}))
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        return Answer(reply["id"], usage["prompt_tokens"], cached, tuple(each["id"] for each in calls))


class MessagesAgent:
    """Claude Code: streams, and sends an attribution that changes at every request."""

    def __init__(self, functions: Sequence[Wire], draw: random.Random) -> None:
        self.tools = [{"type": "function", "function": each} for each in functions]
        self.messages: list[Wire] = [{"role": "system", "content": f"{IDENTITY}\nThe user is in a hurry."}]
        self.thinks = True
        self._draw = draw
        self._sent: list[Wire] = []

    def say(self, text: str) -> None:
        self._sent.append({"role": "user", "content": [{"type": "text", "text": text}]})
        self._add("user", text)

    def give(self, results: Sequence[tuple[str, str]]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in results]
        self._sent.append({"role": "user", "content": blocks})
        self.messages += [{"role": "tool", "content": text} for _, text in results]

    def remind(self, text: str) -> None:
        self._sent.append({"role": "system", "content": [{"type": "text", "text": text}]})
        self._add("system", text)

    def _add(self, role: str, text: str) -> None:
        """Add a text, to the last message if that has the same role."""
        if self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += f"\n{text}"
        else:
            self.messages.append({"role": role, "content": text})

    def ask(self, http: httpx.Client, *, call: bool, limit: int) -> Answer:
        attribution = f"x-anthropic-billing-header: cc_version=2.1.295.{self._draw.random()}; cc_entrypoint=cli;"
        names = {"parameters": "input_schema"}
        functions = [each["function"] for each in self.tools]
        body = {
            "model": "agent",
            "system": [_text(attribution), _text(IDENTITY), _text("The user is in a hurry.") | _KEPT],
            "messages": self._sent,
            "tools": [{names.get(name, name): value for name, value in each.items()} for each in functions],
            "tool_choice": {"type": "any" if call else "auto", "disable_parallel_tool_use": self._draw.random() < 0.5},
            "thinking": {"type": "enabled", "budget_tokens": limit // 4} if call else {"type": "adaptive"},
            "metadata": {"user_id": json.dumps({"session_id": self._draw.random()})},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "max_tokens": limit,
            "stream": True,
        }
        reply = messages_kit.folded(messages_kit.events_in(_posted(http, "/v1/messages?beta=true", body).text))
        content, usage = reply["content"], reply["usage"]
        calls = [each for each in content if each["type"] == "tool_use"]
        if content:
            self._sent.append({"role": "assistant", "content": content})
            self.messages.append(self._kept(content, calls))
        prompt = sum(usage[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
        return Answer(reply["id"], prompt, usage["cache_read_input_tokens"], tuple(each["id"] for each in calls))

    def _kept(self, content: list[Wire], calls: list[Wire]) -> Wire:
        made = [{"type": "function", "function": {"name": each["name"], "arguments": each["input"]}} for each in calls]
        texts = [each["text"] for each in content if each["type"] == "text"]
        thoughts = [each["thinking"] for each in content if each["type"] == "thinking"]
        return {
            "role": "assistant",
            "content": "\n".join(texts),
            **({"reasoning_content": "\n".join(thoughts)} if any(thoughts) else {}),
            **({"tool_calls": made} if made else {}),
        }


class ResponsesAgent:
    """Codex: streams, stores nothing, and sends reasoning back encrypted."""

    def __init__(self, functions: Sequence[Wire], draw: random.Random) -> None:
        self.tools = [{"type": "function", "function": each} for each in functions]
        self.messages: list[Wire] = [{"role": "system", "content": f"{IDENTITY}\n\nThe user is in a hurry."}]
        self.thinks = draw.random() < 0.5
        self._key = str(draw.random())
        developer = {"type": "message", "role": "developer", "content": [_input("The user is in a hurry.")]}
        self._items: list[Wire] = [developer]

    def say(self, text: str) -> None:
        self._items.append({"type": "message", "role": "user", "content": [_input(text)]})
        self.messages.append({"role": "user", "content": text})

    def give(self, results: Sequence[tuple[str, str]]) -> None:
        self._items += [{"type": "function_call_output", "call_id": id, "output": text} for id, text in results]
        self.messages += [{"role": "tool", "content": text} for _, text in results]

    def remind(self, text: str) -> None:
        self._items.append({"type": "message", "role": "developer", "content": [_input(text)]})
        self.messages.append({"role": "system", "content": text})

    def ask(self, http: httpx.Client, *, call: bool, limit: int) -> Answer:
        body = {
            "model": "agent",
            "instructions": IDENTITY,
            "input": self._items,
            "tools": [{"type": "function", **each["function"]} for each in self.tools],
            "tool_choice": "required" if call else "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium" if self.thinks else "none", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": self._key,
            "max_output_tokens": limit,
        }
        reply = responses_kit.checked_events(_posted(http, responses_kit.PATH, body).text)[-1]["response"]
        usage, items = reply["usage"], reply["output"]
        self._keep(items)
        calls = tuple(each["call_id"] for each in items if each["type"] == "function_call")
        return Answer(reply["id"], usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], calls)

    def _keep(self, items: list[Wire]) -> None:
        kept: Wire = {"role": "assistant", "content": ""}
        for item in items:
            if item["type"] == "message":
                kept["content"] += "".join(each["text"] for each in item["content"])
            elif item["type"] == "reasoning":
                kept["reasoning_content"] = "".join(each["text"] for each in item["content"])
                item = {**item, "content": None}
            else:
                function = {"name": item["name"], "arguments": item["arguments"]}
                kept.setdefault("tool_calls", []).append({"type": "function", "function": function})
            self._items.append(item)
        if any(each["type"] != "reasoning" for each in items):
            self.messages.append(kept)


_KEPT: Final = {"cache_control": {"type": "ephemeral"}}
AGENTS: Final[Sequence[type[Agent]]] = (ChatAgent, MessagesAgent, ResponsesAgent)


def _is_whole(arguments: str) -> bool:
    """Return whether the arguments of a call are JSON: those of a call that was cut off are not."""
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _input(text: str) -> Wire:
    return {"type": "input_text", "text": text}


def _posted(http: httpx.Client, path: str, body: Wire) -> httpx.Response:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response
