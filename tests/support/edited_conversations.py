"""Random conversations with tools, one random edit of each, and where the edit shows in a rendered prompt."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrum.client.diagnosis.prefix_difference import Conversation, conversation_of
from ferrum.text.chat_template import ChatTemplate

WORDS: Final = ("alpha", "beta", "gamma", "delta", "Füße", "数据", '"quoted"', "a\nb", "{x}", "end.")


@dataclass(frozen=True)
class Chat:
    """A conversation; every message and tool has texts with its number at begin and end, which stand nowhere else."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any] = field(default_factory=dict)

    def kept(self) -> Conversation:
        return conversation_of(self.messages, self.tools, self.variables, {})

    def text(self, template: ChatTemplate) -> str:
        return template.render(
            template.prepare(self.messages), tools=self.tools or None, template_kwargs=self.variables or None
        )


@dataclass(frozen=True)
class Edit:
    """An edited conversation; `kind` and `index` are the list and the place of the edit, or the variable's name."""

    chat: Chat
    name: str
    kind: str
    index: int = 0


class Writer:
    """Writes conversations from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._number = 0

    def words(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randrange(1, 12)))

    def numbered(self) -> str:
        """Return a text that no other has, with its number at both ends."""
        self._number += 1
        return f"<{self._number}:{self.words()}:{self._number}>"

    def tool(self) -> dict[str, Any]:
        about = self.numbered()
        number = self._number
        properties = {f"p{place}": {"type": "string", "description": self.numbered()} for place in range(3)}
        function = {
            "name": f"tool_{number}",
            "description": about,
            "parameters": {"type": "object", "properties": properties, "required": ["p0"]},
        }
        return {"type": "function", "function": function}

    def turn(self) -> list[dict[str, Any]]:
        """Return a question and its answer, often with a call and its result before it."""
        turn: list[dict[str, Any]] = [{"role": "user", "content": self.numbered()}]
        if self.random.random() < 0.6:
            arguments = {"p0": self.numbered(), "p1": self.words()}
            call_id = f"call{self.random.randrange(10**5):05}"
            call = {"id": call_id, "type": "function", "function": {"name": "tool_1", "arguments": arguments}}
            turn.append({"role": "assistant", "content": self.numbered(), "tool_calls": [call]})
            turn.append({"role": "tool", "tool_call_id": call_id, "name": "tool_1", "content": self.numbered()})
        thought = {"reasoning_content": self.numbered()} if self.random.random() < 0.5 else {}
        return [*turn, {"role": "assistant", "content": self.numbered(), **thought}]

    def chat(self) -> Chat:
        tools = [self.tool() for _ in range(self.random.randrange(1, 9))]
        messages = [{"role": "system", "content": self.numbered()}]
        for _ in range(self.random.randrange(0, 5)):
            messages += self.turn()
        return Chat([*messages, {"role": "user", "content": self.numbered()}], tools, {"enable_thinking": True})

    def edited(self, chat: Chat) -> Edit:
        """Return the conversation with one edit."""
        edits: tuple[Callable[[Chat], Edit], ...] = (
            self._text, self._text, self._tool_text, self._tool_text, self._tool_added, self._tool_removed,
            self._tools_swapped, self._turn_added, self._turn_removed, self._turns_swapped, self._appended, self._flag,
            self._key_order,
        )  # fmt: skip
        return self.random.choice(edits)(
            replace(chat, **copy.deepcopy({"messages": chat.messages, "tools": chat.tools}))
        )

    def changed(self, text: str) -> str:
        """Return a text with another word, or without its end or begin, between the numbers."""
        begin, words, end = text.split(":", 1)[0], text.split(":", 1)[1].rsplit(":", 1)[0], text.rsplit(":", 1)[1]
        at = self.random.randrange(len(words) + 1)
        return f"{begin}:{words[:at]}{self.random.choice(('!', 'q', ' z', '中'))}{words[at:]}:{end}"

    def _text(self, chat: Chat) -> Edit:
        place = self.random.randrange(len(chat.messages))
        chat.messages[place]["content"] = self.changed(chat.messages[place]["content"])
        return Edit(chat, "text", "message", place)

    def _tool_text(self, chat: Chat) -> Edit:
        place = self.random.randrange(len(chat.tools))
        function = chat.tools[place]["function"]
        if self.random.random() < 0.5:
            function["description"] = self.changed(function["description"])
        else:
            entry = function["parameters"]["properties"][self.random.choice(("p0", "p1", "p2"))]
            entry["description"] = self.changed(entry["description"])
        return Edit(chat, "tool text", "tool", place)

    def _key_order(self, chat: Chat) -> Edit:
        place = self.random.randrange(len(chat.tools))
        properties = chat.tools[place]["function"]["parameters"]["properties"]
        properties["p0"] = properties.pop("p0")
        return Edit(chat, "key order", "tool", place)

    def _tool_added(self, chat: Chat) -> Edit:
        place = self.random.randrange(len(chat.tools) + 1)
        chat.tools.insert(place, self.tool())
        return Edit(chat, "tool added", "tool", place)

    def _tool_removed(self, chat: Chat) -> Edit:
        place = self.random.randrange(len(chat.tools))
        del chat.tools[place]
        return Edit(chat, "tool removed", "tool", place)

    def _tools_swapped(self, chat: Chat) -> Edit:
        first, second = sorted(self.random.choices(range(len(chat.tools)), k=2))
        chat.tools[first], chat.tools[second] = chat.tools[second], chat.tools[first]
        return Edit(chat, "tools swapped", "tool", first)

    def _turns(self, chat: Chat) -> list[int]:
        return [place for place, each in enumerate(chat.messages) if each["role"] == "user"]

    def _turn_added(self, chat: Chat) -> Edit:
        place = self.random.choice(self._turns(chat))
        chat.messages[place:place] = self.turn()
        return Edit(chat, "turn added", "message", place)

    def _turn_removed(self, chat: Chat) -> Edit:
        turns = self._turns(chat)
        if len(turns) == 1:
            return self._text(chat)
        place = self.random.randrange(len(turns) - 1)
        del chat.messages[turns[place] : turns[place + 1]]
        return Edit(chat, "turn removed", "message", turns[place])

    def _turns_swapped(self, chat: Chat) -> Edit:
        turns = self._turns(chat)
        if len(turns) < 3:
            return self._turn_added(chat)
        place = self.random.randrange(len(turns) - 2)
        first, second, third = turns[place : place + 3]
        chat.messages[first:third] = [*chat.messages[second:third], *chat.messages[first:second]]
        return Edit(chat, "turns swapped", "message", first)

    def _appended(self, chat: Chat) -> Edit:
        place = len(chat.messages)
        *turn, _ = self.turn()[1:], None
        chat.messages.extend(*turn)
        chat.messages.append({"role": "user", "content": self.numbered()})
        return Edit(chat, "appended", "message", place)

    def _flag(self, chat: Chat) -> Edit:
        return Edit(replace(chat, variables={"enable_thinking": False}), "flag", "variable")


def holder(chat: Chat, text: str, at: int) -> tuple[str, int] | None:
    """Return the list and the place of the item that holds a position of a rendered prompt; None: after all of them.

    An item reaches from the end of the one before it to its own last number.
    """
    ends = []
    for kind, items in (("tool", chat.tools), ("message", chat.messages)):
        for place, each in enumerate(items):
            marks = [mark for value in _texts(each) for mark in _numbers(value)]
            found = [text.rfind(mark) + len(mark) for mark in marks if mark in text]
            if found:
                ends.append((max(found), kind, place))
    behind = [each for each in ends if each[0] > at]
    return min(behind)[1:] if behind else None


def _texts(item: Any) -> list[str]:
    if isinstance(item, str):
        return [item]
    values = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return [text for each in values for text in _texts(each)]


def _numbers(text: str) -> list[str]:
    """Return how a numbered text ends, also as JSON."""
    return [":" + text.rsplit(":", 1)[1]] if text.startswith("<") and text.endswith(">") else []
