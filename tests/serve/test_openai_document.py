"""The schemas that OpenAI publishes: nothing that the server answers deviates from them."""

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
"""What the events of a route's streams hold."""
UNKNOWN = ("prompt_cache_breakpoint", "prompt_cache_options")
"""Fields that the server has no use for and names as ignored."""
OF_REQUESTS = ("Request", "ModelResponseProperties", "StreamOptions", "StopConfiguration")
"""What is in the names of schemas of requests, and of no others."""
PASSED_ON = ("audio", "function_call")
"""Fields of an assistant's message that go to the chat template as they are."""


@cache
def published() -> Any:
    """The document, mended where its words and its schemas contradict one another.

    Completions are streamed, too; until the end of a choice its chunks have no reason for it, and but for the last one
    no usage. The first token of all has no log-probability. Nulls are marked as in documents of version 3.0.

    And where the server takes more, as its own document has it: null for whatever may be left out, more stop strings,
    biases with a point; fields that it does not know may hold anything.
    """
    document = json.loads(DOCUMENT.read_text())
    del document["security"]  # this server asks for no key; those that do are tested in test_operation
    for route in CHUNKS:  # here stand the chunks, where readers of documents look for events: `chunks_conform` knows
        document["paths"][route]["post"]["responses"]["200"]["content"]["text/event-stream"] = {}
    schemas = document["components"]["schemas"]
    completion = schemas["CreateCompletionResponse"]["properties"]
    choice = completion["choices"]["items"]["properties"]
    scores = choice["logprobs"]["anyOf"][0]["properties"]
    for part in (scores["token_logprobs"]["items"], scores["top_logprobs"]["items"]):
        part["nullable"] = True
    for name in PASSED_ON:
        del schemas["ChatCompletionRequestAssistantMessage"]["properties"][name]
    for name in schemas:
        if any(part in name for part in OF_REQUESTS):
            _widen(schemas[name])
    return _with_nulls(document)


def _widen(schema: Any) -> None:
    """Let the schema of a request have what the server takes beyond it."""
    for part in (*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        _widen(part)
    if "maxItems" in schema:
        schema["maxItems"] = MAX_STOP_STRINGS
    fields = schema.get("properties", {})
    for name in [each for each in fields if each not in schema.get("required", ())]:
        if name == "logit_bias":
            fields[name]["additionalProperties"] = {"type": "number"}
        fields[name] = {} if name in UNKNOWN else _or_null(fields[name])


@cache
def chunks_of(route: str) -> Draft202012Validator:
    """Holds a chunk of a route to what is published."""
    components = deepcopy(published()["components"])
    whole = components["schemas"]["CreateCompletionResponse"]["properties"]
    choice = whole["choices"]["items"]["properties"]
    whole["usage"], choice["finish_reason"] = _or_null(whole["usage"]), _or_null(choice["finish_reason"])
    return Draft202012Validator({"$ref": f"#/components/schemas/{CHUNKS[route]}", "components": components})


def _or_null(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}]}


def _with_nulls(part: Any) -> Any:
    """`nullable` in the words of JSON Schema."""
    if isinstance(part, list):
        return [_with_nulls(each) for each in part]
    if not isinstance(part, dict):
        return part
    whole = {name: _with_nulls(each) for name, each in part.items() if name != "nullable"}
    return _or_null(whole) if part.get("nullable") is True else whole


def chunks_conform(_: Any, response: Any, case: Any) -> None:
    """Every event of a stream is a chunk, and the last one says that it is over."""
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
def test_a_hundred_cases_of_every_route(openai_document: Any, route: tuple[str, str]) -> None:
    check(openai_document, route, FEW, CHECKS, [chunks_conform])


@pytest.mark.soak
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_many_cases_of_every_route(openai_document: Any, route: tuple[str, str]) -> None:
    check(openai_document, route, MANY, CHECKS, [chunks_conform])


def test_fields_that_the_server_does_not_know_are_named(unfailing: Served) -> None:
    part = {"type": "text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    reply = unfailing.chat(messages=[{"role": "user", "content": [part]}], prompt_cache_options={"ttl": "30m"})
    named = reply.headers["x-ferrum-ignored"].split(", ")
    assert sorted(named) == ["messages[0].content[0].prompt_cache_breakpoint", "prompt_cache_options"]
