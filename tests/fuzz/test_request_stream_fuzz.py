"""`RequestStream` with tokens grouped into events at random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import LetterTokenizer
from ferrum.client.request_output import Usage
from ferrum.core.types import FinishReason
from stream_kit import A, B, deltas_of, event, open_stream, request_for, whole_of
from text_samples import first_stop


@given(
    tokens=st.lists(st.sampled_from([0, A, B, B + 1]), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 5), min_size=40, max_size=40),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3, unique=True),
    include=st.booleans(),
    slow=st.booleans(),
)
def test_grouping_of_tokens_into_events_does_not_change_the_output(
    tokens: list[int], cuts: list[int], stops: list[str], include: bool, slow: bool
) -> None:
    stream = open_stream(request_for(stop=stops, include_stop_str_in_output=include and bool(stops), logprobs=1))
    deltas, rest, ended_here = [], tokens, []
    for cut in cuts:
        head, rest = rest[:cut], rest[cut:]
        ended_here.append(stream.push(event(*head, finish=None if rest else FinishReason.LENGTH)))
        if not slow:
            deltas += deltas_of(stream)
        if not rest:
            break
    deltas += deltas_of(stream)
    whole = whole_of(deltas)

    text = LetterTokenizer().decode(tokens)
    stop = first_stop(text, stops)
    if stop is None:
        kept, shown, reason = len(tokens), text, FinishReason.LENGTH
        assert not any(ended_here)
    else:
        end, string = stop
        kept = next(n for n in range(1, len(tokens) + 1) if len(LetterTokenizer().decode(tokens[:n])) == end)
        shown, reason = text[: end if include else end - len(string)], FinishReason.STOP
    assert whole.token_ids == tuple(tokens[:kept])
    assert whole.text == shown
    assert whole.logprobs is not None and [next(iter(each)) for each in whole.logprobs] == tokens[:kept]
    assert (whole.finish_reason, whole.stop_reason) == (reason, None if stop is None else stop[1])
    assert whole.usage == Usage(prompt_tokens=2, completion_tokens=kept)
    assert [delta.finish_reason for delta in deltas].count(None) == len(deltas) - 1
