"""The judge of wire forms: streams in other pieces are equal, and every other change is named."""

from __future__ import annotations

from typing import Any

import pytest

from wire_forms import differences, joined, normal

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def chunk(text: str, index: int = 0, **choice: Any) -> dict[str, Any]:
    return {"data": {"choices": [{"index": index, "text": text, "finish_reason": None, **choice}]}}


def test_pieces_of_other_sizes_and_order_are_equal() -> None:
    whole = joined([chunk("abc"), chunk("xy", 1), chunk("", finish_reason="stop", stop_reason=None)])
    parts = [chunk("a"), chunk("x", 1), chunk("b"), chunk("y", 1), chunk("c", finish_reason="stop", stop_reason=None)]
    assert joined(parts) == whole and len(whole) == 2


def test_tokens_are_compared_whatever_piece_has_them() -> None:
    one = joined([chunk("ab", token_ids=[1, 2]), chunk("c", token_ids=[3])])
    assert joined([chunk("a", token_ids=[1]), chunk("bc", token_ids=[2, 3])]) == one
    assert joined([chunk("a", token_ids=[1]), chunk("bc", token_ids=[2])]) != one


def test_other_fields_and_events_between_keep_pieces_apart() -> None:
    assert len(joined([chunk("a"), {"data": {"type": "ping"}}, chunk("b")])) == 3
    assert len(joined([chunk("a"), chunk("b", extra=1)])) == 2
    assert len(joined([{"data": {"type": "a", "text": "x"}}, {"data": {"type": "b", "text": "y"}}])) == 2


def test_ids_keep_their_equality_and_times_go() -> None:
    def reply(one: str, other: str) -> Any:
        return normal({"reply": {"id": one, "item_id": other, "text": f"no {other}", "created": len(one)}}, {})

    assert reply("msg_0123456789", "msg_0123456789") == reply("msg_abcdefghijk", "msg_abcdefghijk")
    assert reply("msg_0123456789", "msg_0123456789") != reply("msg_0123456789", "msg_abcdefghijk")


def test_every_difference_is_named() -> None:
    old = {"a": {"status": 200, "headers": {"x": "1"}, "reply": [1, {"n": 1}]}}
    new = {"a": {"status": 200, "headers": {}, "reply": [1, {"n": 1.0}]}, "b": {}}
    assert list(differences(old, new, "", frozenset())) == [
        '.a.headers.x: only before: "1"',
        ".a.reply[1].n: 1 -> 1.0",
        ".b: only now: {}",
    ]
    assert len(list(differences(old, new, "", frozenset({"x", "b"})))) == 1
