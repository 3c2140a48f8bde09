"""The wire contract: each field changes something, is named as ignored, or is refused by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from pydantic import ValidationError

from agent_kit import CONSTRAINTS
from engine_fakes import VOCABULARY, FakeRecipe
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.server.common.json_bodies import Body
from ferrum.server.openai.fields import ChatRequest, CompletionRequest
from ferrum.server.tasks.embeddings import EmbeddingRequest
from ferrum.server.tasks.tokenize import DetokenizeRequest, TokenizeRequest
from serve_kit import USER, Served, chat_parts, error_of, events, serving

LOUD: Final = {"seed": 1, "ignore_eos": True, "max_tokens": 12}
"""A request with a long and deterministic text."""

SAMPLING: Final[dict[str, Any]] = {
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "seed": 2,
    "stop": ["a"],
    "stop_token_ids": [5],
    "bad_words": ["b"],
    "include_stop_str_in_output": True,
    "ignore_eos": False,
    "max_tokens": 5,
    "min_tokens": 2,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "repetition_penalty": 1.5,
    "no_repeat_ngram_size": 3,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 9,
    "dry_sequence_breakers": ["c"],
    "logit_bias": {"5": 10},
    "allowed_token_ids": [5, 6],
    "skip_special_tokens": False,
}
BOTH: Final[dict[str, Any]] = {
    **SAMPLING,
    "prompt_logprobs": 1,
    "stream": True,
    "cache_salt": "salt",
    "request_id": "mine",
    "truncate_prompt_tokens": 1,
    "return_token_ids": True,
}
CHAT: Final[dict[str, Any]] = {
    **BOTH,
    "messages": [{"role": "user", "content": "other"}],
    "logprobs": True,
    "add_generation_prompt": False,
    "chat_template": "x",
    "chat_template_kwargs": {"mood": "!"},
    "prediction": {"type": "content", "content": "x"},
}
COMPLETION: Final[dict[str, Any]] = {**BOTH, "prompt": "other", "logprobs": 1, "echo": True, "best_of": 3}
CHAT_NO_OPS: Final[dict[str, Any]] = {
    "user": "u",
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "service_tier": "auto",
    "store": True,
    "verbosity": "low",
    "spaces_between_special_tokens": True,
}
COMPLETION_NO_OPS: Final[dict[str, Any]] = {"user": "u", "spaces_between_special_tokens": True}
REFUSED: Final[dict[str, Any]] = {
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "documents": [{"text": "a"}],
    "audio": {},
    "web_search_options": {},
    "moderation": {},
    "logprob_token_ids": [1],
    "use_beam_search": True,
    "truncation_side": "right",
    "logits_processors": ["a"],
    "modalities": ["text", "audio"],
    "priority": 3,
}
NEEDS_ANOTHER: Final = {
    "model", "stream_options", "top_logprobs", "echo", "continue_final_message", "add_special_tokens",
    "return_tokens_as_token_ids", "reasoning_effort", "max_completion_tokens",
    "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call",
    "thinking_token_budget", "include_reasoning", "lora",
}  # fmt: skip
"""Fields that need others, adapters, or a model with tools and reasoning; separate tests cover them."""


def seen(server: Served, path: str, body: dict[str, Any]) -> Any:
    """Return the reply to a request, and the requests that the engine got."""
    server.requests.clear()
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    assert "x-ferrum-ignored" not in response.headers
    received = events(response) if body.get("stream") else {k: v for k, v in response.json().items() if k != "created"}
    if "request_id" not in body and isinstance(received, dict):
        del received["id"]
    return received, [(each.prompt, each.params, each.salt) for each in server.requests]


def base(path: str) -> dict[str, Any]:
    if path == "/v1/completions":
        return {"model": "fake", "prompt": "hello", **LOUD}
    return {"model": "fake", "messages": USER, **LOUD}


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        *(("/v1/chat/completions", field, value) for field, value in CHAT.items()),
        *(("/v1/completions", field, value) for field, value in COMPLETION.items()),
    ],
)
def test_field_changes_something(server: Served, path: str, field: str, value: Any) -> None:
    assert seen(server, path, base(path)) == seen(server, path, base(path))
    assert seen(server, path, {**base(path), field: value}) != seen(server, path, base(path))


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/chat/completions", CHAT_NO_OPS), ("/v1/completions", COMPLETION_NO_OPS)]
)
def test_field_without_effect_is_named(server: Served, path: str, fields: dict[str, Any]) -> None:
    body = {**base(path), **fields, "unheard_of": 1, "stream_options": {"include_obfuscation": True, "odd": 1}}
    response = server.post(path, **body, stream=True)
    assert response.status_code == 200
    named = set(response.headers["x-ferrum-ignored"].split(", "))
    assert named == {*fields, "unheard_of", "stream_options.include_obfuscation", "stream_options.odd"}


@pytest.mark.parametrize("field", REFUSED)
def test_unsupported_field_is_refused_by_name(server: Served, field: str) -> None:
    error = error_of(server.chat(**{field: REFUSED[field]}, stream=True), 400)
    assert error["param"] == field and error["code"] == "unsupported_parameter"


def test_null_equals_absent(server: Served) -> None:
    chat = dict.fromkeys(
        {*CHAT, *CHAT_NO_OPS, *CONSTRAINTS, *REFUSED, *NEEDS_ANOTHER} - {"messages", "model", "max_tokens"}
    )
    assert server.chat(**chat).status_code == 200
    completion = dict.fromkeys({*COMPLETION, "suffix", "stream_options"} - {"prompt", "max_tokens"})
    assert server.complete(**completion).status_code == 200


def test_every_field_of_the_document_is_covered() -> None:
    assert set(ChatRequest.model_fields) == {*CHAT, *CONSTRAINTS, *NEEDS_ANOTHER} | (
        set(ChatRequest.model_fields) & REFUSED.keys()
    )
    assert set(CompletionRequest.model_fields) <= {
        *COMPLETION, *COMPLETION_NO_OPS, *CONSTRAINTS, *NEEDS_ANOTHER, *REFUSED, "suffix"
    }  # fmt: skip
    assert {*ChatRequest.REFUSED, *CompletionRequest.REFUSED} <= REFUSED.keys()
    assert ChatRequest.NO_OPS.keys() == CHAT_NO_OPS.keys()
    assert CompletionRequest.NO_OPS.keys() == COMPLETION_NO_OPS.keys()


@pytest.mark.parametrize("body", [ChatRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest])
@pytest.mark.parametrize("wrong", [[{}] * 1000, [[{}] * 1000], {str(each): [] for each in range(1000)}])
def test_a_thousand_faults_of_a_field_are_not_listed(body: type[Body], wrong: Any) -> None:
    for name in body.model_fields:
        try:
            body.model_validate(
                {"model": "m", "prompt": "a", "input": "a", "tokens": [1], "messages": USER, name: wrong}
            )
        except ValidationError as error:
            assert error.error_count() < 10, name


def test_error_does_not_repeat_a_large_value(server: Served) -> None:
    error = error_of(server.complete(logit_bias={"5": ["x" * 1000] * 1000}), 400)
    assert error["param"] == "logit_bias" and len(error["message"]) < 1000


WRONG: Final[list[tuple[str, Any, str]]] = [
    ("n", 0, "n"),
    ("n", 129, "n"),
    ("n", True, "n"),
    ("n", "2", "n"),
    ("temperature", 2.1, "temperature"),
    ("temperature", -0.1, "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("top_k", -2, "top_k"),
    ("min_p", 1.5, "min_p"),
    ("seed", 2**63, "seed"),
    ("stop", "", "stop"),
    ("stop", ["a", ""], "stop"),
    ("stop", ["x"] * 65, "stop"),
    ("bad_words", ["x"] * 4097, "bad_words"),
    ("stop_token_ids", [97], "stop_token_ids"),
    ("bad_words", [" "], "bad_words"),
    ("min_tokens", 99, "min_tokens"),
    ("presence_penalty", 2.5, "presence_penalty"),
    ("frequency_penalty", -2.5, "frequency_penalty"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("no_repeat_ngram_size", -1, "no_repeat_ngram_size"),
    ("dry_multiplier", -1, "dry_multiplier"),
    ("dry_sequence_breakers", ["x" * 41], "dry_sequence_breakers"),
    ("logit_bias", {"a": 1}, "logit_bias"),
    ("logit_bias", {"97": 1}, "logit_bias"),
    ("logit_bias", {"1": 101}, "logit_bias"),
    ("allowed_token_ids", [], "allowed_token_ids"),
    ("prompt_logprobs", -2, "prompt_logprobs"),
    ("cache_salt", "", "cache_salt"),
    ("request_id", "", "request_id"),
    ("request_id", "a/b", "request_id"),
    ("request_id", "..", "request_id"),
    ("request_id", "a" * 513, "request_id"),
    ("truncate_prompt_tokens", 0, "truncate_prompt_tokens"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("stream", "yes", "stream"),
    ("response_format", {}, "response_format.type"),
]


@pytest.mark.parametrize(("field", "value", "param"), WRONG)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_invalid_value_is_refused_by_field_name(server: Served, path: str, field: str, value: Any, param: str) -> None:
    error = error_of(server.post(path, **{**base(path), field: value}), 400)
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert not server.requests


@pytest.mark.parametrize("number", [10**4300 - 1, 1 - 10**4300, 1e300], ids=["huge", "negative", "float"])
def test_error_does_not_repeat_thousands_of_digits(server: Served, number: float) -> None:
    fields = ("n", "top_k", "seed", "max_tokens", "min_tokens", "prompt_logprobs", "truncate_prompt_tokens", "priority")
    for field in (*fields, "best_of", "logprobs", "stop_token_ids", "allowed_token_ids", "prompt"):
        value = [int(number)] if field in ("stop_token_ids", "allowed_token_ids", "prompt") else number
        error = error_of(server.complete(**{field: value}), 400)
        assert error["param"] == field and len(error["message"]) < 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"max_completion_tokens": 100_000, "max_tokens": None}, "max_completion_tokens"),
        ({"max_completion_tokens": 3, "max_tokens": 9}, "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 5000}], "max_tokens": 100_000}, "messages"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"echo": True}, "echo"),
        ({"chat_template": "{% bad"}, "chat_template"),
    ],
)
def test_invalid_chat_is_refused_by_field_name(server: Served, body: dict[str, Any], param: str) -> None:
    assert error_of(server.chat(**body), 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 1, "n": 0}, "n"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": -1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"prompt": ["x", "x" * 5000]}, "prompt[1]"),
        ({"prompt": ["a" * 50] * 2, "n": 128, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": ["a" * 50] * 8, "n": 128, "echo": True, "logprobs": 5}, "logprobs"),
    ],
)
def test_invalid_completion_is_refused_by_field_name(server: Served, body: dict[str, Any], param: str) -> None:
    assert error_of(server.complete(**body), 400)["param"] == param


def test_integer_may_be_written_with_a_decimal_point(server: Served) -> None:
    """JSON Schema, the language of the document, counts 4.0 as an integer."""
    assert seen(server, "/v1/completions", base("/v1/completions")) == seen(
        server, "/v1/completions", {**base("/v1/completions"), "max_tokens": 12.0, "seed": 1.0}
    )
    ids = server.complete(prompt=[5.0, 6], max_tokens=1)
    assert ids.status_code == 200 and server.requests[-1].prompt == (5, 6)
    for value in (4.5, True, "4"):
        assert error_of(server.complete(max_tokens=value), 400)["param"] == "max_tokens"


def test_either_name_limits_the_tokens_of_a_chat(server: Served) -> None:
    for fields in ({"max_tokens": 3}, {"max_tokens": None, "max_completion_tokens": 3}):
        assert server.chat(**fields, ignore_eos=True).json()["usage"]["completion_tokens"] == 3
    assert server.chat(max_tokens=3, max_completion_tokens=3).status_code == 200


def test_last_message_is_continued_and_echoed(server: Served) -> None:
    messages = [*USER, {"role": "assistant", "content": "so"}]
    body = {"messages": messages, "continue_final_message": True, **LOUD}
    plain = server.chat(**body).json()["choices"][0]["message"]["content"]
    echoed = server.chat(**body, echo=True).json()["choices"][0]["message"]["content"]
    assert echoed == "so" + plain
    assert (
        server.http.post("/v1/chat/completions/render", json={"messages": messages, "continue_final_message": True})
        .json()["prompt"]
        .endswith("so")
    )


def test_strict_mode_refuses_only_unknown_fields() -> None:
    with serving(strict=True) as server:
        error = error_of(server.chat(unheard_of=1), 400)
        assert error["param"] == "unheard_of" and error["code"] == "unknown_parameter"
        assert error_of(server.chat(stream=True, stream_options={"odd": 1}), 400)["param"] == "stream_options.odd"
        assert server.chat(user="u").headers["x-ferrum-ignored"] == "user"


def test_a_field_without_a_name_is_reported_like_any_other(server: Served) -> None:
    assert server.chat(user="u", **{"": 1}).headers["x-ferrum-ignored"] == '"", user'


def test_max_logprobs_limits_top_tokens_on_every_route() -> None:
    with serving(max_logprobs=3) as server:
        for field in ("prompt_logprobs", "top_logprobs", "logprobs"):
            ask = server.complete if field == "logprobs" else partial(server.chat, logprobs=True)
            assert error_of(ask(**{field: 4}), 400)["param"] == field
            assert ask(**{field: 3}).status_code == 200
        assert error_of(server.complete(prompt_logprobs=-1), 400)["param"] == "prompt_logprobs"
        schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
        fields = schemas["CompletionRequest"]["properties"]
        counts = [fields[name]["anyOf"][0] for name in ("prompt_logprobs", "logprobs")]
        assert [(each["minimum"], each["maximum"]) for each in counts] == [(0, 3), (0, 3)]
    with serving(max_logprobs=VOCABULARY) as server:
        assert server.complete(prompt_logprobs=-1).status_code == 200
        schema = server.http.get("/openapi.json").json()["components"]["schemas"]["ChatRequest"]["properties"]
        all_tokens, top = (schema[name]["anyOf"][0] for name in ("prompt_logprobs", "top_logprobs"))
        assert (all_tokens["minimum"], top["maximum"]) == (-1, 20)


def test_priority_works_with_the_priority_policy() -> None:
    parts = chat_parts(FakeRecipe(policy="priority"))
    config = EngineConfig(model=ModelConfig(model="fake"), policy="priority")
    with serving(replace(parts, config=config)) as server:
        assert server.chat(priority=3).status_code == 200
        assert server.requests[0].priority == 3
        assert server.http.get("/v1/config").json()["engine"]["policy"] == "priority"


def test_default_max_tokens_is_cut_off_and_a_given_one_is_refused() -> None:
    with serving(chat_parts(sampling={"max_tokens": 4000, "min_tokens": 5})) as server:
        context = server.service.model().context
        long = [1] * (context - 3)
        assert server.complete(prompt=long, ignore_eos=True).json()["usage"]["completion_tokens"] == 3
        assert error_of(server.complete(prompt=long, max_tokens=16), 400)["code"] == "context_length_exceeded"
        assert server.chat(messages=[{"role": "user", "content": "x" * 1000}], max_tokens=None).status_code == 200
        assert server.complete(max_tokens=0, echo=True).status_code == 200
        assert server.complete(max_tokens=2, ignore_eos=True).json()["usage"]["completion_tokens"] == 2
        assert error_of(server.complete(max_tokens=2, min_tokens=3), 400)["param"] == "min_tokens"


def test_recommended_sampling_is_only_the_default() -> None:
    with serving(chat_parts(sampling={"temperature": 0.25, "max_tokens": 3})) as server:
        server.post("/v1/chat/completions", model="fake", messages=USER)
        server.complete(temperature=1)
        chat, completion = server.requests
        assert (chat.params.temperature, chat.params.max_tokens) == (0.25, 3)
        assert (completion.params.temperature, completion.params.max_tokens) == (1, 16)
