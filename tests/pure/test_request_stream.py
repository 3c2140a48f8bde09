"""`RequestStream`: from token events to deltas with text, stop strings and one final delta per choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_fakes import EOS, LetterTokenizer, greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.client.output_stream import RequestStream
from ferrum.client.request_output import Collector, Delta, Usage, join
from ferrum.core.errors import EngineDead, NonFiniteLogits, StepError
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import FinishReason, TokenEvent
from stream_kit import A, B, deltas_of, event, open_stream, request_for, whole_of


def test_stop_string_ends_a_choice_that_the_engine_still_runs() -> None:
    stream = open_stream(request_for(stop=["b"]))
    assert not stream.push(event(A))
    assert stream.push(event(A, B, A))
    assert stream.finished and not stream.settled
    assert not stream.push(event(B))
    assert not stream.push(event(finish=FinishReason.ABORT))
    assert stream.settled
    whole = whole_of(deltas_of(stream))
    assert (whole.text, whole.token_ids, whole.finish_reason) == ("aa", (A, A, B), FinishReason.STOP)


@pytest.mark.parametrize(("token", "reason"), [(EOS, None), (B, B)])
def test_stop_token_is_in_the_ids_and_not_in_the_text(token: int, reason: int | None) -> None:
    stream = open_stream(request_for(stop_token_ids=[B], skip_special_tokens=False))
    stream.push(event(A, token, finish=FinishReason.STOP, stop=reason))
    [delta] = deltas_of(stream)
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("a", (A, token), reason)


def test_held_back_text_comes_with_the_last_delta() -> None:
    stream = open_stream(request_for(stop=["abc"]))
    stream.push(event(A, B))
    [held] = deltas_of(stream)
    assert (held.text, held.token_ids) == ("", (A, B))
    stream.push(event(finish=FinishReason.ABORT))
    assert whole_of(deltas_of(stream)).text == "ab"


def test_slow_client_gets_one_delta_per_choice_and_usage_in_the_last() -> None:
    stream = open_stream(request_for(n=2))
    for _ in range(100):
        stream.push(event(A, choice=1))
        stream.push(event(B, B, choice=0))
    stream.push(event(finish=FinishReason.LENGTH, choice=0))
    stream.push(event(finish=FinishReason.LENGTH, choice=1))
    first, last = deltas_of(stream)
    assert (first.index, first.text, first.usage) == (0, "b" * 200, None)
    assert (last.index, last.text, last.usage) == (1, "a" * 100, Usage(2, 300))


def test_unread_output_is_not_copied_at_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0

    def counted(first: Delta, second: Delta) -> Delta:
        nonlocal copied
        joined = join(first, second)
        copied += len(joined.token_ids)
        return joined

    monkeypatch.setattr("ferrum.client.output_stream.join", counted)
    stream = open_stream(request_for())
    tokens = [A, B, B] * 1000
    for token in tokens:
        stream.push(event(token))
    stream.push(event(finish=FinishReason.LENGTH))
    [delta] = deltas_of(stream)
    assert (delta.token_ids, delta.text) == (tuple(tokens), "abb" * 1000)
    assert copied < 3000 * 12, "each token is copied about log2(number of tokens) times"


def test_without_a_tokenizer_deltas_have_ids_and_no_text() -> None:
    stream = open_stream(
        input_processor(text=False).process([A], greedy(logprobs=0), RequestOptions(request_id="r")), text=False
    )
    stream.push(event(A, B, finish=FinishReason.LENGTH))
    [delta] = deltas_of(stream)
    assert (delta.text, delta.token_ids) == (None, (A, B))
    assert delta.logprobs is not None and delta.logprobs[0][A].decoded_token is None


def test_logprobs_have_rank_and_text_with_the_chosen_token_first() -> None:
    stream = open_stream(request_for(logprobs=2, prompt_logprobs=1))
    stream.push(replace(event(A), prompt_logprobs=(TokenLogprobs(B, -3.0, 9, ((A, -1.0),)),)))
    [delta] = deltas_of(stream)
    assert delta.logprobs is not None and delta.prompt_logprobs is not None
    [position] = delta.logprobs
    assert [(t, p.logprob, p.rank, p.decoded_token) for t, p in position.items()] == [
        (A, -A / 8, 2, "a"),
        (1, -0.5, 1, " "),
    ]
    assert delta.prompt_logprobs[0] is None and list(delta.prompt_logprobs[1] or ()) == [B, A]


def test_choices_share_the_prompt_logprobs() -> None:
    stream = open_stream(request_for(n=2, prompt_logprobs=1))
    for choice in range(2):
        stream.push(replace(event(A, choice=choice), prompt_logprobs=(TokenLogprobs(B, -0.5, 1),)))
    first, second = (delta.prompt_logprobs for delta in deltas_of(stream))
    assert first is not None and first[1] is not None and first[1][B].decoded_token == "b"
    assert first is second, "they are as long as the prompt, and a request may have 128 choices"


def test_failure_ends_only_unfinished_choices() -> None:
    stream = open_stream(request_for(n=3))
    stream.push(event(A, finish=FinishReason.LENGTH, choice=1))
    stream.push(TokenEvent("r", 2, finish_reason=FinishReason.ERROR, error=NonFiniteLogits("nan")))
    stream.fail(EngineDead("gone"))
    stream.fail(EngineDead("gone again"))
    ends = {delta.index: delta for delta in deltas_of(stream)}
    assert isinstance(ends[0].error, EngineDead) and ends[0].finish_reason is FinishReason.ERROR
    assert ends[1].error is None
    assert isinstance(ends[2].error, NonFiniteLogits)
    assert [delta.usage is not None for delta in ends.values()] == [False, False, True]


def test_collected_output_is_the_fold_of_the_deltas() -> None:
    request = request_for(n=2, logprobs=0)
    stream, collector = open_stream(request), Collector("public", "ab", request.prompt, request.arrival)
    for each in (event(A), event(B, choice=1), event(B, finish=FinishReason.LENGTH)):
        stream.push(each)
        for delta in deltas_of(stream):
            collector.push(delta, 101.0)
    stream.push(event(finish=FinishReason.ABORT, choice=1))
    for delta in deltas_of(stream):
        collector.push(delta, 102.0)
    output = collector.output(103.0)
    assert (output.request_id, output.prompt, output.prompt_token_ids) == ("public", "ab", [A, B])
    assert [(each.index, each.text, each.token_ids, each.finish_reason) for each in output.outputs] == [
        (0, "ab", [A, B], "length"),
        (1, "b", [B], "abort"),
    ]
    assert output.outputs[0].cumulative_logprob == pytest.approx(-(A + B) / 8)
    assert output.metrics.first_token_time == 101.0 and output.metrics.usage == Usage(2, 3)
    assert output.metrics.seed == request.seed


def test_failure_to_fold_the_last_event_still_ends_the_choice() -> None:
    """Without a last delta the client would wait for ever."""

    class Forgetful(LetterTokenizer):
        def token_text(self, token_id: int) -> str:
            raise ValueError(f"no token {token_id}")

    stream = RequestStream(request_for(logprobs=0), "public", Forgetful(), lambda: None)
    with pytest.raises(ValueError, match="no token"):
        stream.push(event(A, finish=FinishReason.LENGTH))
    stream.fail(StepError("folded"))
    (delta,) = deltas_of(stream)
    assert delta.finish_reason is FinishReason.ERROR and isinstance(delta.error, StepError) and stream.finished
