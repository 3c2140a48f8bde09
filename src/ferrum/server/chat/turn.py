"""From the engine's deltas to a reply. Streams and whole replies are the same fold.

A `Turn` is one choice as it grows, in the items that clients see: reasoning, content, and calls of tools. A
`ReplyBuilder` is what a dialect writes about them. How replies are sent is in `generation`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic_core import from_json

from ferrum.client.request_output import Delta, join_all
from ferrum.core.errors import StepError
from ferrum.core.types import FinishReason, Request
from ferrum.core.values import readable_json
from ferrum.formats.output_parts import Part, PartKind, new_id
from ferrum.server.chat.ask import Asked
from ferrum.server.common.error_replies import CancelledError, DeadlineError
from ferrum.server.common.json_bodies import Reply

Finish: TypeAlias = Literal["stop", "length"]
"""How a choice ended."""

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]

CACHE: Final = "x-ferrum-cache"
"""Header with the tokens from the prefix cache and, if it is explained, the first difference to an earlier prompt."""

UNENFORCED: Final = "x-ferrum-unenforced"
"""Header with the names of tools that must be called, whose schema cannot be enforced."""

_MAX_FREE: Final = 32
_MAX_PATH: Final = 128

Piece = TypeVar("Piece")


class Step(Enum):
    """What a delta does to an item."""

    BEGUN = "begun"
    GROWN = "grown"
    ENDED = "ended"


@dataclass(slots=True)
class Item:
    """A part of a choice's output.

    Attributes:
        kind: REASONING, CONTENT or CALL.
        choice: index of the choice.
        place: of the item in the choice.
        name: of a called tool.
        number: of a call in the choice, from 0.
        id: of a call: the model's, or a new one.
        texts: its text so far, in pieces; of a call its arguments.
        status: `incomplete` if a limit cut it.
        whole: the model ended the call; one that is not is cut in its arguments.
    """

    kind: PartKind
    choice: int
    place: int
    name: str = ""
    number: int = 0
    id: str = ""
    texts: list[str] = field(default_factory=list)
    status: Status = "in_progress"
    whole: bool = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


class Turn:
    """The output of one choice so far.

    Args:
        reply_id: ids of calls are made from it, unless the model writes them.
        choice: its index in the reply.
        prefix: of ids that are made.

    Attributes:
        items: so far, the last of which may be growing.
        finish: how the choice ended; None while it goes on.
        last: the last delta.
        deltas: those that were kept for a whole reply.
    """

    def __init__(self, reply_id: str, choice: int = 0, prefix: str = "") -> None:
        self.items: list[Item] = []
        self.finish: Finish | None = None
        self.last: Delta | None = None
        self.deltas: list[Delta] = []
        self._reply_id = reply_id
        self._choice = choice
        self._prefix = prefix
        self._open: Item | None = None

    def steps(self, delta: Delta) -> Iterator[tuple[Step, Item, str]]:
        """Add a delta; yield what it does to the items, with the text by which one grows.

        Raises:
            FerrumError: the choice was cancelled, timed out or failed.
        """
        self.last, parts = delta, delta.parts
        if parts is None:
            parts = (Part(PartKind.CONTENT, delta.text),) if delta.text else ()
        for part in parts:
            if part.kind is PartKind.END:
                if self._open is not None:
                    self._open.whole = True
                yield from self._close("completed")
            elif part.kind is PartKind.CALL:
                yield from self._close("completed")
                yield Step.BEGUN, self._begin(part), ""
            elif part.text:
                kind = PartKind.CALL if part.kind is PartKind.ARGUMENTS else part.kind
                item = self._open
                if item is None or item.kind is not kind:
                    yield from self._close("completed")
                    item = self._begin(part)
                    yield Step.BEGUN, item, ""
                item.texts.append(part.text)
                yield Step.GROWN, item, part.text
        self.finish = finish_of(delta)
        if self.finish is not None:
            yield from self._close("incomplete" if self.finish == "length" else "completed")

    def _begin(self, part: Part) -> Item:
        item = self._open = Item(part.kind, self._choice, len(self.items))
        if part.kind is PartKind.CALL:
            item.name, item.number = part.text, len(self.calls)
            item.id = part.id or self._prefix + new_id(self._reply_id, self._choice, item.number)
        self.items.append(item)
        return item

    def _close(self, status: Status) -> Iterator[tuple[Step, Item, str]]:
        item, self._open = self._open, None
        if item is not None:
            item.status = status
            yield Step.ENDED, item, ""

    @property
    def calls(self) -> list[Item]:
        """The calls so far."""
        return [each for each in self.items if each.kind is PartKind.CALL]

    @property
    def called(self) -> bool:
        """Whether it has called a tool, by a call that was not cut."""
        return any(each.whole for each in self.items)

    def text(self, kind: PartKind) -> str | None:
        """Return the text of all items of a kind; None if there are none."""
        found = [each.text for each in self.items if each.kind is kind]
        return "".join(found) if found else None

    def joined(self) -> Delta:
        """Return the kept deltas as one."""
        return join_all(self.deltas)


class Counts:
    """Tokens and times of a reply: those of its prompts once, those of all its choices.

    Args:
        requests: of the reply.
        page: tokens of a page of the prefix cache; None: there is none.

    Attributes:
        prompt, completion, reasoning: tokens so far; those of reasoning are known at the end of a request.
        accepted, rejected: tokens of a prediction, known at the end.
        arrival, scheduled, first, last: monotonic seconds of the request, of its first step, and of the first and the
            last token that were sent.
    """

    def __init__(self, requests: Sequence[Request], page: int | None = None) -> None:
        self.prompt = sum(len(request.prompt) for request in requests)
        self.completion = self.reasoning = self.accepted = self.rejected = 0
        self.arrival = requests[0].arrival
        self.scheduled: float | None = None
        self.first: float | None = None
        self.last: float | None = None
        self._page = page
        self._cached: dict[int, int] = {}

    def count(self, place: int, delta: Delta) -> None:
        """Add the tokens of a delta of the request at `place`."""
        self.last = time.monotonic()
        if delta.scheduled is not None and self.first is None:
            self.scheduled = delta.scheduled
        if delta.token_ids:
            self.completion += len(delta.token_ids)
            if self.first is None:
                self.first = self.last
        if place not in self._cached:
            self._cached[place] = delta.cached_tokens
        if delta.usage is not None:
            self._cached[place] = delta.usage.cached_tokens
            self.accepted += delta.usage.accepted_prediction_tokens
            self.rejected += delta.usage.rejected_prediction_tokens
            self.reasoning += delta.usage.reasoning_tokens

    @property
    def cached(self) -> int:
        """Tokens of the prompts from the prefix cache, known from the first delta on."""
        return sum(self._cached.values())

    @property
    def written(self) -> int:
        """Tokens of a prompt that were computed and put into the cache: those of whole pages."""
        if self._page is None or not self._cached:
            return 0
        return max(0, self.prompt // self._page * self._page - self.cached)


def finish_of(delta: Delta) -> Finish | None:
    """Return how a choice ended, None if it goes on.

    Raises:
        FerrumError: it was cancelled, timed out or failed.
    """
    match delta.finish_reason:
        case None:
            return None
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.ABORT:
            raise CancelledError("the request was cancelled")
        case FinishReason.DEADLINE:
            raise DeadlineError("the request exceeded the server's time limit (--request-seconds)")
        case FinishReason.ERROR:
            raise delta.error or StepError("the step failed")


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a call; of text that ends early, those that are whole."""
    try:
        arguments = from_json(readable_json(text), allow_partial=True)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


