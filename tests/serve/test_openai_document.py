"""Every reply of the server conforms to the schemas that OpenAI publishes."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from jsonschema_rs import Draft202012Validator

from document_kit import FEW, MANY, check
from ferrum.core.params import MAX_STOP_STRINGS
from ferrum.server.openai.fields import ChatRequest
from serve_kit import Served

DOCUMENT = Path(__file__).parents[1] / "data" / "openai-openapi-core.json"
ROUTES = [("post", "/chat/completions"), ("post", "/completions"), ("get", "/models"), ("get", "/models/{model}")]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


CHUNKS = {"/chat/completions": "CreateChatCompletionStreamResponse", "/completions": "CreateCompletionResponse"}
"""Schemas of the events of a route."""
UNKNOWN = {"prompt_cache_breakpoint", "prompt_cache_options", "include_obfuscation", *ChatRequest.NO_OPS}
"""Fields that the server names as ignored, whatever their values."""
OF_REQUESTS = ("Request", "ModelResponseProperties", "StreamOptions", "StopConfiguration")
"""Parts of the names of request schemas, and of no others."""
PASSED_ON = ("audio", "function_call")
"""Fields of an assistant's message that are passed to the chat template."""


@cache
def published() -> Any:
    """Return the document, corrected where its text and its schemas contradict each other.

    Completions can be streamed too; before the end of a choice its chunks have no finish reason, and only the last
    chunk has a usage. The first token has no log-probability. Nulls are marked as in version 3.0 documents.

    Schemas are widened where the server accepts more: no model, null for optional fields, more stop strings or none,
    fractional biases, calls that name a function only or have its arguments as an object, and any value for fields that
    it ignores.
    """
    document = json.loads(DOCUMENT.read_text())
    del document["security"]  # this server needs no API key; test_operation tests keys
    for route in CHUNKS:  # chunks are checked by `chunks_conform`
        document["paths"][route]["post"]["responses"]["200"]["content"]["text/event-stream"] = {}
    schemas = document["components"]["schemas"]
    completion = schemas["CreateCompletionResponse"]["properties"]
    choice = completion["choices"]["items"]["properties"]
    scores = choice["logprobs"]["anyOf"][0]["properties"]
    for part in (scores["token_logprobs"]["items"], scores["top_logprobs"]["items"]):
        part["nullable"] = True
    for name in PASSED_ON:
        del schemas["ChatCompletionRequestAssistantMessage"]["properties"][name]
    call = schemas["ChatCompletionMessageToolCall"]
    call["properties"] |= {name: _or_null(call["properties"][name]) for name in ("id", "type")}
    function = call["properties"]["function"]
    call["required"], function["required"] = ["function"], ["name"]
    function["properties"]["arguments"] = {"type": ["string", "object", "null"]}
    for name in schemas:
        if any(part in name for part in OF_REQUESTS):
            _widen(schemas[name])
    return _with_nulls(document)


def _widen(schema: Any) -> None:
    """Widen the schema of a request to what the server accepts."""
    for part in (*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        _widen(part)
    if "maxItems" in schema:
        schema["maxItems"] = MAX_STOP_STRINGS
        schema.pop("minItems", None)
    if "model" in schema.get("required", ()):
        schema["required"].remove("model")
    fields = schema.get("properties", {})
    for name in [each for each in fields if each not in schema.get("required", ())]:
        if name == "logit_bias":
            fields[name]["additionalProperties"] = {"type": "number"}
        fields[name] = {} if name in UNKNOWN else _or_null(fields[name])


@cache
def chunks_of(route: str) -> Draft202012Validator:
    """Return the validator for chunks of a route."""
    components = deepcopy(published()["components"])
    whole = components["schemas"]["CreateCompletionResponse"]["properties"]
    choice = whole["choices"]["items"]["properties"]
    whole["usage"], choice["finish_reason"] = _or_null(whole["usage"]), _or_null(choice["finish_reason"])
    return Draft202012Validator({"$ref": f"#/components/schemas/{CHUNKS[route]}", "components": components})


def _or_null(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}]}


def _with_nulls(part: Any) -> Any:
    """Replace `nullable` by its JSON Schema form."""
    if isinstance(part, list):
        return [_with_nulls(each) for each in part]
    if not isinstance(part, dict):
        return part
    whole = {name: _with_nulls(each) for name, each in part.items() if name != "nullable"}
    return _or_null(whole) if part.get("nullable") is True else whole


def chunks_conform(_: Any, response: Any, case: Any) -> None:
    """Assert that every event of a stream is a chunk and the last one is [DONE]."""
    if not response.headers["content-type"][0].startswith("text/event-stream"):
        return
    events = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    found = [error for event in events for error in chunks_of(case.operation.path).iter_errors(json.loads(event))]
    assert not found, found


@pytest.fixture(scope="session")
def openai_document(unfailing: Served) -> Any:
    schema = schemathesis.openapi.from_dict(published())
    schema.config.update(base_url=f"{unfailing.url}/v1")
    schema.config.max_stream_events = 1 << 20  # all of every stream
    return schema


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_some_random_requests_of_a_route_conform(openai_document: Any, route: tuple[str, str]) -> None:
    check(openai_document, route, FEW, CHECKS, [chunks_conform])


@pytest.mark.soak
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_many_random_requests_of_a_route_conform(openai_document: Any, route: tuple[str, str]) -> None:
    check(openai_document, route, MANY, CHECKS, [chunks_conform])


def test_unknown_fields_of_the_document_are_named(unfailing: Served) -> None:
    part = {"type": "text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    reply = unfailing.chat(messages=[{"role": "user", "content": [part]}], prompt_cache_options={"ttl": "30m"})
    named = reply.headers["x-ferrum-ignored"].split(", ")
    assert sorted(named) == ["messages[0].content[0].prompt_cache_breakpoint", "prompt_cache_options"]
