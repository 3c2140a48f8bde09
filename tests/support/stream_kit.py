"""Request streams with the fake tokenizer: events go in, deltas come out."""

from __future__ import annotations

from engine_fakes import LetterTokenizer, greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.client.output_stream import RequestStream
from ferrum.client.request_output import Delta, join
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import FinishReason, Request, TokenEvent

A, B = LetterTokenizer().encode("ab")


def open_stream(request: Request, *, text: bool = True) -> RequestStream:
    return RequestStream(request, "public", LetterTokenizer() if text else None, lambda: None)


def request_for(**options: object) -> Request:
    return input_processor().process("ab", greedy(1000, **options), RequestOptions(request_id="r", trace_id="t"))


def event(*tokens: int, finish: FinishReason | None = None, choice: int = 0, stop: int | None = None) -> TokenEvent:
    logprobs = tuple(TokenLogprobs(token, -token / 8, 2, ((1, -0.5), (token, -token / 8))) for token in tokens)
    return TokenEvent("r", choice, tokens, logprobs, finish_reason=finish, stop_reason=stop)


def deltas_of(stream: RequestStream) -> list[Delta]:
    found = []
    while (delta := stream.take()) is not None:
        found.append(delta)
    return found


def whole_of(deltas: list[Delta]) -> Delta:
    whole = deltas[0]
    for delta in deltas[1:]:
        whole = join(whole, delta)
    return whole
