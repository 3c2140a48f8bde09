"""`prediction`: the reply does not change, and the usage counts the predicted tokens."""

from __future__ import annotations

from typing import Any

import pytest

from serve_kit import Served, error_of, events

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0}


def predicted_tokens(reply: dict[str, Any]) -> tuple[int, int]:
    details = reply["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def test_prediction_changes_only_the_usage(server: Served) -> None:
    plain = server.chat(**ASK).json()
    text = plain["choices"][0]["message"]["content"]
    assert predicted_tokens(plain) == (0, 0)
    length = len(text)  # a token is a letter here
    assert length > 6
    for prediction, expected in ((text, (length, 0)), (text[:5] + "?" * 14, (5, 14)), ("?" * 24, (0, 24))):
        predicted = server.chat(**ASK, prediction={"type": "content", "content": prediction}).json()
        assert predicted["choices"] == plain["choices"]
        assert predicted_tokens(predicted) == expected
    parts = [{"type": "text", "text": text}]
    assert predicted_tokens(server.chat(**ASK, prediction={"type": "content", "content": parts}).json()) == (length, 0)


def test_every_choice_counts_against_the_prediction(server: Served) -> None:
    text = server.chat(**ASK).json()["choices"][0]["message"]["content"]
    both = server.chat(**ASK, n=2, prediction={"type": "content", "content": text + "more"}).json()
    assert predicted_tokens(both) == (2 * len(text), 8)


def test_final_usage_of_a_stream_counts_predicted_tokens(server: Served) -> None:
    text = server.chat(**ASK).json()["choices"][0]["message"]["content"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    last = events(server.chat(**ASK, **options, prediction={"type": "content", "content": text}))[-2]
    assert predicted_tokens(last) == (len(text), 0)


@pytest.mark.parametrize(
    "prediction", [{"type": "content"}, {"type": "text", "content": "x"}, {"type": "content", "content": []}, "x"]
)
def test_invalid_predictions_are_refused_by_name(server: Served, prediction: Any) -> None:
    assert str(error_of(server.chat(**ASK, prediction=prediction), 400)["param"]).startswith("prediction")


def test_prediction_beyond_the_context_is_refused(server: Served) -> None:
    error = error_of(server.chat(**ASK, prediction={"type": "content", "content": "x" * 5000}), 400)
    assert (error["param"], error["code"]) == ("prediction", "context_length_exceeded")