# What a dialect makes of it


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What all chunks of a reply share; `fingerprint` names the arithmetic."""

    id: str
    created: int
    model: str
    fingerprint: str


class ReplyBuilder(Generic[Piece]):
    """Builds the reply to one client's request.

    Args:
        header: of every chunk.
        asked: the engine's requests for it.

    Attributes:
        CALL_PREFIX: of the ids of calls.
        uniform: chunks with nothing but text differ only in that text.
        id: of the reply.
        asked: see above.
        requests: for the engine, one per prompt.
        usage: tokens so far.
        turns: the choices that have begun, by place of the request and index.
    """

    CALL_PREFIX: ClassVar[str] = ""
    uniform: bool = False

    def __init__(self, header: ReplyHeader, asked: Asked) -> None:
        self.id = header.id
        self.requests = asked.requests
        self.usage = Counts(asked.requests, asked.page)
        self.turns: dict[tuple[int, int], Turn] = {}
        self.asked = asked

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        """Return headers of the response; `first` is the first delta, None if something was sent before it."""
        if not self.asked.chat:
            return {}
        cached = None if first is None else first.cached_tokens
        fields = {} if cached is None else {"hit": str(cached)}
        if self.asked.explanation is not None:
            fields |= self.asked.explanation.fields(cached)
        shown = "; ".join(f"{name}={quote(value[:_MAX_PATH], safe='[]')}" for name, value in fields.items())
        free = ", ".join(self.asked.free[:_MAX_FREE])
        return ({CACHE: shown} if shown else {}) | ({UNENFORCED: free} if free else {})

    def add(self, place: int, delta: Delta) -> None:
        """Count a delta of the request at `place`. Raises the FerrumError that ended its choice."""
        finish_of(delta)
        self.usage.count(place, delta)

    def turn(self, place: int, index: int) -> Turn:
        """Return a choice, which begins if it has not."""
        key = (place, index)
        if key not in self.turns:
            self.turns[key] = Turn(self.id, index, self.CALL_PREFIX)
        return self.turns[key]

    def pieces(self, place: int, delta: Delta) -> Iterator[Piece]:
        """Yield what the dialect writes about the items for a delta that was added."""
        for step, item, text in self.turn(place, delta.index).steps(delta):
            if step is Step.GROWN:
                yield from self.grown(item, text)
            else:
                yield from self.begun(item) if step is Step.BEGUN else self.ended(item)

    def fold(self, place: int, delta: Delta) -> None:
        """Add a delta to a reply that is sent whole. Raises as `add`."""
        self.add(place, delta)
        turn = self.turn(place, delta.index)
        turn.deltas.append(delta)
        for _ in turn.steps(delta):
            pass

    def begun(self, item: Item) -> Iterable[Piece]:  # noqa: ARG002 - for dialects that write it
        """Return what is written when an item begins."""
        return ()

    def grown(self, item: Item, text: str) -> Iterable[Piece]:  # noqa: ARG002 - for dialects that write it
        """Return what is written for new text of an item."""
        return ()

    def ended(self, item: Item) -> Iterable[Piece]:  # noqa: ARG002 - for dialects that write it
        """Return what is written when an item ends."""
        return ()

    def chunks(self, place: int, delta: Delta) -> Iterable[Reply]:
        """Return the chunks of a stream for a delta that was added."""
        raise NotImplementedError

    def end_chunks(self) -> Iterable[Reply]:
        """Return the chunks after the last delta."""
        raise NotImplementedError

    def whole(self) -> Reply:
        """Return the whole reply, after the last delta was folded."""
        raise NotImplementedError
