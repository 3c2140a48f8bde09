"""What is sent of a stream is its chunks to the byte, though most of them are written around their text alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine_fakes import LetterTokenizer, greedy, input_processor
from ferrum.core.types import FinishReason
from ferrum.engine.request_output import Delta, Logprob
from ferrum.server.chat_completions import ChatReplyBuilder
from ferrum.server.completions import CompletionReplyBuilder
from ferrum.server.reply_builder import ReplyBuilder, ReplyHeader, TokenNamer
from ferrum.server.request_bodies import ChatRequest, CompletionRequest
from ferrum.server.stream_events import EventWriter, sse

HEAD = ReplyHeader('cmpl-\x01"text":"\x01"', 1, "model", "numerics")
"""A client may have named its request so that a chunk's text could be mistaken for its id."""

TEXTS = ["one", 'a "quoted" \\ word', "\x01", "", "\n\u2028é", "🦀", "</script>", "data: \n\n"]


def completion(**options: Any) -> CompletionReplyBuilder:
    body = CompletionRequest(model="model", prompt="p", stream=True, n=2, **options)
    request = input_processor().process([1], greedy(n=2), request_id="r")
    return CompletionReplyBuilder(HEAD, body, [request], 2, SimpleNamespace(tokenizer=LetterTokenizer()), ["echoed"])


def chat(**options: Any) -> ChatReplyBuilder:
    body = ChatRequest(model="model", messages=[{"role": "user", "content": "p"}], stream=True, n=2, **options)
    request = input_processor().process([1], greedy(n=2), request_id="r")
    return ChatReplyBuilder(HEAD, body, request, TokenNamer(LetterTokenizer(), by_id=False), "echoed")


def deltas() -> list[Delta]:
    """Two choices by turns: texts, one of them with log-probabilities, and an end."""
    told = [Delta("r", place % 2, (5, 6), text) for place, text in enumerate(TEXTS * 2)]
    told[9] = replace(told[9], logprobs=({5: Logprob(-1.0, 1, "%")}, {6: Logprob(-2.0, 3, "&")}))
    ends = [Delta("r", index, (7,), "end", finish_reason=FinishReason.LENGTH) for index in range(2)]
    return told + ends


OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"return_token_ids": True},
]


@pytest.mark.parametrize("make", [completion, chat])
@pytest.mark.parametrize("options", OPTIONS)
def test_events_are_the_chunks_to_the_byte(make: Any, options: dict[str, Any]) -> None:
    written: ReplyBuilder = make(**options)
    twin: ReplyBuilder = make(**options)
    events = EventWriter(written)
    for delta in deltas():
        assert events.news(0, delta) == b"".join(map(sse, twin.push(0, delta)))
    assert events.end() == b"".join(map(sse, twin.end())) + b"data: [DONE]\n\n"
    assert written.tally.usage() == twin.tally.usage()
