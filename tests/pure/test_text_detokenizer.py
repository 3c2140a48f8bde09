"""The incremental detokenizer against a plain definition of its result."""

from __future__ import annotations

import pytest

from ferrum.core.errors import InvalidToken, RequestError
from ferrum.text.detokenizer import Detokenizer, stop_strings
from ferrum.text.tokenizer import FileTokenizer
from ferrum.text.tokenizer_config import TokenizerConfig
from text_samples import LAYOUTS, LINES, PieceTokenizer, byte_fallback, byte_level


def test_stop_inside_accepted_draft_tokens_limits_kept() -> None:
    detokenizer = Detokenizer(PieceTokenizer([b"one ", b"ST", b"OP", b" two"]), stop=["STOP"])
    delta = detokenizer.push([0, 1, 2, 3])
    assert (delta.text, delta.kept, delta.stop) == ("one ", 3, "STOP")
    after = detokenizer.push([3])
    assert (after.text, after.kept, after.stop) == ("", 0, None)
    assert detokenizer.finish() == ""


def test_stop_may_begin_but_not_end_in_the_first_min_tokens() -> None:
    detokenizer = Detokenizer(PieceTokenizer([b"STOP S", b"TO", b"P!"]), stop=["STOP"], min_tokens=2)
    delta = detokenizer.push([0, 1, 2])
    assert (delta.text, delta.kept, delta.stop) == ("STOP ", 3, "STOP")


def test_finish_returns_an_incomplete_stop_string() -> None:
    detokenizer = Detokenizer(PieceTokenizer([b"a\n", b"\n", b"\xf0\x9f"]), stop=["\n\nQ:"])
    assert [detokenizer.push([token]).text for token in range(3)] == ["a", "", ""]
    assert detokenizer.finish() == "\n\n\ufffd"


@pytest.mark.parametrize("stop", [[""], ["a", ""], "abc"])
def test_empty_and_bare_stops_are_rejected(stop: list[str] | str) -> None:
    with pytest.raises(RequestError) as caught:
        Detokenizer(PieceTokenizer([]), stop=stop)
    assert caught.value.param == "stop"


@pytest.mark.parametrize("build", [byte_level, byte_fallback])
@pytest.mark.parametrize("line", LINES)
def test_generated_text_continues_the_prompt(build: object, line: str) -> None:
    assert callable(build)
    tokenizer = FileTokenizer(build(), TokenizerConfig())
    ids = tokenizer.encode(line)
    prompt = next(count for count in range(2, len(ids)) if "\ufffd" not in tokenizer.decode(ids[:count]))
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.push([token]).text for token in ids[prompt:]) + detokenizer.finish()
    assert tokenizer.decode(ids[:prompt]) + text == line


@pytest.mark.parametrize("layout", LAYOUTS)
def test_invalid_token_id_is_rejected(layout: str) -> None:
    detokenizer = Detokenizer(FileTokenizer(LAYOUTS[layout](), TokenizerConfig()))
    with pytest.raises(InvalidToken):
        detokenizer.push([-1])


def test_equal_stop_strings_share_one_automaton() -> None:
    first = stop_strings(["ab", "c"])
    assert stop_strings(("ab", "c")) is first and stop_strings(["ab"]) is not first
