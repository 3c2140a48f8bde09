"""`PrefixReport`: what a chat's prompt shares with earlier ones of its API key, and where the first difference stands.

The header `x-ferrum-cache` is written here, the fields of bodies by the dialects.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from ferrum.client.chat_prompt import ChatPrompt, rendered_again
from ferrum.client.kept_conversation import Conversation, Rendered
from ferrum.client.prefix_diagnosis import Difference, first_difference, normal_form
from ferrum.client.request_output import Delta
from ferrum.core.types import Request
from ferrum.server.common.prompt_history import Remembered, closest
from ferrum.server.common.prompt_paths import PromptPaths
from ferrum.server.common.served_model import ServedModel

CACHE: Final = "x-ferrum-cache"
"""Header with the tokens from the prefix cache and the first difference to an earlier prompt."""

UNENFORCED: Final = "x-ferrum-unenforced"
"""Header with the names of tools that must be called, whose schema cannot be enforced."""

_MAX_FREE: Final = 32
_LOOP_BYTES: Final = 1 << 16
"""Of tokens that are compared on the event loop, in less than a millisecond."""

_MAX_PATH: Final = 128

Change: TypeAlias = Literal["variable", "tool", "message", "template"]


@dataclass(frozen=True, slots=True)
class Miss:
    """Where a prompt leaves the one that it is compared with.

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
class Comparison:
    """A prompt next to an earlier one.

    Attributes:
        old: the earlier one.
        common: tokens with which both begin: the index of the first differing one.
        miss: None if one prompt begins with the other.
    """

    old: Remembered
    common: int
    miss: Miss | None


class PrefixReport:
    """The comparison of one chat's prompt with earlier ones.

    Args:
        request: of the engine.
        prompt: its text and source.
        name: id of the reply.
        paths: of the prompt's parts in the body.
        wanted: id of the earlier reply to compare with; None: the prompt with the longest common prefix.

    Attributes:
        wanted: see above.
        comparison: None if there is no earlier prompt.
        found: there is one with the id `wanted`.
        num_tokens: of the prompt.
        cached: prompt tokens from the prefix cache; None until the first delta.
    """

    def __init__(
        self, request: Request, prompt: ChatPrompt, name: str, paths: PromptPaths, wanted: str | None = None
    ) -> None:
        self.wanted = wanted
        self.comparison: Comparison | None = None
        self.found = False
        self.num_tokens = len(request.prompt)
        self.cached: int | None = None
        adapters = ",".join(f"{each.digest.hex()} {each.scale}" for each in request.adapters)
        self._key = (request.tenant, request.salt, adapters)
        self._reads_cache = request.params.prompt_logprobs is None
        self._page: int | None = None  # tokens of a page of the cache; None: the request does not use it
        source = prompt.source
        self._free = prompt.free
        self._prompt = Remembered(
            name,
            Rendered(source.conversation(), prompt.text),
            array("I", request.prompt).tobytes(),
            source.own_template,
            paths,
        )

    async def compare(self, model: ServedModel) -> None:
        """Compare the prompt with those of its key, and remember it. Long work runs off the event loop."""
        history, new, info = model.prompts, self._prompt, model.engine.info
        self._page = info.page_size if info.prefix_cache else None
        wanted = None if self.wanted is None else history.find(self._key, self.wanted)
        self.found = wanted is not None
        others = history.of(self._key) if wanted is None else [wanted]
        large = len(new.tokens) > _LOOP_BYTES
        nearest = await asyncio.to_thread(closest, others, new.tokens) if large else closest(others, new.tokens)
        history.add(self._key, new)
        if nearest is None:
            return
        old, common = nearest
        history.use(self._key, old.id)
        miss = None
        if common < min(old.num_tokens, new.num_tokens):
            miss = Miss()
            if old.own_template and new.own_template:
                miss = await asyncio.to_thread(_explained, model, old, new)
        self.comparison = Comparison(old, common, miss)

    def see(self, delta: Delta) -> None:
        """Count the cached tokens, which the first delta has."""
        if self.cached is None:
            self.cached = delta.cached_tokens

    @property
    def evicted(self) -> int:
        """Tokens of the common prefix that the cache did not have, although an earlier prompt began with them."""
        if self._page is None or self.cached is None or self.comparison is None or not self._reads_cache:
            return 0
        usable = min(self.comparison.common, self.num_tokens - 1) // self._page * self._page
        return max(0, usable - self.cached)

    @property
    def written(self) -> int:
        """Tokens of the prompt that were computed and put into the cache: those of whole pages."""
        if self._page is None or self.cached is None:
            return 0
        return max(0, self.num_tokens // self._page * self._page - self.cached)

    @property
    def missed(self) -> int:
        """Tokens that the compared prompt had in place of those that differ, at most as many as this prompt has."""
        if self.comparison is None:
            return 0
        return min(self.comparison.old.num_tokens, self.num_tokens) - self.comparison.common

    def free_header(self) -> Mapping[str, str]:
        """Return the header that names the tools whose schema is not enforced although one must be called."""
        return {UNENFORCED: ", ".join(self._free[:_MAX_FREE])} if self._free else {}

    def header(self) -> Mapping[str, str]:
        """Return the response header."""
        fields = {} if self.cached is None else {"hit": str(self.cached)}
        if self.comparison is not None:
            miss = self.comparison.miss
            fields["first-difference"] = "none" if miss is None else str(self.comparison.common)
            if miss is not None and miss.place is not None:
                fields["in"] = miss.place
                if miss.cause is not None and miss.cause != miss.place:
                    fields["cause"] = miss.cause
        if self.evicted:
            fields["evicted"] = str(self.evicted)
        shown = [f"{name}={quote(value[:_MAX_PATH], safe='[]')}" for name, value in fields.items()]
        return {CACHE: "; ".join(shown)} if shown else {}


def _explained(model: ServedModel, old: Remembered, new: Remembered) -> Miss:
    def render(conversation: Conversation) -> str:
        return rendered_again(model.client, conversation)

    tokenizer = model.client.tokenizer
    assert tokenizer is not None, "conversations without one are refused"
    form = normal_form(partial(tokenizer.encode, add_special_tokens=False))
    found = first_difference(old.rendered, new.rendered, render, form)
    if found is None:
        return Miss()
    return Miss(
        _change(found),
        new.paths.place(found, old.paths),
        new.paths.cause(found, old.paths),
        _appended(found, len(old.rendered.conversation.messages)),
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
