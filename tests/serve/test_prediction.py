"""`prediction`: the reply is the same, and the usage says how much of it was foreseen."""

from __future__ import annotations

from typing import Any

import pytest

from serve_kit import Served, error_of, events

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0}


def foreseen(reply: dict[str, Any]) -> tuple[int, int]:
    details = reply["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def test_a_prediction_changes_nothing_but_the_usage(server: Served) -> None:
    plain = server.chat(**ASK).json()
    text = plain["choices"][0]["message"]["content"]
    assert foreseen(plain) == (0, 0)
    length = len(text)  # a token is a letter here
    assert length > 6
    for prediction, expected in ((text, (length, 0)), (text[:5] + "?" * 14, (5, 14)), ("?" * 24, (0, 24))):
        predicted = server.chat(**ASK, prediction={"type": "content", "content": prediction}).json()
        assert predicted["choices"] == plain["choices"]
        assert foreseen(predicted) == expected
    parts = [{"type": "text", "text": text}]
    assert foreseen(server.chat(**ASK, prediction={"type": "content", "content": parts}).json()) == (length, 0)


def test_every_choice_is_measured_against_the_prediction(server: Served) -> None:
    text = server.chat(**ASK).json()["choices"][0]["message"]["content"]
    both = server.chat(**ASK, n=2, prediction={"type": "content", "content": text + "more"}).json()
    assert foreseen(both) == (2 * len(text), 8)


def test_a_streams_last_usage_tells_of_it_too(server: Served) -> None:
    text = server.chat(**ASK).json()["choices"][0]["message"]["content"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    last = events(server.chat(**ASK, **options, prediction={"type": "content", "content": text}))[-2]
    assert foreseen(last) == (len(text), 0)


@pytest.mark.parametrize(
    "prediction", [{"type": "content"}, {"type": "text", "content": "x"}, {"type": "content", "content": []}, "x"]
)
def test_what_is_no_prediction_is_refused_by_name(server: Served, prediction: Any) -> None:
    assert str(error_of(server.chat(**ASK, prediction=prediction), 400)["param"]).startswith("prediction")


def test_a_prediction_beyond_the_context_is_refused_as_a_prompt_is(server: Served) -> None:
    error = error_of(server.chat(**ASK, prediction={"type": "content", "content": "x" * 5000}), 400)
    assert (error["param"], error["code"]) == ("prediction", "context_length_exceeded")
