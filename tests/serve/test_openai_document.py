"""The schemas that OpenAI publishes: nothing that the server answers deviates from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schemathesis

from document_kit import FEW, MANY, check
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


@pytest.fixture(scope="session")
def openai_document(unfailing: Served) -> Any:
    document = json.loads(DOCUMENT.read_text())
    del document["security"]  # this server asks for no key; those that do are tested in test_operation
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=f"{unfailing.url}/v1")
    return schema


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_a_hundred_cases_of_every_route(openai_document: Any, route: tuple[str, str]) -> None:
    check(openai_document, route, FEW, CHECKS)


@pytest.mark.soak
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_many_cases_of_every_route(openai_document: Any, route: tuple[str, str]) -> None:
    check(openai_document, route, MANY, CHECKS)
