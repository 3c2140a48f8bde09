"""The incremental detokenizer against a plain definition of its result, on random bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrum.text.detokenizer import Detokenizer, StopStrings
from text_samples import PieceTokenizer, first_stop

some_bytes = st.one_of(
    st.binary(max_size=4),
    st.text("abé世🦀", max_size=3).map(str.encode),
    st.sampled_from("é世🦀".encode()).map(lambda byte: bytes([byte])),
)
some_pieces = st.lists(st.one_of(some_bytes, st.none()), max_size=12)
some_groups = st.lists(st.integers(0, 4), max_size=12)
some_stops = st.lists(st.text("abé世\ufffd", min_size=1, max_size=4), max_size=4)


def run(
    pieces: Sequence[bytes | None], groups: Sequence[int], **options: object
) -> tuple[list[str], int, str | None, str]:
    """Push the pieces in groups of these sizes and return deltas, kept, stop and rest."""
    detokenizer = Detokenizer(PieceTokenizer(pieces), **options)  # type: ignore[arg-type]
    borders = [0, *(border for border in accumulate(groups) if border < len(pieces)), len(pieces)]
    deltas, kept, stop = [], 0, None
    for start, end in pairwise(borders):
        delta = detokenizer.push(range(start, end))
        deltas.append(delta.text)
        kept += delta.kept
        stop = delta.stop or stop
    return deltas, kept, stop, detokenizer.finish()


@pytest.mark.contract("5.no character is cut")
@given(some_pieces, some_groups, st.booleans())
def test_without_stops_the_text_is_the_bytes_decoded_as_one(
    pieces: list[bytes | None], groups: list[int], skip: bool
) -> None:
    deltas, kept, stop, tail = run(pieces, groups, skip_special_tokens=skip)
    control = b"" if skip else b"<end>"
    data = b"".join(control if piece is None else piece for piece in pieces)
    assert "".join(deltas) + tail == data.decode("utf-8", "replace")
    assert (kept, stop) == (len(pieces), None)


@pytest.mark.contract("5.stop strings are found as tokens come")
@given(some_pieces, some_groups, some_stops, st.booleans(), st.integers(0, 4))
@example([b"abc"], [], ["abc", "b"], False, 0)
@example([b"ab\xe4", b"\xb8\x96"], [1], ["世"], False, 1)
@example([b"aab"], [], ["ab", "aac"], False, 0)
@example([b"a", b"a", b"a"], [], ["aa"], True, 2)
def test_stops_cut_by_definition_at_any_grouping(
    pieces: list[bytes | None], groups: list[int], stops: list[str], include: bool, spared: int
) -> None:
    deltas, kept, stop, tail = run(pieces, groups, stop=stops, include_stop=include, min_tokens=spared)
    prefixes = [b"".join(piece or b"" for piece in pieces[:count]) for count in range(len(pieces) + 1)]
    # The final text of a prefix, without U+FFFD for an incomplete character at its end.
    certain = [Detokenizer(PieceTokenizer([data])).push([0]).text for data in prefixes]
    found = first_stop(certain[-1], stops, after=len(certain[min(spared, len(pieces))]))
    if found is None:
        assert "".join(deltas) + tail == prefixes[-1].decode("utf-8", "replace")
        assert (kept, stop) == (len(pieces), None)
    else:
        end, string = found
        assert "".join(deltas) + tail == certain[-1][: end if include else end - len(string)]
        assert stop == string
        assert kept == next(count for count, text in enumerate(certain) if len(text) >= end)


@given(some_pieces, some_stops)
def test_text_is_held_only_while_it_may_become_a_stop(pieces: list[bytes | None], stops: list[str]) -> None:
    detokenizer, plain = (Detokenizer(PieceTokenizer(pieces), stop=strings) for strings in (stops, ()))
    shown = text = ""
    for token in range(len(pieces)):
        delta = detokenizer.push([token])
        text += plain.push([token]).text
        shown += delta.text
        if delta.stop is not None:
            return
        starts = [text[place:] for place in range(len(text))]
        pending = (start for start in starts if any(stop.startswith(start) for stop in stops))
        assert shown == text.removesuffix(max(pending, key=len, default=""))


@given(st.text("ab", max_size=40), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=6))
def test_automaton_agrees_with_endswith(text: str, strings: list[str]) -> None:
    automaton, state = StopStrings(strings), 0
    for end in range(1, len(text) + 1):
        state = automaton.advance(state, text[end - 1])
        found = [string for string in strings if text[:end].endswith(string)]
        assert automaton.match(state) == max(found, key=len, default=None)
