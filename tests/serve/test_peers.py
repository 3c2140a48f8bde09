"""What clients of other servers send and read; docs/server.md has the decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_fakes import EOS, LetterTokenizer
from ferrum.core.errors import ConfigError
from ferrum.server.common.error_replies import INSTEAD
from ferrum.server.common.field_rules import HARMLESS
from ferrum.server.common.served_model import truncated
from ferrum.server.openai.fields import ChatRequest
from serve_kit import USER, Served, chat_parts, error_of, serving


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": [1] * 10, "max_tokens": 10_000}, "max_tokens"),
        ("/v1/completions", {"prompt": [1] * 10_000, "max_tokens": 1}, "prompt"),
        ("/v1/chat/completions", {"messages": USER, "max_completion_tokens": 10_000}, "max_completion_tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 10_000}]}, "messages"),
        ("/v1/embeddings", {"input": [1] * 10_000}, "input"),
        ("/v1/responses", {"input": "x" * 10_000}, "input"),
    ],
)
def test_context_errors_use_the_words_that_clients_search(
    server: Served, path: str, fields: dict[str, Any], param: str
) -> None:
    error = error_of(server.post(path, model="fake", **fields), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert (
        f"maximum context length is {server.service.model().context} tokens. However, you requested "
        in error["message"]
    )
    assert " in the prompt, " in error["message"] and " for the completion)" in error["message"]


def test_message_that_the_template_leaves_out_is_refused_by_its_path(tmp_path: Path) -> None:
    """No dialect loses the text of a message silently."""
    file = tmp_path / "last.jinja"
    file.write_text("{{ messages[-1].content }}")
    first, *rest = turns = [
        {"role": role, "content": f"text {role} {place}"} for place, role in enumerate(("user", "assistant", "user"))
    ]
    with serving(chat_parts(), chat_template=str(file)) as served:
        common = {"model": "fake", "max_tokens": 1}
        assert error_of(served.chat(messages=turns), 400)["param"] == "messages[0].content"
        items = served.post("/v1/responses", model="fake", input=[first, *rest])
        assert error_of(items, 400)["param"] == "input[0]"
        message = served.post("/v1/messages", **common, messages=turns).json()["error"]["message"]
        assert message.startswith("messages[0]")
        assert "messages[0]" in served.post("/api/chat", model="fake", messages=turns).json()["error"]
        assert (
            served.post("/api/generate", model="fake", system="Be brief.", prompt="a")
            .json()["error"]
            .startswith("system")
        )
        body = {"messages": turns, "chat_template": file.read_text()}
        assert served.post("/v1/chat/completions/render", **body).json()["prompt"] == "text user 2"
        assert served.chat(messages=[first]).status_code == 200


def test_no_top_tokens_need_no_logprobs(server: Served) -> None:
    """Some clients send the defaults of all fields."""
    for logprobs in ({}, {"logprobs": False}, {"logprobs": None}):
        reply = server.chat(top_logprobs=0, **logprobs)
        assert reply.json()["choices"][0]["logprobs"] is None
        assert error_of(server.chat(top_logprobs=1, **logprobs), 400)["param"] == "top_logprobs"


@pytest.mark.parametrize(
    ("field", "value"), [(name, value) for name in ChatRequest.REFUSED for value in HARMLESS.get(name, ())]
)
def test_value_that_asks_for_nothing_is_served(server: Served, field: str, value: object) -> None:
    reply = server.chat(temperature=0, **{field: value})
    assert reply.status_code == 200 and "x-ferrum-ignored" not in reply.headers
    assert reply.json()["choices"] == server.chat(temperature=0).json()["choices"]
    if field == "documents":
        for route in ("/v1/chat/completions/render", "/tokenize"):
            assert server.post(route, messages=USER, **{field: value}).status_code == 200


@pytest.mark.parametrize("field", ["logits_processors", "use_beam_search", "truncation_side"])
def test_field_that_would_change_the_output_is_never_ignored(server: Served, field: str) -> None:
    for path, fields in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": USER})):
        error = error_of(server.post(path, model="fake", **fields, **{field: "x"}), 400)
        assert (error["code"], error["param"]) == ("unsupported_parameter", field)


@pytest.mark.parametrize("field", ["guided_regex", "regex", "grammar", "ebnf"])
def test_constraint_of_another_server_holds(server: Served, field: str) -> None:
    grammar = "xy" if "regex" in field else 'root ::= "x" "y"'
    assert server.complete(**{field: grammar}).json()["choices"][0]["text"] == "xy"
    assert server.chat(**{field: grammar}).json()["choices"][0]["message"]["content"] == "xy"


def test_empty_stop_list_and_best_of_zero_count_as_absent(server: Served) -> None:
    plain = server.complete(temperature=0).json()["choices"]
    for fields in ({"stop": []}, {"best_of": 0}, {"best_of": 0, "stream": False}):
        assert server.complete(temperature=0, **fields).json()["choices"] == plain


def test_negative_max_tokens_is_refused_with_the_alternative(server: Served) -> None:
    error = error_of(server.chat(max_tokens=-1), 400)
    assert error["param"] == "max_tokens" and "leave it out" in error["message"]


@pytest.mark.parametrize("name", ChatRequest.NO_OPS)
def test_field_without_effect_takes_any_value(server: Served, name: str) -> None:
    for value in (5, "x" * 65, {"a": 1}, {str(number): [number] for number in range(17)}, [], False):
        assert server.chat(**{name: value}).headers["x-ferrum-ignored"] == name


def test_head_is_served_wherever_get_is(server: Served) -> None:
    for path in ("/v1/models", "/v1/models/fake", "/v1/config", "/version", "/metrics", "/health", "/"):
        reply = server.http.head(path)
        assert (reply.status_code, reply.content) == (200, b""), path
    assert server.http.head("/v1/models/other").status_code == 404


def test_trailing_slash_is_ignored(server: Served) -> None:
    assert server.http.get("/v1/models/").json() == server.http.get("/v1/models").json()
    assert server.http.get("/v1/models/fake/").json()["id"] == "fake"
    assert server.http.get("/health/").status_code == 200
    assert server.post("/v1/completions/", model="fake", prompt="a", max_tokens=1).status_code == 200


def test_missing_route_under_a_wrong_base_names_the_right_one(server: Served) -> None:
    for base in ("", "/api/v1", "/v1/v1", "/openai"):
        error = error_of(server.post(f"{base}/chat/completions", messages=USER), 404)
        assert "base URL" in error["message"] and "sends /v1/chat/completions" in error["message"]
    of_ollama = server.post("/api/chat/completions", messages=USER).json()["error"]
    assert "base URL" in of_ollama and "sends /v1/chat/completions" in of_ollama
    assert "/v1/models" in error_of(server.http.get("/models"), 404)["message"]
    assert error_of(server.http.get("/elsewhere"), 404)["message"].endswith("GET /openapi.json lists all routes")


@pytest.mark.parametrize("instead", INSTEAD)
def test_missing_route_of_another_api_names_the_one_that_serves_it(server: Served, instead: str) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    routes = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    method, path = instead.split(",")[0].split()
    assert (method, path) in routes
    for missing in INSTEAD[instead]:
        error = server.http.request(method, missing).json()["error"]
        message = error if missing.startswith("/api/") else error["message"]
        assert f"{missing} is not served; use {instead}" in message


def test_empty_text_is_the_begin_token(server: Served, unfailing: Served) -> None:
    unfailing.requests.clear()
    assert unfailing.complete(prompt="", max_tokens=1).status_code == 200
    assert unfailing.complete(prompt=["a", ""], max_tokens=1).status_code == 200
    assert unfailing.post("/v1/embeddings", model="fake", input="").status_code == 200
    begin = tuple(unfailing.post("/tokenize", prompt="").json()["tokens"])
    assert [each.prompt for each in unfailing.requests if len(each.prompt) == 1] == [begin] * 3
    assert error_of(unfailing.complete(prompt="", add_special_tokens=False), 400)["param"] == "prompt"
    assert error_of(server.complete(prompt=""), 400)["param"] == "prompt"  # its tokenizer has no begin token


def test_model_has_several_names_and_may_be_left_out() -> None:
    with serving(served_model_name=("gpt-4o", "local/model")) as server:
        assert [each["id"] for each in server.http.get("/v1/models").json()["data"]] == ["gpt-4o", "local/model"]
        for name in ("gpt-4o", "local/model"):
            assert server.http.get(f"/v1/models/{name}").json()["id"] == name
        for path, fields in (
            ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
            ("/v1/chat/completions", {"messages": USER, "max_tokens": 1}),
            ("/v1/embeddings", {"input": "a"}),
            ("/tokenize", {"prompt": "a"}),
            ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
        ):
            for model in ({}, {"model": None}, {"model": "gpt-4o"}, {"model": "local/model"}):
                reply = server.post(path, **fields, **model)
                assert reply.status_code == 200 and reply.json().get("model", "gpt-4o") == "gpt-4o"
            assert error_of(server.post(path, **fields, model="fake"), 404)["code"] == "model_not_found"


def test_only_api_key_is_required_and_never_shown(tmp_path: Path) -> None:
    with serving(api_key="secret-1") as server:
        error_of(server.http.get("/v1/models"), 401)
        for headers in ({"authorization": "Bearer secret-1"}, {"x-api-key": "secret-1"}):
            assert server.http.get("/v1/models", headers=headers).status_code == 200
        assert "secret-1" not in server.http.get("/v1/config", headers=headers).text
    with pytest.raises(ConfigError) as caught, serving(api_key="a", api_key_file=str(tmp_path / "keys")):
        pass
    assert caught.value.param == "api_key"


def test_chat_template_of_a_file_replaces_the_models(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("<{{ messages[0].content }}>")
    with serving(chat_template=str(path)) as server:
        assert server.post("/v1/chat/completions/render", messages=USER).json()["prompt"] == "<hi>"
    for text in (b"{% if", b"\xff"):
        path.write_bytes(text)
        with pytest.raises(ConfigError) as caught, serving(chat_template=str(path)):
            pass
        assert caught.value.param == "chat_template" and str(path) in caught.value.message


@pytest.mark.parametrize(
    ("template", "effort", "text"),
    [
        ("{{ enable_thinking }}", "none", "False"),
        ("{{ enable_thinking }}", "low", "True"),
        ("{{ reasoning_effort }}-{{ enable_thinking }}", "high", "high-True"),
        ("x", "low", None),
        ("{{ enable_thinking_mode }}", "none", None),
    ],
)
def test_reasoning_effort_reaches_templates_that_read_it(
    server: Served, template: str, effort: str, text: str | None
) -> None:
    body = {"messages": USER, "chat_template": template, "reasoning_effort": effort}
    reply = server.post("/v1/chat/completions/render", **body)
    assert reply.headers.get("x-ferrum-ignored") == ("reasoning_effort" if text is None else None)
    assert text is None or reply.json()["prompt"] == text
    assert server.chat(reasoning_effort=effort).headers["x-ferrum-ignored"] == "reasoning_effort"
    own = server.post("/v1/chat/completions/render", **body, chat_template_kwargs={"enable_thinking": "own"})
    assert "enable_thinking }}" not in template or own.json()["prompt"].endswith("own")
    assert error_of(server.chat(reasoning_effort="much"), 400)["param"] == "reasoning_effort"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, "fgh"),
        ({"truncate_prompt_tokens": 3, "truncate": "START"}, "fgh"),
        ({"truncate_prompt_tokens": 3, "truncate": "END"}, "abc"),
        ({"truncate_prompt_tokens": -1}, "abcdefgh"),
        ({"truncate": True}, "abcdefgh"),
    ],
)
def test_embedding_input_is_truncated(server: Served, fields: dict[str, Any], kept: str) -> None:
    letters = [ord(letter) - 31 for letter in kept]
    for text in ("abcdefgh", [ord(letter) - 31 for letter in "abcdefgh"]):
        server.requests.clear()
        assert server.post("/v1/embeddings", input=text, **fields).json()["usage"]["prompt_tokens"] == len(kept)
        assert list(server.requests[0].prompt) == letters


def test_long_embedding_input_is_cut_to_the_context_if_asked(server: Served) -> None:
    context, text = server.service.model().context, "a" * 5000 + "b" * 5000
    for truncate, letter in ((True, "a"), ("END", "a"), ("START", "b")):
        server.requests.clear()
        assert server.post("/v1/embeddings", input=text, truncate=truncate).status_code == 200
        assert server.requests[0].prompt == (ord(letter) - 31,) * context


def test_truncation_keeps_the_special_tokens_around_a_text() -> None:
    class Closed(LetterTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [0, *super().encode(text), EOS] if add_special_tokens else super().encode(text)

    a, b, c = LetterTokenizer().encode("abc")
    assert truncated(Closed(), "abc", 4) == [0, b, c, EOS]
    assert truncated(Closed(), "abc", 4, start=True) == [0, a, b, EOS]
    assert truncated(Closed(), "abc", 5, start=True) == [0, a, b, c, EOS]


def test_embeddings_name_unknown_fields_as_other_routes_do(server: Served) -> None:
    reply = server.post("/v1/embeddings", input="a", input_type="query", user="u")
    assert reply.headers["x-ferrum-ignored"] == "input_type, user"
    with serving(strict=True) as strict:
        assert error_of(strict.post("/v1/embeddings", input="a", input_type="query"), 400)["param"] == "input_type"
