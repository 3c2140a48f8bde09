"""The builders of replies to chats and completions: lines of a stream, and whole replies from the same pieces."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrum.client.request_output import Delta
from ferrum.core.types import Request
from ferrum.formats.output_parts import Part, PartKind, new_id
from ferrum.server.common.argument_objects import arguments_of
from ferrum.server.common.generation import finish_of
from ferrum.server.common.reply_builder import Finish, PromptNotes, ReplyHeader
from ferrum.server.ollama.replies import (
    CalledFunction,
    ChatReply,
    Generated,
    GenerateReply,
    Message,
    ToolCall,
    written_time,
)

_NANOSECONDS: Final = 1_000_000_000


@dataclass(slots=True)
class Counts:
    """Tokens and times of a reply so far; times are in monotonic seconds."""

    prompt: int
    arrival: float
    completion: int = 0
    scheduled: float | None = None
    first: float | None = None
    last: float | None = None

    def add(self, delta: Delta) -> None:
        """Count a delta."""
        now = time.monotonic()
        self.completion += len(delta.token_ids)
        if delta.scheduled is not None and self.first is None:
            self.scheduled = delta.scheduled
        if delta.token_ids and self.first is None:
            self.first = now
        self.last = now

    def fields(self) -> dict[str, int]:
        """Return the fields of the last line. No duration is 0: clients divide by them."""
        end = self.arrival if self.last is None else self.last
        begun = self.arrival if self.scheduled is None else self.scheduled
        first = end if self.first is None else self.first
        return {
            "total_duration": _nanoseconds(end - self.arrival),
            "load_duration": 0,
            "prompt_eval_count": self.prompt,
            "prompt_eval_duration": _nanoseconds(first - begun),
            "eval_count": self.completion,
            "eval_duration": _nanoseconds(end - first),
        }


def _nanoseconds(seconds: float) -> int:
    return max(1, round(seconds * _NANOSECONDS))


class OllamaBuilder:
    """What the builders of both routes share.

    Args:
        header: of every line.
        request: of the engine.
        notes: on the prompt of a conversation.
    """

    uniform = True

    def __init__(self, header: ReplyHeader, request: Request, notes: PromptNotes | None) -> None:
        self.id = header.id
        self._notes = notes
        self.requests: tuple[Request, ...] = (request,)
        self.usage = Counts(len(request.prompt), request.arrival)
        self._header: dict[str, Any] = {"model": header.model, "created_at": written_time(header.created)}
        self._finish: Finish | None = None
        self._call: tuple[str, str, list[str]] | None = None
        self._num_calls = 0

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        """Return headers of the response."""
        return {} if self._notes is None else self._notes.headers(first)

    def add(self, place: int, delta: Delta) -> None:  # noqa: ARG002 - a `ReplyBuilder` may need the place
        """Count a delta. Raises the FerrumError that ended its choice."""
        self._finish = finish_of(delta)
        self.usage.add(delta)

    def chunks(self, place: int, delta: Delta) -> Iterator[Generated]:  # noqa: ARG002 - see `add`
        """Yield a line for each piece of a delta."""
        for fields in self._pieces(delta):
            yield self._line(fields, done=False)

    def end_chunks(self) -> Iterable[Generated]:
        """Return the last line, which has the counts."""
        return [self._line({}, done=True)]

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> Generated:
        """Return the whole reply: the pieces of a stream joined, with the fields of its last line."""
        [delta] = choices.values()
        whole: dict[str, Any] = {}
        for fields in self._pieces(delta):
            for name, value in fields.items():
                whole[name] = whole[name] + value if name in whole else value
        return self._line(whole, done=True)

    def _line(self, fields: Mapping[str, Any], *, done: bool) -> Generated:
        ended = {"done": True, "done_reason": self._finish, **self.usage.fields()} if done else {"done": False}
        return self._with({"content": "", **fields}, {**self._header, **ended})

    def _with(self, fields: Mapping[str, Any], about: Mapping[str, Any]) -> Generated:
        """Return a reply with the fields of a message."""
        raise NotImplementedError

    def _pieces(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the fields of a message for what is new. A call is sent whole; one that is cut off is not."""
        if delta.parts is None:
            if delta.text:
                yield {"content": delta.text}
            return
        for part in delta.parts:
            if part.kind is PartKind.CONTENT:
                yield {"content": part.text}
            elif part.kind is PartKind.REASONING:
                yield {"thinking": part.text}
            else:
                yield from self._calls([part])

    def _calls(self, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
        for part in parts:
            if part.kind is PartKind.CALL:
                self._call = (part.text, part.id, [])
            elif part.kind is PartKind.ARGUMENTS and self._call is not None:
                self._call[2].append(part.text)
            elif part.kind is PartKind.END and self._call is not None:
                name, call_id, arguments = self._call
                number, self._call, self._num_calls = self._num_calls, None, self._num_calls + 1
                function = CalledFunction(index=number, name=name, arguments=arguments_of("".join(arguments)))
                yield {"tool_calls": [ToolCall(id=call_id or new_id(self.id, 0, number), function=function)]}


class ChatBuilder(OllamaBuilder):
    """Builds the reply to a chat."""

    def _with(self, fields: Mapping[str, Any], about: Mapping[str, Any]) -> ChatReply:
        return ChatReply(**about, message=Message(role="assistant", **fields))


class GenerateBuilder(OllamaBuilder):
    """Builds the reply to a completion, which has no calls."""

    def _with(self, fields: Mapping[str, Any], about: Mapping[str, Any]) -> GenerateReply:
        texts = {"response" if name == "content" else name: value for name, value in fields.items()}
        return GenerateReply(**about, **texts)
