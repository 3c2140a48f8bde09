"""Events are the bytes of their chunks, although most of them reuse the bytes around their text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine_fakes import LetterTokenizer, greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.client.request_output import Delta, Logprob
from ferrum.core.types import FinishReason
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.generation import EventWriter
from ferrum.server.chat.turn import ReplyHeader
from ferrum.server.common.json_bodies import Reply
from ferrum.server.openai.builders import ChatReplyBuilder, CompletionReplyBuilder, usage_of
from ferrum.server.openai.fields import ChatRequest, CompletionRequest
from ferrum.server.openai.routes import OPENAI

HEAD = ReplyHeader('cmpl-\x01"text":"\x01"', 1, "model", "numerics")
"""An id that contains the bytes of a chunk's text field."""

TEXTS = ["one", 'a "quoted" \\ word', "\x01", "", "\n\u2028é", "🦀", "</script>", "data: \n\n"]


def completion(**options: Any) -> CompletionReplyBuilder:
    body = CompletionRequest(model="model", prompt="p", stream=True, n=2, **options)
    request = input_processor().process([1], greedy(n=2), RequestOptions(request_id="r"))
    return CompletionReplyBuilder(HEAD, body, Asked((request,)), ["echoed"], LetterTokenizer())


def chat(**options: Any) -> ChatReplyBuilder:
    body = ChatRequest(model="model", messages=[{"role": "user", "content": "p"}], stream=True, n=2, **options)
    request = input_processor().process([1], greedy(n=2), RequestOptions(request_id="r"))
    return ChatReplyBuilder(HEAD, body, Asked((request,)), ["echoed"], LetterTokenizer())


def deltas() -> list[Delta]:
    """Two choices in turns: texts, one of them with log-probabilities, and an end."""
    made = [Delta("r", place % 2, (5, 6), text) for place, text in enumerate(TEXTS * 2)]
    made[9] = replace(made[9], logprobs=({5: Logprob(-1.0, 1, "%")}, {6: Logprob(-2.0, 3, "&")}))
    ends = [Delta("r", index, (7,), "end", finish_reason=FinishReason.LENGTH) for index in range(2)]
    return made + ends


OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"return_token_ids": True},
]


def _event(chunk: Reply) -> bytes:
    return b"data: " + chunk.json_bytes() + b"\n\n"


@pytest.mark.parametrize("make", [completion, chat])
@pytest.mark.parametrize("options", OPTIONS)
def test_events_are_the_bytes_of_their_chunks(make: Any, options: dict[str, Any]) -> None:
    written = make(**options)
    twin = make(**options)
    events = EventWriter(written, OPENAI)
    for delta in deltas():
        twin.add(0, delta)
        assert events.write(0, delta) == b"".join(_event(chunk) for chunk in twin.chunks(0, delta))
    usage = b"".join(map(_event, twin.end_chunks()))
    assert events.end() == usage + b"data: [DONE]\n\n" and bool(usage) == bool(options.get("stream_options"))
    assert usage_of(written.usage) == usage_of(twin.usage)
