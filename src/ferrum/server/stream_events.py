"""From a job's news to server-sent events.

Chunks of one choice differ in little: but for the first and the last of them, mostly in their text alone. What stands
around it is kept as bytes, made of a chunk of the job's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydantic_core import to_json

from ferrum.engine.request_output import Delta
from ferrum.server.reply_bodies import Reply
from ferrum.server.reply_builder import ReplyBuilder

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

_MARK: Final = "\x01"
_MARK_JSON: Final = to_json(_MARK)


def event(data: bytes) -> bytes:
    """A line of JSON as an event."""
    return b"data: " + data + b"\n\n"


def sse(reply: Reply) -> bytes:
    """A chunk as an event."""
    return event(reply.json_bytes())


class EventWriter:
    """Writes the events of one job.

    Args:
        job: whose news they are.
    """

    def __init__(self, job: ReplyBuilder) -> None:
        self._job = job
        self._around: dict[tuple[int, int], tuple[bytes, bytes] | None] = {}

    def news(self, place: int, delta: Delta) -> bytes:
        """The events of a delta of the request at `place`. Raises FerrumError where the delta tells of a failure."""
        choice = (place, delta.index)
        if not self._job.uniform or choice not in self._around or not _is_text(delta):
            self._around.setdefault(choice, None)
            return b"".join(map(sse, self._job.push(place, delta)))
        around = self._around[choice]
        if around is None:
            around = self._around[choice] = self._surroundings(place, delta)
        self._job.tally.count(delta)
        before, after = around
        return before + to_json(delta.text) + after

    def _surroundings(self, place: int, delta: Delta) -> tuple[bytes, bytes]:
        """What stands before and after the text of a chunk of the delta's choice."""
        (chunk,) = self._job.push(place, replace(delta, text=_MARK, token_ids=()))
        before, _, after = sse(chunk).rpartition(_MARK_JSON)  # an id before it may be of the client's making
        return before, after

    def end(self) -> bytes:
        """The events after the last delta."""
        return b"".join(map(sse, self._job.end())) + DONE


def _is_text(delta: Delta) -> bool:
    """Whether there is text, and nothing else that a client might be told."""
    return bool(delta.text) and delta.finish_reason is None and delta.logprobs is None and delta.prompt_logprobs is None
