"""`PromptPaths`: which field of the client's body each part of a prompt comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ferrum.client.prefix_diagnosis import Difference, Place
from ferrum.core.errors import RequestError

Fragment: TypeAlias = tuple[str, int]
"""The path of a part of a message in the body, and a hash of what it contributes."""

VARIABLES: Final = "chat_template_kwargs"


def fragment(path: str, value: Any) -> Fragment:
    """Return the path of a JSON value with its hash, which is the same in this process only."""
    return path, hash(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


@contextmanager
def named_in_body(sources: Sequence[Sequence[Fragment]], conversation: str = "messages") -> Iterator[None]:
    """Name the fields of the client's body in errors about messages of the engine.

    Args:
        sources: for each message what it was put together from.
        conversation: the field with the conversation.
    """
    try:
        yield
    except RequestError as error:
        found = re.match(r"messages(?:\[(\d+)\])?(?!\w)", error.param or "")
        if found is None:
            raise
        own = sources[int(found[1])] if found[1] is not None and int(found[1]) < len(sources) else ()
        path = own[-1][0] if own else conversation
        if path == found[0]:
            raise
        raise error.about(path) from None


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
