"""The OpenAPI document is true: requests that it allows or forbids get the replies that it describes."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis

import document_kit
from document_kit import FEW, MANY, check, documented_routes
from ferrum.server.anthropic.fields import CountRequest, MessagesRequest
from ferrum.server.common.field_rules import HARMLESS
from ferrum.server.common.json_bodies import Body
from ferrum.server.openai.fields import ChatRequest, CompletionRequest
from ferrum.server.responses.fields import InputTokensRequest, ResponsesRequest
from ferrum.server.tasks.tokenize import RenderRequest, TokenizeRequest
from serve_kit import Served

ROUTES = documented_routes()


@pytest.fixture(autouse=True)
def a_response(unfailing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"input": "hello", "background": True, "stream": True, "max_output_tokens": 1, "request_id": "known"}
    unfailing.post("/v1/responses", **body)
    monkeypatch.setitem(document_kit.KNOWN, "response_id", "resp_known")


@pytest.fixture(scope="session")
def document(unfailing: Served) -> Any:
    return schemathesis.openapi.from_url(f"{unfailing.url}/openapi.json")


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_some_random_requests_of_a_route_conform(document: Any, route: tuple[str, str]) -> None:
    check(document, route, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_many_random_requests_of_a_route_conform(document: Any, route: tuple[str, str]) -> None:
    check(document, route, MANY)


def test_the_served_document_has_the_routes_that_are_tested(shared: Served) -> None:
    paths = shared.http.get("/openapi.json").json()["paths"]
    found = [(method, path) for path, operations in paths.items() for method in operations]
    assert found == ROUTES and len(found) > 30


@pytest.mark.parametrize(
    "body",
    [
        ChatRequest,
        CompletionRequest,
        CountRequest,
        MessagesRequest,
        InputTokensRequest,
        RenderRequest,
        ResponsesRequest,
        TokenizeRequest,
    ],
)
def test_refused_fields_may_only_ask_for_nothing(shared: Served, body: type[Body]) -> None:
    schema = shared.http.get("/openapi.json").json()["components"]["schemas"][body.__name__]
    rules = {name: dict(schema["properties"][name]) for name in body.REFUSED}
    assert rules and all("Refused" in rule.pop("description") for rule in rules.values())
    for name, rule in rules.items():
        assert rule == ({"enum": [None, *HARMLESS[name]]} if name in HARMLESS else {"type": "null"})
    assert "additionalProperties" not in schema or schema["additionalProperties"] is True


def test_seed_limits_of_the_document_are_exact(shared: Served) -> None:
    """Seeds are 64-bit signed integers, most of which no double represents."""
    seed = shared.http.get("/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["properties"]["seed"]
    low, above = seed["minimum"], seed["exclusiveMaximum"]
    assert (type(low), low, type(above), above) == (int, -(2**63), int, 2**63)
    answers = [shared.complete(max_tokens=1, seed=number) for number in (low - 1, low, above - 1, above)]
    assert [answer.status_code for answer in answers] == [400, 200, 200, 400]
