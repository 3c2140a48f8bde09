"""Conversations that the analysis renders, and how it renders them.

Their words occur in no template, so that each is found again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.core.errors import FerrumError, RequestError
from ferrum.formats import probe_conversations as probes
from ferrum.text.chat_template import ChatTemplate

QUESTION: Final = "Quorvim"
CONTENT: Final = "Zalthep"
REASONING: Final = "Wrublid"
NAMES: Final = ("find_wexol", "set_yumbar", "get_prindle")
KEYS: Final = ("kivara", "lomptu", "mufeno")
TEXTS: Final = ("Hastrov", "Dwelpin", "Grontaz")
NUMBER: Final = 90241

Named = tuple[str, Mapping[str, Any]]


def tools() -> list[dict[str, Any]]:
    """Return tools of all names; each takes texts under `KEYS` and values of other types under their types' names."""
    kinds = dict.fromkeys(KEYS, "string") | {
        "whole": "integer",
        "real": "number",
        "flag": "boolean",
        "object": "object",
        "array": "array",
    }
    properties = {key: {"type": kind, "description": f"the {key}"} for key, kind in kinds.items()}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Runs {number}.",
                "parameters": {"type": "object", "properties": properties, "required": [KEYS[0]]},
            },
        }
        for number, name in enumerate(NAMES)
    ]


def user() -> dict[str, Any]:
    """Return the question."""
    return {"role": "user", "content": QUESTION}


def assistant(
    calls: Sequence[Named] = (),
    content: str | None = None,
    reasoning: str | None = None,
    ids: Sequence[str] = (),
) -> dict[str, Any]:
    """Return an answer in OpenAI's form, with arguments as objects; `ids` replaces those of `call_id`."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": ids[place] if ids else call_id(place),
                "type": "function",
                "function": {"name": name, "arguments": dict(arguments)},
            }
            for place, (name, arguments) in enumerate(calls)
        ]
    return message


def call_id(place: int) -> str:
    """Return the id of a call, in the form that Mistral's templates require: nine letters and digits."""
    return f"callJvq{place:02}"


def next_user() -> dict[str, Any]:
    """Return a second question."""
    return {"role": "user", "content": "Plimsor"}


# Rendering them within bounds: few steps each, little time in all

SECONDS: Final = 2.0
"""Maximum time of an analysis; one rendering may exceed it by that of `STEPS`."""
STEPS: Final = 50_000
"""Loop iterations and macro calls of one rendering: ten times those of the longest known template."""
MAX_SOURCE: Final = 1 << 18
"""Longest template that is analysed, in characters: ten times the longest known one."""
MAX_TEXT: Final = 1 << 18
"""Longest rendered text, in characters."""


class NotFoundError(Exception):
    """The analysis cannot read a format off a template; the text says why, for a user."""


class Renderings:
    """The texts that a template writes for probes.

    Args:
        template: what is analysed.
    """

    def __init__(self, template: ChatTemplate) -> None:
        if max(map(len, template.sources.values())) > MAX_SOURCE:
            raise NotFoundError(f"the chat template has more than {MAX_SOURCE} characters")
        self._template = template
        self._end = time.monotonic() + SECONDS

    def whole(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: bool = True,
        prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Return the text of a conversation, or None if the template refuses it.

        Args:
            messages: in OpenAI's form.
            tools: give those of the probes.
            prompt: add the header of the next answer.
            variables: further ones.

        Raises:
            NotFoundError: the renderings take too long.
        """
        if time.monotonic() > self._end:
            raise NotFoundError(f"the chat template takes more than {SECONDS:.0f} s to analyse")
        from ferrum.text import sandbox  # imports jinja

        with sandbox.limited(STEPS):
            try:
                text = self._template.render(
                    self._template.prepare(messages, moving=False),
                    add_generation_prompt=prompt,
                    tools=probes.tools() if tools else None,
                    template_kwargs=variables,
                )
            except FerrumError as error:
                if isinstance(error, RequestError) or error.__class__.__name__ == "CheckpointError":
                    return None
                raise
        return text if len(text) <= MAX_TEXT else None

    def turn(
        self,
        *messages: Mapping[str, Any],
        tools: bool = True,
        prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Return the text after the question that begins the conversation; None as `whole`, or without a question."""
        text = self.whole([probes.user(), *messages], tools=tools, prompt=prompt, variables=variables)
        if text is None or probes.QUESTION not in text:
            return None
        place = text.index(probes.QUESTION) if len(messages) > 1 else text.rindex(probes.QUESTION)
        return text[place + len(probes.QUESTION) :]
