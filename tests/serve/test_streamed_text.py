"""Joined deltas are the whole text, for random tokens of a real vocabulary and stop strings from their text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from engine_fakes import greedy
from ferrum.client.input_processor import InputProcessor
from ferrum.client.output_stream import RequestStream
from ferrum.client.request_output import Delta
from ferrum.core.types import FinishReason, Request
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.text.detokenizer import Detokenizer
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import FileTokenizer, load_tokenizer
from stream_kit import deltas_of, event, whole_of
from text_samples import first_stop


class Streams:
    """Random requests with the built-in tokenizer."""

    def __init__(self, seed: int) -> None:
        tokenizer = load_tokenizer(DirectoryFiles(resolve_model(BUILT_IN)))
        assert tokenizer is not None
        self.tokenizer: FileTokenizer = tokenizer
        self.pick = random.Random(seed)
        vocabulary = range(tokenizer.vocab_size)
        self.input_processor = InputProcessor(vocab_size=len(vocabulary), max_sequence_length=4096, tokenizer=tokenizer)
        # Parts of characters are rare in a vocabulary, but the likeliest source of errors.
        self.parts = [i for i in vocabulary if tokenizer.token_bytes(i)[:1] > b"\x7f"]
        self.vocabulary = vocabulary

    def tokens(self) -> list[int]:
        draw = (self.vocabulary, self.parts or self.vocabulary)
        return [self.pick.choice(draw[self.pick.random() < 0.3]) for _ in range(self.pick.randint(1, 24))]

    def stops(self, text: str) -> list[str]:
        """Return up to three strings: from the text, nearly from it, or unrelated."""
        found: list[str] = []
        for _ in range(self.pick.randint(0, 3)):
            start = self.pick.randrange(len(text) + 1)
            stop = text[start : start + self.pick.randint(1, 6)] or "\ufffd"
            found.append(stop if self.pick.random() < 0.7 else stop + self.pick.choice("xé\ufffd"))
        return found

    def run(self, request: Request, tokens: Sequence[int], *, cut: bool) -> list[Delta]:
        """Return the deltas of a request that generates these tokens, in one event or in events of one to five."""
        stream = RequestStream(request, "public", self.tokenizer, lambda: None)
        deltas: list[Delta] = []
        slow = self.pick.random() < 0.3
        rest = list(tokens)
        while rest:
            size = self.pick.randint(1, 5) if cut else len(rest)
            head, rest = rest[:size], rest[size:]
            stream.push(event(*head, finish=None if rest else FinishReason.LENGTH))
            deltas += [] if slow else deltas_of(stream)
        return deltas + deltas_of(stream)

    def check(self) -> None:
        tokens = self.tokens()
        skip, include = self.pick.random() < 0.5, self.pick.random() < 0.3
        text = self.tokenizer.decode(tokens, skip_special_tokens=skip)
        stops = self.stops(text)
        params = greedy(1000, stop=stops, include_stop_str_in_output=include, logprobs=1, skip_special_tokens=skip)
        request = self.input_processor.process([1], params)
        streamed = whole_of(self.run(request, tokens, cut=True))
        whole = whole_of(self.run(request, tokens, cut=False))
        assert (streamed.text, streamed.token_ids, streamed.logprobs) == (whole.text, whole.token_ids, whole.logprobs)
        assert (streamed.finish_reason, streamed.stop_reason) == (whole.finish_reason, whole.stop_reason)
        certain = Detokenizer(self.tokenizer, skip_special_tokens=skip).push(tokens).text
        found = first_stop(certain, stops)
        if found is None:
            assert streamed.text == text and streamed.token_ids == tuple(tokens)
        else:
            end, stop = found
            assert streamed.text == certain[: end if include else end - len(stop)]
            assert streamed.stop_reason == stop


def test_two_thousand_random_streams_equal_their_texts() -> None:
    streams = Streams(1)
    for _ in range(2000):
        streams.check()


@pytest.mark.soak
def test_a_hundred_thousand_random_streams_equal_their_texts() -> None:
    streams = Streams(2)
    for _ in range(100_000):
        streams.check()
