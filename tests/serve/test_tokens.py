"""Fields of the token and embedding routes: each changes the reply, is named as ignored, or is refused by name."""

from __future__ import annotations

import json
import tracemalloc
from types import SimpleNamespace
from typing import Any, Final

import pytest

from engine_fakes import LetterTokenizer
from ferrum.server.tasks.embeddings import EmbeddingRequest
from ferrum.server.tasks.tokenize import DetokenizeRequest, RenderRequest, TokenizeRequest, tokenize
from serve_kit import USER, Served, error_of

ANSWERED: Final = [*USER, {"role": "assistant", "content": "so"}]
PROMPT: Final[dict[str, Any]] = {"prompt": "hello"}
MESSAGES: Final[dict[str, Any]] = {"messages": ANSWERED}
CONTENT: Final[dict[str, Any]] = {"content": "hello"}
TEMPLATE: Final[dict[str, Any]] = {
    "messages": USER,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template": "x",
    "chat_template_kwargs": {"mood": "!"},
    "add_special_tokens": True,
}
TOOLS: Final = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
READING: Final[dict[str, Any]] = {**MESSAGES, "chat_template": "{{ messages[0].content }}{{ tools }}"}
RENDER: Final = "/v1/chat/completions/render"

CHANGES: Final = [
    *(("/tokenize", PROMPT, field, value) for field, value in {"prompt": "other", "add_special_tokens": False}.items()),
    *(("/tokenize", MESSAGES, field, value) for field, value in TEMPLATE.items()),
    *(("/tokenize", CONTENT, field, value) for field, value in {"content": "other", "add_special": True}.items()),
    *(("/tokenize", form, "return_token_strs", True) for form in (PROMPT, MESSAGES, CONTENT)),
    *(("/tokenize", form, "with_pieces", True) for form in (PROMPT, MESSAGES, CONTENT)),
    *((RENDER, MESSAGES, field, value) for field, value in TEMPLATE.items()),
    *((path, READING, "tools", TOOLS) for path in ("/tokenize", RENDER)),
    ("/detokenize", {"tokens": [41, 42]}, "tokens", [42]),
    ("/v1/embeddings", {"model": "fake", "input": "ab"}, "input", "cd"),
    ("/v1/embeddings", {"model": "fake", "input": "ab"}, "encoding_format", "base64"),
    ("/v1/embeddings", {"model": "fake", "input": "ab"}, "truncate_prompt_tokens", 2),
]

EFFORT: Final = "reasoning_effort"
"""Needs a template that reads it; test_peers.py has one."""

REFUSED: Final = [
    ("/tokenize", PROMPT, "parse_special", False),
    *(
        ("/tokenize", PROMPT, name, TEMPLATE[name])
        for name in sorted(TEMPLATE.keys() - {"messages", "add_special_tokens"})
    ),
    ("/tokenize", PROMPT, "add_special", True),
    ("/tokenize", CONTENT, "add_special_tokens", True),
    ("/tokenize", MESSAGES, "documents", [{}]),
    (RENDER, MESSAGES, "documents", [{}]),
    ("/tokenize", PROMPT, "tools", TOOLS),
    (RENDER, MESSAGES, "tools", "f"),
    ("/v1/embeddings", {"model": "fake", "input": "ab"}, "dimensions", 2),
    ("/v1/embeddings", {"model": "fake", "input": "ab"}, "truncate", "MIDDLE"),
]


def asked(server: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    assert "x-ferrum-ignored" not in response.headers
    return {name: value for name, value in response.json().items() if name != "id"}


@pytest.mark.parametrize(("path", "body", "field", "value"), CHANGES)
def test_field_changes_the_reply(unfailing: Served, path: str, body: dict[str, Any], field: str, value: Any) -> None:
    assert asked(unfailing, path, body) == asked(unfailing, path, body)
    assert asked(unfailing, path, {**body, field: value}) != asked(unfailing, path, body)


@pytest.mark.parametrize(("path", "body", "field", "value"), REFUSED)
def test_unsupported_field_is_refused_by_name(
    unfailing: Served, path: str, body: dict[str, Any], field: str, value: Any
) -> None:
    assert error_of(unfailing.post(path, **{**body, field: value}), 400)["param"] == field


def test_tools_are_rendered_where_only_the_template_is_needed(unfailing: Served) -> None:
    """Chats still refuse them."""
    template = "{% for tool in tools %}{{ tool.function.name }}{{ tool | tojson }}{% endfor %}"
    body = {"messages": USER, "chat_template": template, "tools": TOOLS}
    text = asked(unfailing, RENDER, body)["prompt"]
    assert text.startswith("f{") and json.loads(text[1:]) == TOOLS[0]
    assert asked(unfailing, "/tokenize", body)["tokens"] == asked(unfailing, RENDER, body)["token_ids"]
    assert error_of(unfailing.chat(tools=TOOLS), 400)["param"] == "tools"


def test_field_without_effect_is_named(unfailing: Served) -> None:
    for path in ("/tokenize", RENDER):  # this model's template reads no tools
        assert unfailing.post(path, **MESSAGES, tools=TOOLS).headers["x-ferrum-ignored"] == "tools"
    embedded = unfailing.post("/v1/embeddings", model="fake", input="ab", user="u")
    assert embedded.headers["x-ferrum-ignored"] == "user"
    for path, body in (("/tokenize", PROMPT), (RENDER, MESSAGES), ("/detokenize", {"tokens": [41]})):
        assert unfailing.post(path, **body, odd=1).headers["x-ferrum-ignored"] == "odd"


def test_other_model_name_is_a_404(unfailing: Served) -> None:
    for path, body in (("/tokenize", PROMPT), (RENDER, MESSAGES), ("/detokenize", {"tokens": [41]})):
        assert error_of(unfailing.post(path, **body, model="other"), 404)["code"] == "model_not_found"
        assert asked(unfailing, path, {**body, "model": "fake"}) == asked(unfailing, path, body)


def test_every_field_is_covered() -> None:
    bodies = {
        "/tokenize": TokenizeRequest,
        RENDER: RenderRequest,
        "/detokenize": DetokenizeRequest,
        "/v1/embeddings": EmbeddingRequest,
    }
    for path, body in bodies.items():
        covered = {field for where, _, field, _ in [*CHANGES, *REFUSED] if where == path}
        assert body.model_fields.keys() | body.REFUSED.keys() <= covered | body.NO_OPS.keys() | {"model", EFFORT}, path


@pytest.mark.parametrize("empty", [[], [[]]])
def test_prompt_without_any_text_or_token_is_refused(unfailing: Served, empty: Any) -> None:
    assert error_of(unfailing.complete(prompt=empty), 400)["param"] == "prompt"
    assert error_of(unfailing.post("/v1/embeddings", model="fake", input=empty), 400)["param"] == "input"
    assert error_of(unfailing.post("/v1/embeddings", model="fake", input=[[1], []]), 400)["param"] == "input[1]"


@pytest.mark.parametrize("wish", ["with_pieces", "return_token_strs"])
def test_descriptions_of_many_tokens_use_little_memory(wish: str) -> None:
    count = 200_000
    model: Any = SimpleNamespace(client=SimpleNamespace(tokenizer=LetterTokenizer()), context=4096)
    body = TokenizeRequest(content="ab" * (count // 2), **{wish: True})
    tracemalloc.start()
    try:
        made = tokenize(model, body).json_bytes()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 * count + len(made)
    assert len(json.loads(made)["token_strs" if wish == "return_token_strs" else "tokens"]) == count
