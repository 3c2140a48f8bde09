"""llama.cpp's /infill: the prompt of the model's infill tokens, and replies whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from engine_fakes import FakeRecipe, LetterTokenizer, MarkedTokenizer, expected
from serve_kit import Served, chat_parts, serving


@pytest.fixture(scope="module")
def filling() -> Iterable[Served]:
    with serving(replace(chat_parts(FakeRecipe(fails=False)), tokenizer=MarkedTokenizer())) as served:
        yield served


def events(response: Any) -> list[Any]:
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


def test_the_prompt_is_that_of_the_model_card(filling: Served) -> None:
    filling.requests.clear()
    body = {"input_prefix": "ab", "input_suffix": "yz", "prompt": "c", "n_predict": 8, "temperature": 0}
    reply = filling.post("/infill", **body, input_extra=[{"filename": "d", "text": "e"}, {"text": "f"}])
    assert reply.status_code == 200, reply.text
    [request] = filling.requests
    one = LetterTokenizer().encode
    assert request.prompt == (0, 90, *one("d\ne\nf\nab"), 91, *one("yz"), 92, *one("c"))
    assert reply.json()["content"] == LetterTokenizer().decode(expected(request))
    assert (reply.json()["stop"], reply.json()["tokens_evaluated"]) == (True, len(request.prompt))


def test_streams_fold_into_the_reply(filling: Served) -> None:
    for seed in range(10):
        body = {"input_prefix": "a" * seed, "input_suffix": "z", "n_predict": 6, "seed": seed, "return_tokens": True}
        whole = filling.post("/infill", **body).json()
        *pieces, last = events(filling.post("/infill", **body, stream=True))
        assert "".join(each["content"] for each in pieces) == whole["content"] and last["content"] == ""
        assert not any(each["stop"] for each in pieces) and last["stop"]
        for name in ("tokens_predicted", "tokens_evaluated", "stop_type", "stopping_word", "model", "truncated"):
            assert last[name] == whole[name]
        assert len(whole["tokens"]) == whole["tokens_predicted"]


def test_the_end_of_a_reply_has_its_reason(filling: Served) -> None:
    body = {"input_prefix": "ab", "input_suffix": "z", "temperature": 0, "ignore_eos": True, "n_predict": 8}
    whole = filling.post("/infill", **body).json()
    assert whole["stop_type"] == "limit" and whole["tokens_predicted"] == 8
    word = whole["content"][2]
    stopped = filling.post("/infill", **body, stop=[word]).json()
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == whole["content"][: whole["content"].index(word)]


def test_rules_about_repetitions_have_the_names_of_llama_cpp(filling: Served) -> None:
    filling.requests.clear()
    dry: dict[str, Any] = {"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": 64}
    repeated = {**dry, "dry_sequence_breakers": ["x"], "no_repeat_ngram_size": 4}
    filling.post("/infill", input_prefix="a", n_predict=1, **repeated)
    params = filling.requests[0].params
    assert {name: getattr(params, name) for name in repeated} == {**repeated, "dry_sequence_breakers": ("x",)}


def test_what_is_not_served_is_named(filling: Served, server: Served) -> None:
    reply = filling.post("/infill", input_prefix="a", n_predict=1, cache_prompt=True, mood=1, samplers=["top_k"])
    assert reply.headers["x-ferrum-ignored"] == "cache_prompt, mood, samplers"
    for body, field in (
        ({"n_probs": 3}, "n_probs"),
        ({"grammar": "root ::= 'a'"}, "grammar"),
        ({"top_p": 2}, "top_p"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"dry_base": 0}, "dry_base"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_predict": 10**6}, "n_predict"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
    ):
        error = filling.post("/infill", **{"input_prefix": "a", **body}).json()["error"]
        assert error["code"] == 400 and error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"{field}: "), error
    refused = server.post("/infill", input_prefix="a").json()["error"]
    assert refused["code"] == 400 and "no fill-in-the-middle tokens" in refused["message"]
