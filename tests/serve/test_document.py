"""The OpenAPI document is true: whatever it allows, and whatever it does not, gets an answer that it knows."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from serve_kit import Served

FEW = settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=2000, derandomize=False)

NOT_CHECKED = {"positive_data_acceptance"}
"""Ranges, and rules between fields, are no business of types: a body that fits its types may be refused."""


ROUTES = [
    ("get", "/health"),
    ("get", "/ping"),
    ("get", "/ready"),
    ("get", "/version"),
    ("get", "/metrics"),
    ("get", "/v1/config"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{model_id}"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/chat/completions/render"),
    ("post", "/v1/completions"),
    ("post", "/v1/embeddings"),
    ("delete", "/v1/requests/{request_id}"),
    ("post", "/tokenize"),
    ("post", "/detokenize"),
]


@pytest.fixture(scope="session")
def document(shared: Served) -> Any:
    return schemathesis.openapi.from_url(f"{shared.url}/openapi.json")


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Else hardly a body would get past the name of the model, and those that do could generate for ever."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body = {**body, "model": "fake"}
        if isinstance(body.get("n"), int):
            body["n"] = min(body["n"], 4)
        if "max_tokens" not in body:
            body["max_tokens"] = 4
    return body


def check(document: Any, route: tuple[str, str], profile: settings) -> None:
    """Valid and invalid requests of a route; any answer that the document does not know is a failure."""
    method, path = route
    operation = document[path][method]
    excluded = [each for each in CHECKS.get_all() if each.__name__ in NOT_CHECKED]
    strategy = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    @profile
    @given(strategy)
    def run(case: Any) -> None:
        case.call_and_validate(excluded_checks=excluded)

    run()


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_a_few_cases_of_every_route(document: Any, route: tuple[str, str]) -> None:
    check(document, route, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_many_cases_of_every_route(document: Any, route: tuple[str, str]) -> None:
    check(document, route, MANY)


def test_the_routes_are_all_of_the_documents(shared: Served) -> None:
    paths = shared.http.get("/openapi.json").json()["paths"]
    assert {(method, path) for path, operations in paths.items() for method in operations} == set(ROUTES)
