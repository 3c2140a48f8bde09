"""Random requests from an OpenAPI document, and checks of the replies against it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from ferrum.client.async_engine import AsyncEngine
from ferrum.core.params import MAX_CHOICES
from ferrum.server.app import create_app
from ferrum.server.openai.fields import ALIASES
from ferrum.server.server_config import ServerConfig
from serve_kit import chat_parts

FEW = settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=2000, derandomize=False)


MOST_TOKENS = 16
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
OLLAMA = ("/api/chat", "/api/generate")

_UNSAYABLE_TEXT = "maximum context|must not be empty|one for each"

UNSAYABLE = {
    "min_tokens": "max_tokens|decides where the output may end",
    "max_tokens": "log-probabilities|maximum context|at least 1 with",
    "max_output_tokens": "maximum context",
    "max_completion_tokens": "log-probabilities|maximum context|differs from max_tokens|at least 1 with",
    "best_of": "less than n|exceed n",
    "prompt": "maximum context|must not be empty",
    "input": "maximum context|must not be empty",  # a text without a begin token
    **dict.fromkeys(
        ("query", "documents", "text_1", "text_2", "queries", "items", "data_1", "data_2"), _UNSAYABLE_TEXT
    ),
    **dict.fromkeys(("input_prefix", "n_predict"), "maximum context"),
    "previous_response_id": "is not stored",
    "instruction": "no reranker",
    "parameters": "JSON Schema|#",  # of a strict tool
    "name": "must be 1 to",  # with that of its namespace
    "messages": "maximum context|must not be empty|text to continue",  # after rendering
    "input_schema": "",
    "logit_bias": "the vocabulary size",
    "echo": "assistant",
    "continue_final_message": "final message",
    "chat_template": "",
    "chat_template_kwargs": "must not set",
    "dimensions": "the model's vectors",
    "arguments": "JSON",
    "request_id": "is live",  # an abandoned stream may be live a moment longer
    "ignore_eos": "ends with an end token",
    "choice": "different",  # entries
    "whitespace_pattern": "",
    "disable_any_whitespace": "contradicts",
    "num_ctx": "more than the server's context",
    "id": "no adapter has the id|the adapter .* twice",
    "format": "",
    "type": "nothing is fetched",  # of an image's source
    **dict.fromkeys(("image_url", "url", "images", "data", "media_type", "source"), "image"),
    **dict.fromkeys(("structured_outputs", "response_format", "schema", *ALIASES, *ALIASES.values()), ""),
    **dict.fromkeys(
        ("tools", "functions", "tool_choice", "allowed_tools", "function_call", "thinking_token_budget"), ""
    ),
}
"""Errors for bodies that fit the document, by the field that the error names. JSON Schema cannot express these rules:
relations of two numbers, lengths in tokens, keys of an object as numbers, the last item of a list, properties of the
model (it has no format of tool calls), live requests, and languages within a text (templates, JSON, schemas,
grammars, images).
"""

OFF = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Routes that answer 404 without --allow-runtime-lora."""


def documented_routes() -> list[tuple[str, str]]:
    """Return method and path of every route of the document; no engine is started for it."""
    paths = create_app(lambda: AsyncEngine.from_parts(chat_parts()), ServerConfig()).openapi()["paths"]
    return [(method, path) for path, operations in paths.items() for method in operations]


KNOWN: dict[str, str] = {}
"""Values of path parameters that exist."""


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Replace path parameters by known values; random ones do not exist."""
    return path_parameters and {name: KNOWN.get(name, value) for name, value in path_parameters.items()}


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Set the model's name and limit the output; random bodies would fail or run for ever."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    if isinstance(body.get("model"), str):
        body["model"] = "fake"
    if context.operation.path == "/v1/messages" and _large(body.get("max_tokens")):
        body["max_tokens"] = MOST_TOKENS
    if context.operation.path.endswith(("/completions", "/generate", "/responses")):
        own = "max_output_tokens" if context.operation.path.endswith("/responses") else "max_tokens"
        if isinstance(body.get("n"), int) and body["n"] <= MAX_CHOICES:  # keep invalid values invalid
            body["n"] = min(body["n"], 4)
        for name in [name for name in LIMITS if body.get(name) is not None] or [own]:
            limit = body.get(name)
            body[name] = MOST_TOKENS if limit is None or _large(limit) else limit
    if context.operation.path in OLLAMA:
        body["options"] = _few_tokens(body.get("options"))
    if context.operation.path == "/infill" and (body.get("n_predict") in (None, -1) or _large(body["n_predict"])):
        body["n_predict"] = MOST_TOKENS
    for message in body["messages"] if isinstance(body.get("messages"), list) else ():
        _give_arguments(message)
    return body


def _few_tokens(options: Any) -> Any:
    """Return Ollama's options with a small limit of tokens; invalid ones stay invalid."""
    if options is None or (isinstance(options, dict) and options.get("num_predict") is None):
        return {**(options or {}), "num_predict": MOST_TOKENS}
    limit = options.get("num_predict") if isinstance(options, dict) else None
    if isinstance(limit, int) and not isinstance(limit, bool) and (-2 <= limit <= 0 or limit > MOST_TOKENS):
        return {**options, "num_predict": MOST_TOKENS}
    return options


def _give_arguments(message: Any) -> None:
    """Replace random texts, which are hardly ever JSON."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = '{"a": 1}'


def _large(limit: Any) -> bool:
    return isinstance(limit, int | float) and limit > MOST_TOKENS


def check(
    document: Any,
    route: tuple[str, str],
    profile: settings,
    checks: Collection[str] | None = None,
    also: Sequence[Callable[[Any, Any, Any], None]] = (),
) -> None:
    """Send valid and invalid requests to a route; a reply that the document does not describe is a failure.

    Args:
        checks: by name; None: all.
        also: further checks of a context, a response and its case.
    """
    method, path = route
    operation = document[path][method]
    every = {each.__name__: each for each in CHECKS.get_all()}
    names = set(every) if checks is None else set(checks)
    assert names <= set(every) and "positive_data_acceptance" in every
    served = []

    @profile
    @given(st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)))
    def run(case: Any) -> None:
        response = case.call()
        left = names - ({"positive_data_acceptance"} if unsayable(response) else set())
        case.validate_response(response, checks=[*(every[name] for name in sorted(left)), *also])
        served.append(response.status_code)

    run()
    assert 200 in served or "{" in path or path in OFF, "nothing was served"


def unsayable(response: Any) -> bool:
    """Return whether an error is one that no schema can express."""
    if response.status_code != 400:
        return False
    error = json.loads(response.content)["error"]
    if isinstance(error, str):  # in Ollama's form the error is a text that begins with the field
        error = {"message": error, "param": error.partition(": ")[0], "code": ""}
    if error.get("code") == "no_token_allowed":
        return True  # a grammar of characters that the vocabulary lacks
    param = (
        error["param"] if "param" in error else error["message"].removeprefix("Prompt is too long: ").partition(": ")[0]
    )
    field = (param or "").rpartition(".")[2].partition("[")[0]
    return field in UNSAYABLE and re.search(UNSAYABLE[field], error["message"]) is not None
