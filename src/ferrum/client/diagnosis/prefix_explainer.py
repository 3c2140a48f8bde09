"""`PrefixExplainer`: compares the prompts of chats, and says why one shares no longer prefix with an earlier one.

It is an option of the server. What clients see of an `Explanation` is written by the dialects.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Literal, TypeAlias

from ferrum.client.chat_prompt import ChatPrompt
from ferrum.client.diagnosis.prefix_difference import (
    Conversation,
    Difference,
    Rendered,
    conversation_of,
    first_difference,
    normal_form,
)
from ferrum.client.diagnosis.prompt_history import PromptHistory, PromptPaths, Remembered, closest
from ferrum.client.model_client import ModelClient
from ferrum.core.types import Request

Change: TypeAlias = Literal["variable", "tool", "message", "template"]


@dataclass(frozen=True, slots=True)
class Miss:
    """Where a prompt diverges from the one that it is compared with.

    Attributes:
        change: the kind of what changed; None: it takes too long to find. `template`: nothing changed in the body.
        place: path of the part of the body in which the first differing token stands, or `template` for text before the
            first message, or `generation_prompt` for text after the last one.
        cause: path of what changed; differs from `place` where a change affects how other parts are rendered.
        appended: messages were appended, and the template renders those before them as it did.
    """

    change: Change | None = None
    place: str | None = None
    cause: str | None = None
    appended: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """A prompt next to an earlier one.

    Attributes:
        named: the earlier one is that which the client named.
        common: tokens with which both begin: the index of the first differing one. None: there is no earlier prompt.
        miss: None if one prompt begins with the other.
        missed: tokens that the earlier prompt has in place of those that differ, at most as many as this prompt has.
        reusable: tokens of the common prefix that the cache could have.
    """

    named: bool = False
    common: int | None = None
    miss: Miss | None = None
    missed: int = 0
    reusable: int = 0

    def evicted(self, cached: int | None) -> int:
        """Return the tokens of the common prefix that the cache did not have; `cached` are those that it had."""
        return 0 if cached is None else max(0, self.reusable - cached)

    def fields(self, cached: int | None) -> dict[str, str]:
        """Return the comparison by the names of the response header's fields; `cached` as of `evicted`."""
        fields = {}
        if self.common is not None:
            fields["first-difference"] = "none" if self.miss is None else str(self.common)
        if self.miss is not None and self.miss.place is not None:
            fields["in"] = self.miss.place
            if self.miss.cause is not None and self.miss.cause != self.miss.place:
                fields["cause"] = self.miss.cause
        evicted = self.evicted(cached)
        return fields | ({"evicted": str(evicted)} if evicted else {})


class PrefixExplainer:
    """Compares the prompts of one model's chats. Safe to use from any thread.

    Args:
        client: of the model; renders conversations again.
    """

    def __init__(self, client: ModelClient) -> None:
        self._client = client
        self._history = PromptHistory()
        self._lock = Lock()

    def explain(
        self, request: Request, prompt: ChatPrompt, paths: PromptPaths, wanted: str | None = None
    ) -> Explanation:
        """Compare a prompt with those of its key, and remember it. May render the earlier conversation many times.

        Args:
            request: of the engine; its id is that of the reply.
            prompt: its text, and what that was rendered from.
            paths: of the prompt's parts in the body.
            wanted: id of the earlier reply to compare with; None: the prompt with the longest common prefix.
        """
        new = _remembered(request, prompt, paths)
        adapters = ",".join(f"{each.digest.hex()} {each.scale}" for each in request.adapters)
        key = (request.tenant, request.salt, adapters)
        with self._lock:
            named = None if wanted is None else self._history.find(key, wanted)
            others = self._history.of(key) if named is None else [named]
            self._history.add(key, new)
        nearest = closest(others, new.tokens)
        if nearest is None:
            return Explanation()
        old, common = nearest
        with self._lock:
            self._history.use(key, old.id)
        shorter = min(old.num_tokens, new.num_tokens)
        miss = self._miss(old, new) if common < shorter else None
        return Explanation(named is not None, common, miss, shorter - common, self._reusable(request, common))

    def _reusable(self, request: Request, common: int) -> int:
        """Return the tokens in whole pages of a common prefix; the last token of a prompt is always computed."""
        info = self._client.info
        if not info.prefix_cache or info.page_size is None or request.params.prompt_logprobs is not None:
            return 0
        return min(common, len(request.prompt) - 1) // info.page_size * info.page_size

    def _miss(self, old: Remembered, new: Remembered) -> Miss:
        if not (old.own_template and new.own_template):
            return Miss()
        tokenizer = self._client.tokenizer
        assert tokenizer is not None, "conversations without one are refused"
        form = normal_form(partial(tokenizer.encode, add_special_tokens=False))
        found = first_difference(old.rendered, new.rendered, self._render, form)
        if found is None:
            return Miss()
        return Miss(
            _change(found),
            new.paths.place(found, old.paths),
            new.paths.cause(found, old.paths),
            _appended(found, len(old.rendered.conversation.messages)),
        )

    def _render(self, conversation: Conversation) -> str:
        """Render a conversation with the model's own template. Raises as `ModelClient.render`."""
        variables = {name: json.loads(value) for name, value in conversation.variables}
        flags = {name: json.loads(value) for name, value in conversation.flags}
        tools = [json.loads(each) for each in conversation.tools]
        messages = [json.loads(each) for each in conversation.messages]
        return self._client.render(messages, tools=tools or None, chat_template_kwargs=variables or None, **flags)


def _remembered(request: Request, prompt: ChatPrompt, paths: PromptPaths) -> Remembered:
    given = {name: value for name, value in prompt.rendering.items() if value is not None}
    own = "chat_template" not in given
    parts = ("messages", "tools", "chat_template_kwargs")
    flags = {name: value for name, value in given.items() if name not in (*parts, "chat_template", "untrusted")}
    messages, tools, variables = map(given.get, parts)
    conversation = conversation_of(messages or (), tools, variables, flags)
    return Remembered(
        request.request_id,
        Rendered(conversation, prompt.text),
        array("I", request.prompt).tobytes(),
        own,
        paths,
    )


def _change(found: Difference) -> Change:
    kind = "template" if found.cause is None else found.cause.kind
    assert kind != "generation_prompt", "nothing of a conversation"
    return kind


def _appended(found: Difference, count: int) -> bool:
    """Return whether the cause is a message after the `count` earlier ones, and the difference is not before it."""
    places = (found.place,) if found.cause is None else (found.cause, found.place)
    later = (each.kind == "generation_prompt" or (each.kind == "message" and each.index >= count) for each in places)
    return found.cause is not None and all(later)
