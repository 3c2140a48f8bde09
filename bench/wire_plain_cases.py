"""The requests of `wire_forms.py` that need no assistant: texts, numbers, lists, limits, failures, wrong types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from wire_cases import CHATS, CITY, LEARNED, MESSAGES, OFFERED, RESPONSES, TEXTS, Case, both, get, said

GREEDY: Final = {"temperature": 0, "max_tokens": 8}
SEEDED: Final = {"seed": 7, "temperature": 0.9, "max_tokens": 8}

COMPLETIONS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"prompt": "def f(", **GREEDY},
    "default limit": {"prompt": "def f(", "temperature": 0},
    "seeded": {"prompt": "def f(", **SEEDED},
    "usage": {"prompt": "def f(", **GREEDY, "stream_options": {"include_usage": True}},
    "continuous usage": {
        "prompt": "def f(",
        **GREEDY,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "echo": {"prompt": "def f(", **GREEDY, "echo": True},
    "score": {"prompt": "def f(x)", "max_tokens": 0, "echo": True, "logprobs": 2},
    "log-probabilities": {"prompt": "def f(", **SEEDED, "logprobs": 5},
    "ids for tokens": {"prompt": "def f(", **GREEDY, "logprobs": 1, "return_tokens_as_token_ids": True},
    "token ids": {"prompt": "def f(", **GREEDY, "return_token_ids": True, "echo": True},
    "choices": {"prompt": "def f(", **SEEDED, "n": 3, "logprobs": 1},
    "prompts": {"prompt": ["def f(", "class A"], **SEEDED, "n": 2},
    "ids": {"prompt": [5, 6, 7], **GREEDY},
    "lists of ids": {"prompt": [[5, 6], [7]], **GREEDY},
    "empty": {"prompt": "", **GREEDY},
    "stop strings": {"prompt": "def f(", "max_tokens": 30, "temperature": 0, "stop": [":", "\n"]},
    "stop tokens": {"prompt": "def f(", "max_tokens": 30, "seed": 3, "stop_token_ids": [*range(40, 80)]},
    "rules": {
        "prompt": "def f(",
        **SEEDED,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "no_repeat_ngram_size": 3,
        "dry_multiplier": 0.8,
        "min_tokens": 2,
        "logit_bias": {"50": 5},
        "bad_words": ["self"],
        "ignore_eos": True,
        "logprobs": 1,
    },
    "allowed ids": {"prompt": "def f(", **SEEDED, "allowed_token_ids": [40, 41, 42]},
    "expression": {"prompt": "def f(", **SEEDED, "structured_outputs": {"regex": "[a-z]{4}"}},
    "schema": {"prompt": "def f(", **SEEDED, "max_tokens": 40, "guided_json": {"type": "integer"}},
    "choice of texts": {"prompt": "def f(", **GREEDY, "guided_choice": ["red", "green"]},
    "kept end": {"prompt": "def f(a, b, c", **GREEDY, "truncate_prompt_tokens": 3, "echo": True},
    "salt": {"prompt": "def f(", **GREEDY, "cache_salt": "a", "request_id": "mine", "user": "u", "odd": 1},
}
BEST: Final = {"prompt": "def f(", **SEEDED, "best_of": 4, "n": 2, "logprobs": 1}
SCORED: Final = {"prompt": "def f(", **GREEDY, "prompt_logprobs": 2}
TEXT_FAULTS: Final[tuple[dict[str, Any], ...]] = (
    {"prompt": None},
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [-1]},
    {"prompt": [1 << 40]},
    {"prompt": ["a", 3]},
    {"prompt": "x " * 5000},
    {"suffix": "x"},
    {"best_of": 2, "n": 3},
    {"best_of": 21},
    {"n": 0},
    {"n": 1000},
    {"logprobs": 6},
    {"max_tokens": -1},
    {"max_tokens": 100_000},
    {"temperature": -1},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_k": -2},
    {"seed": 1 << 70},
    {"stop": [""]},
    {"stop": ["x"] * 65},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"9999999": 1}},
    {"allowed_token_ids": []},
    {"priority": 3},
    {"cache_salt": ""},
    {"request_id": "a/b"},
    {"model": "other"},
    {"prompt_logprobs": 1, "stream": True},
    {"prompt_logprobs": 21},
    {"truncate_prompt_tokens": 0},
    {"ignore_eos": True, "guided_choice": ["a"]},
    {"use_beam_search": True},
    {"truncation_side": "right"},
    {"logits_processors": ["x"]},
    {"logprob_token_ids": [1]},
    {"dry_multiplier": 1, "dry_base": 0.5},
    {"stream": "yes"},
    {"odd": {"deep": [1, 2]}},
)
ON_CHATS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {**GREEDY},
    "log-probabilities": {**SEEDED, "logprobs": True, "top_logprobs": 3},
    "choices": {**SEEDED, "n": 2, "logprobs": True},
    "expression": {**SEEDED, "guided_regex": "[a-z]{4}"},
    "schema": {**SEEDED, "max_tokens": 60, "response_format": {"type": "json_object"}},
    "token ids": {**GREEDY, "return_token_ids": True, "logprobs": True, "return_tokens_as_token_ids": True},
    "stop strings": {"max_tokens": 30, "temperature": 0, "stop": ["e"]},
}
TOKENS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/tokenize", {"prompt": "def f(é)"}),
    ("/tokenize", {"prompt": "def f", "add_special_tokens": False, "return_token_strs": True}),
    ("/tokenize", {"content": "def f(é)", "with_pieces": True, "add_special": True}),
    ("/tokenize", {"messages": said("hi"), "add_generation_prompt": False}),
    ("/tokenize", {"messages": [*said("hi"), {"role": "assistant", "content": "a"}], "continue_final_message": True}),
    ("/tokenize", {}),
    ("/tokenize", {"prompt": "a", "content": "b"}),
    ("/tokenize", {"prompt": "a", "tools": [OFFERED]}),
    ("/tokenize", {"content": "a", "parse_special": True, "odd": 1}),
    ("/detokenize", {"tokens": [50, 60, 70]}),
    ("/detokenize", {"tokens": []}),
    ("/detokenize", {"tokens": [1 << 40]}),
    ("/detokenize", {"tokens": "x"}),
    (f"{CHATS}/render", {"messages": said("hi")}),
    (f"{CHATS}/render", {"messages": said("hi"), "chat_template": "{{ messages[0].content }}!"}),
    (f"{CHATS}/render", {"messages": said("hi"), "documents": [{}]}),
)
NUMBERS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/v1/embeddings", {"input": "def f("}),
    ("/v1/embeddings", {"input": ["def f(", "class"], "encoding_format": "base64", "user": "u"}),
    ("/v1/embeddings", {"input": [[5, 6], [7]]}),
    ("/v1/embeddings", {"input": []}),
    ("/v1/embeddings", {"input": "x " * 5000}),
    ("/v1/embeddings", {"input": "x " * 5000, "truncate": "END"}),
    ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}),
    ("/v1/embeddings", {"input": "a", "dimensions": 3}),
    ("/api/embed", {"input": ["def f(", "class"]}),
    ("/api/embed", {"input": "x " * 5000, "truncate": False}),
    ("/api/embeddings", {"prompt": "def f("}),
    ("/rerank", {"query": "def", "documents": ["def f(", {"text": "class"}], "top_n": 1}),
    ("/v1/rerank", {"query": "def", "documents": ["def f(", "class"], "return_documents": False, "odd": 1}),
    ("/v2/rerank", {"query": "def", "documents": []}),
    ("/reranking", {"query": "def", "documents": [{"txt": "a"}]}),
    ("/v1/reranking", {"query": "def", "documents": ["a"], "instruction": "b"}),
    ("/rerank", {"query": "def", "documents": ["a"], "rank_fields": ["text"]}),
    ("/rerank", {"query": "def", "documents": ["a"], "top_n": -1}),
    ("/v1/score", {"text_1": "def", "text_2": ["def f(", "class"]}),
    ("/score", {"queries": ["def", "a"], "documents": ["def f(", "class"]}),
    ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}),
    ("/score", {"text_1": "a"}),
    ("/score", {"text_1": "a", "queries": "a", "text_2": "b"}),
    ("/score", {"text_1": "a", "text_2": "b", "softmax": True}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
)
GETS: Final = (
    *("/v1/models", "/v1/models/", "/v1/models/tiny-model", "/v1/models/a/b", "/health", "/ping", "/ready", "/version"),
    *("/v1/config", "/v1/plan", "/metrics", "/lora-adapters", "/openapi.json", "/", "/models", "/v1/odd", "/api/odd"),
    *("/v1/assistants", "/v1/sessions", "/classify", "/v1/requests/unknown", CHATS, "/api/tags", "/api/ps", "/odd.ico"),
)
POSTS: Final = ("/v1/load_lora_adapter", "/lora-adapters", "/v1/requests/x/replay", CHATS)
LISTS: Final = (
    *(get("tiny", path) for path in GETS),
    *(get("tiny", path, anthropic_version="2023-06-01") for path in ("/v1/models", "/v1/models/other", "/v1/odd")),
    *(get("tiny", path, "HEAD") for path in ("/health", "/v1/models", "/api/hello", "/v1/odd")),
    *(get("tiny", path, "DELETE") for path in ("/v1/requests/unknown", "/v1/models")),
    get("tiny", CHATS, "OPTIONS"),
    *(get("tiny", path, "POST") for path in POSTS),
)


def tiny_cases() -> Iterator[Case]:
    """Yield requests to the built-in model, with real numbers."""
    for name, body in COMPLETIONS.items():
        yield from both("tiny", name, TEXTS, body)
    yield Case("best of four", "tiny", TEXTS, BEST)
    yield Case("prompt log-probabilities", "tiny", TEXTS, SCORED)
    for place, fault in enumerate(TEXT_FAULTS):
        yield Case(f"tiny {TEXTS} fault {place}", "tiny", TEXTS, {"prompt": "def f(", **GREEDY, **fault})
    for name, body in ON_CHATS.items():
        yield from both("tiny", name, CHATS, {"messages": said("def f("), **body})
    chat = {"messages": said("def f("), **GREEDY}
    yield Case("prompt log-probabilities of a chat", "tiny", CHATS, {**chat, "prompt_logprobs": 1})
    yield Case("tools without a format", "tiny", CHATS, {**chat, "tools": [OFFERED]})
    yield Case("tools without a format in messages", "tiny", MESSAGES, {**chat, "tools": [LEARNED]})
    yield from both("tiny", "greedy", RESPONSES, {"input": "def f(", "temperature": 0, "max_output_tokens": 8})
    yield from both("tiny", "thought", MESSAGES, {**chat, "thinking": {"type": "adaptive"}, "top_k": 5})
    options = {"temperature": 0, "num_predict": 8}
    yield from both("tiny", "schema", "/api/chat", {"messages": said("f"), "options": {"seed": 1}, "format": CITY})
    yield from both("tiny", "greedy", "/api/generate", {"prompt": "def f(", "options": options, "think": True})
    yield from both("tiny", "raw", "/api/generate", {"prompt": "def f(", "raw": True, "options": options})
    for place, (path, body) in enumerate((*TOKENS, *NUMBERS)):
        yield Case(f"tiny {path} {place}", "tiny", path, body)
    yield from LISTS


INFILL: Final[dict[str, dict[str, Any]]] = {
    "plain": {"n_predict": 8, "temperature": 0},
    "extra": {"n_predict": 8, "seed": 1, "prompt": "c", "input_extra": [{"filename": "f.py", "text": "x"}]},
    "fields without effect": {"n_predict": 2, "temperature": 0, "mirostat": 1, "odd": 1, "samplers": ["top_k"]},
}
STOPPED: Final = {"n_predict": 30, "temperature": 0, "stop": ["a", "e", "i", "o", "u", " "], "return_tokens": True}
"""Not streamed: whether a piece has the token that completes the stop string depends on how tokens were grouped."""
MINIMAL: Final[dict[str, dict[str, Any]]] = {
    CHATS: {"messages": said("hi"), "max_tokens": 2},
    f"{CHATS}/render": {"messages": said("hi")},
    TEXTS: {"prompt": "ab", "max_tokens": 2},
    "/v1/embeddings": {"input": "ab"},
    "/tokenize": {"prompt": "ab"},
    "/detokenize": {"tokens": [5]},
    RESPONSES: {"input": "hi", "max_output_tokens": 2},
    f"{RESPONSES}/input_tokens": {"input": "hi"},
    MESSAGES: {"messages": said("hi"), "max_tokens": 2},
    f"{MESSAGES}/count_tokens": {"messages": said("hi")},
    "/api/chat": {"messages": said("hi"), "options": {"num_predict": 2}, "stream": False},
    "/api/generate": {"prompt": "hi", "options": {"num_predict": 2}, "stream": False},
    "/api/embed": {"input": "ab"},
    "/api/embeddings": {"prompt": "ab"},
    "/api/show": {},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/score": {"text_1": "a", "text_2": "b"},
}
"""The least body of each route; requests without a seed get one from the script."""
WRONG: Final = ({"odd": [1]}, [[{}]], -3.5, "\u00e9odd")
BODIES: Final = {
    "no JSON": b"{",
    "a list": b"[1]",
    "a number out of range": b'{"model": NaN}',
    "a lone surrogate": b'{"model": "\\ud800"}',
    "nothing": b"",
    "not UTF-8": b'{"model": "\xff"}',
    "a name twice": b'{"model": "x", "model": "y"}',
}


def fake_cases() -> Iterator[Case]:
    """Yield requests to a model with infill tokens and vectors."""
    for name, body in INFILL.items():
        yield from both("fake", name, "/infill", {"input_prefix": "ab", "input_suffix": "yz", **body})
    yield Case("infill stop string", "fake", "/infill", {"input_prefix": "ab", "input_suffix": "yz", **STOPPED})
    yield from both("fake", "infill", TEXTS, {"prompt": "ab", "suffix": "yz", **GREEDY})
    yield from both("fake", "infill", "/api/generate", {"prompt": "a", "suffix": "z", "options": {"num_predict": 4}})
    faults = {
        "n_probs": 3,
        "grammar": "x",
        "json_schema": {},
        "logit_bias": {},
        "n_cmpl": 2,
        "lora": [],
        "n_predict": -2,
    }
    for name, value in faults.items():
        yield Case(f"infill {name}", "fake", "/infill", {**MINIMAL["/infill"], name: value})
    yield from both("fake", "priority", CHATS, {**MINIMAL[CHATS], "priority": 1, "seed": 1})
    for path, body in MINIMAL.items():
        yield Case(f"least {path}", "fake", path, body)
        yield Case(f"other model {path}", "fake", path, {**body, "model": "other"})
        yield Case(f"unknown field {path}", "fake", path, {**body, "odd": 1, "odder": None})
        yield Case(f"unknown field {path} strict", "strict", path, {**body, "odd": 1})
        yield Case(f"empty {path}", "fake", path, {})
        for name, raw in BODIES.items():
            yield Case(f"{name} {path}", "fake", path, raw=raw, headers={"content-type": "application/json"})
        text = {"content-type": "text/plain"}
        yield Case(f"content type {path}", "fake", path, raw=b"{}", headers=text)
        yield Case(f"content type of a page {path}", "fake", path, raw=b"{}", headers={**text, "origin": "http://a.b"})
        yield Case(f"large {path}", "strict", path, raw=b" " * 5000, headers={"content-type": "application/json"})


def wrong_types(document: Mapping[str, Any]) -> Iterator[Case]:
    """Yield a request for each field of each body in an OpenAPI document, with values of several types, and null."""
    for path, body in MINIMAL.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        for name in schema["properties"]:
            for place, value in enumerate((*WRONG, None)):
                yield Case(f"{path} {name} of type {place}", "fake", path, {**body, name: value})


def failing_cases() -> Iterator[Case]:
    """Yield requests that fail in the engine: prompts with a command, then one that ends the engine."""
    poison, crash = "{", "|"
    for streamed in (False, True):
        for path, body in MINIMAL.items():
            text = {key: poison for key in ("prompt", "input", "input_prefix", "query", "text_1") if key in body}
            messages = {"messages": said(poison)} if "messages" in body else {}
            yield Case(f"poison {path} {streamed}", "failing", path, {**body, **text, **messages, "stream": streamed})
    yield Case("crash", "failing", CHATS, {**MINIMAL[CHATS], "messages": said(crash)})
    for path, body in MINIMAL.items():
        yield Case(f"dead {path}", "failing", path, body)
    for path in ("/health", "/ready", "/v1/models", "/api/tags", "/v1/plan"):
        yield get("failing", path)


def limit_cases() -> Iterator[Case]:
    """Yield requests to servers that load, are full, or want keys."""
    for path, body in MINIMAL.items():
        yield Case(f"loading {path}", "loading", path, body)
    for path in ("/health", "/ready", "/v1/models", "/api/tags", "/v1/config"):
        yield get("loading", path)
    yield Case("fills the queue", "full", RESPONSES, {"input": "hi", "background": True, "max_output_tokens": 2})
    for path, body in MINIMAL.items():
        yield Case(f"full {path}", "full", path, body)
        yield Case(f"no key {path}", "keyed", path, body)
        yield Case(f"wrong key {path}", "keyed", path, body, headers={"x-api-key": "wrong"})
    key = {"authorization": "Bearer right"}
    yield get("keyed", "/v1/models")
    for number in range(4):
        yield Case(f"rate {number}", "keyed", TEXTS, MINIMAL[TEXTS], headers=key)
    for path in (CHATS, RESPONSES, MESSAGES, "/api/chat", "/infill", "/v1/embeddings"):
        yield Case(f"rate {path}", "keyed", path, MINIMAL[path], headers=key)
