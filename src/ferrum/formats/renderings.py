"""Render the probes of the analysis within bounds: few steps each, little time in all."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.core.errors import FerrumError, RequestError
from ferrum.formats import probe_conversations as probes
from ferrum.text.chat_template import ChatTemplate

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
