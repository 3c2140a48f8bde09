"""`PromptHistory`: the last prompts of each API key, which later ones are compared with.

Each has the `PromptPaths` of its parts in the client's body. Where two prompts differ is found in `prefix_difference`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ferrum.client.diagnosis.prefix_difference import Difference, Place, Rendered, common_prefix

MAX_BYTES: Final = 64 << 20
"""Of all remembered prompts; a prompt of 30,000 tokens takes about 400 KB."""
MAX_PROMPTS: Final = 1024
MAX_PER_KEY: Final = 64
TOKEN_BYTES: Final = 4
_OVERHEAD: Final = 1024

Key: TypeAlias = tuple[str, str, str]
"""A tenant, a cache salt, and adapters: prompts of different ones share no prefix."""

Fragment: TypeAlias = tuple[str, int]
"""The path of a part of a message in the body, and a hash of what it contributes."""

VARIABLES: Final = "chat_template_kwargs"


@dataclass(frozen=True, slots=True)
class PromptPaths:
    """The paths of a prompt's parts.

    Attributes:
        messages: for each message what it was put together from.
        tools: of each tool.
        variables: of variables of the template, by name; others are in `chat_template_kwargs`.
        list: the field with the conversation.
    """

    messages: Sequence[Sequence[Fragment]] = ()
    tools: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    list: str = "messages"

    def place(self, difference: Difference, old: PromptPaths) -> str:
        """Return the path of the place in which a difference to an older prompt stands."""
        return self._path(difference.place, old, exact=difference.cause == difference.place)

    def cause(self, difference: Difference, old: PromptPaths) -> str:
        """Return the path of what changed, or `template`."""
        return "template" if difference.cause is None else self._path(difference.cause, old, exact=True)

    def _path(self, place: Place, old: PromptPaths, *, exact: bool) -> str:
        """Return the path of a place; `exact`: what differs from `old` there is the part of a message."""
        if place.kind == "variable":
            flag = place.name in ("add_generation_prompt", "continue_final_message")
            own = place.name if flag else f"{VARIABLES}.{place.name}"
            return self.variables.get(place.name) or old.variables.get(place.name) or own
        if place.kind == "tool":
            return self.tools[place.index] if place.index < len(self.tools) else "tools"
        if place.kind == "message":
            return self._message(place.index, old.messages if exact else ())
        return place.kind

    def _message(self, index: int, old: Sequence[Sequence[Fragment]]) -> str:
        new = self.messages[index] if index < len(self.messages) else ()
        before = old[index] if index < len(old) else ()
        if not new:
            return self.list
        hashes = [each for _, each in before]
        changed = (path for at, (path, each) in enumerate(new) if at >= len(hashes) or hashes[at] != each)
        return next(changed, new[-1][0])


def fragments(sources: Sequence[Sequence[tuple[str, Any]]]) -> list[list[Fragment]]:
    """Return the fragments of messages, from the paths and values that each was put together from.

    Hashes are those of the values' representations, and the same in this process only.
    """
    return [[(path, hash(repr(value))) for path, value in each] for each in sources]


@dataclass(frozen=True, slots=True)
class Remembered:
    """A prompt.

    Attributes:
        id: of its reply.
        tokens: ids, 4 bytes each.
        own_template: it was rendered with the model's own template.
        paths: of its parts in the client's body.
        size: bytes in memory, about.
    """

    id: str
    rendered: Rendered
    tokens: bytes
    own_template: bool
    paths: PromptPaths
    size: int = field(init=False)

    def __post_init__(self) -> None:
        texts = _bytes(self.rendered.text) + self.rendered.conversation.size * _width(self.rendered.text)
        object.__setattr__(self, "size", texts + len(self.tokens) + _size(self.paths) + _OVERHEAD)

    @property
    def num_tokens(self) -> int:
        """The length of the prompt."""
        return len(self.tokens) // TOKEN_BYTES


def _size(paths: PromptPaths) -> int:
    fragments = sum(150 + len(path) for each in paths.messages for path, _ in each)
    return fragments + sum(80 + len(path) for path in paths.tools)


def _bytes(text: str) -> int:
    return len(text) * _width(text)


def _width(text: str) -> int:
    """Return the bytes of a character in memory: Python stores a text in the width of its widest character."""
    return 1 if text.isascii() else 4


class PromptHistory:
    """The last prompts of each key; the least recently used ones are dropped first. For one thread.

    Args:
        max_bytes: limit of all prompts.
        max_prompts: limit of their number.
        max_per_key: limit of the prompts of one key.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, max_prompts: int = MAX_PROMPTS, max_per_key: int = MAX_PER_KEY
    ) -> None:
        self._max_bytes, self._max_prompts, self._max_per_key = max_bytes, max_prompts, max_per_key
        self._prompts: OrderedDict[tuple[Key, str], Remembered] = OrderedDict()
        self._by_key: dict[Key, OrderedDict[str, Remembered]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, key: Key, prompt: Remembered) -> None:
        """Remember a prompt, unless it is larger than all together may be."""
        if prompt.size > self._max_bytes:
            return
        self._drop(key, prompt.id)
        self._prompts[key, prompt.id] = prompt
        own = self._by_key.setdefault(key, OrderedDict())
        own[prompt.id] = prompt
        self.size += prompt.size
        if len(own) > self._max_per_key:
            self._drop(key, next(iter(own)))
        while self.size > self._max_bytes or len(self._prompts) > self._max_prompts:
            self._drop(*next(iter(self._prompts)))

    def _drop(self, key: Key, name: str) -> None:
        prompt = self._prompts.pop((key, name), None)
        if prompt is None:
            return
        own = self._by_key[key]
        del own[name]
        if not own:
            del self._by_key[key]
        self.size -= prompt.size

    def find(self, key: Key, name: str) -> Remembered | None:
        """Return a prompt of the key by the id of its reply."""
        own = self._by_key.get(key)
        return None if own is None else own.get(name)

    def of(self, key: Key) -> list[Remembered]:
        """Return the prompts of a key, the last one first."""
        own = self._by_key.get(key)
        return [] if own is None else list(reversed(own.values()))

    def use(self, key: Key, name: str) -> None:
        """Keep a prompt for longer: a later one was compared with it."""
        if (key, name) in self._prompts:
            self._prompts.move_to_end((key, name))
            self._by_key[key].move_to_end(name)


def closest(prompts: Sequence[Remembered], tokens: bytes) -> tuple[Remembered, int] | None:
    """Return the prompt with the longest common prefix, the first of equal ones, and the prefix's number of tokens."""
    best, length = None, -1
    for each in prompts:
        # Most prompts differ early, where the comparison ends.
        if length > 0 and each.tokens[:length] != tokens[:length]:
            continue
        found = common_prefix(each.tokens, tokens)
        if found > length:
            best, length = each, found
    return None if best is None else (best, length // TOKEN_BYTES)
