"""Random requests from an OpenAPI document, and answers held to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

FEW = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
MANY = settings(FEW, max_examples=2000, derandomize=False)


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


def check(document: Any, route: tuple[str, str], profile: settings, checks: Collection[str] | None = None) -> None:
    """Valid and invalid requests of a route; any answer that the document does not know is a failure.

    Args:
        checks: by name; None: all but that valid bodies are served. Ranges, and rules between fields, are no business
            of types: a body that fits its types may be refused.
    """
    method, path = route
    operation = document[path][method]
    every = {each.__name__: each for each in CHECKS.get_all()}
    names = set(every) - {"positive_data_acceptance"} if checks is None else set(checks)
    assert names <= set(every)
    strategy = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    @profile
    @given(strategy)
    def run(case: Any) -> None:
        case.call_and_validate(checks=[every[name] for name in sorted(names)])

    run()
