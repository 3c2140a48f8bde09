"""Schemas of the official test suite and of the kinds of public collections: no invalid instance is accepted.

`tests/data/json_schema_suite` has the source. A slice runs always, everything in the soak.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jsonschema_rs
import pytest

from byte_matcher import ByteMatcher
from ferrum.core.errors import InvalidSchema
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.grammar.constraint_grammars import checked_grammar
from schema_kinds import schema_of_kind
from source_tree import REPOSITORY

DRAFTS = ("draft4", "draft7", "draft2020-12")
CASES: list[tuple[str, Any, list[tuple[Any, bool]]]] = [
    (f"{draft} {name}", schema, instances)
    for draft in DRAFTS
    for name, schema, instances in json.loads(
        (REPOSITORY / "tests" / "data" / "json_schema_suite" / f"{draft}.json").read_text()
    )
]


def compiled(schema: Any) -> ByteMatcher | str:
    """Return the grammar of a schema, or the reason of its refusal, which begins with a pointer."""
    try:
        return ByteMatcher(checked_grammar(StructuredOutputs(json=json.dumps(schema))))
    except InvalidSchema as error:
        assert error.message.startswith("#"), error.message
        return error.message


def check_suite(cases: Iterable[tuple[str, Any, list[tuple[Any, bool]]]]) -> Counter[str]:
    """Check that no invalid instance of the suite is accepted; return how schemas and valid instances fared."""
    found: Counter[str] = Counter()
    for name, schema, instances in cases:
        matcher = compiled(schema)
        found["refused" if isinstance(matcher, str) else "compiled"] += 1
        for instance, valid in instances if isinstance(matcher, ByteMatcher) else ():
            accepted = matcher.accepts(json.dumps(instance, ensure_ascii=False))
            assert valid or not accepted, f"{name}: {instance}"
            found["accepted" if accepted else "rejected" if not valid else "overstrict"] += 1
    return found


def check_kinds(numbers: Iterable[int]) -> Counter[str]:
    """Check that random texts of the grammars, and changed ones that a grammar still accepts, satisfy the schemas."""
    found: Counter[str] = Counter()
    for number in numbers:
        schema = schema_of_kind(number)
        matcher, draw = compiled(schema), random.Random(number)
        found["refused" if isinstance(matcher, str) else "compiled"] += 1
        if isinstance(matcher, str):
            continue
        judge = jsonschema_rs.validator_for(schema, validate_formats=True)
        texts = [text for _ in range(3) if (text := matcher.random_text(draw)) is not None]
        changed = [text.replace(*draw.choice([("0", "-1"), ('"', "1"), ("a", "b"), ("{}", "[]")])) for text in texts]
        for text in [*texts, *filter(matcher.accepts, changed)]:
            assert judge.is_valid(json.loads(text)), f"{schema}: {text}"
            found["valid"] += 1
    return found


def test_suite_slice() -> None:
    found = check_suite(CASES[::9])
    assert found["compiled"] >= 70 and found["accepted"] >= 10 * found["overstrict"]


@pytest.mark.soak
def test_suite() -> None:
    """Record how many schemas are refused: a change here is a change of what is enforced."""
    assert len(CASES) == 948
    found = check_suite(CASES)
    assert found["compiled"] >= 660 and found["accepted"] >= 10 * found["overstrict"], found


def test_kinds_slice() -> None:
    found = check_kinds(range(50))
    assert found["compiled"] >= 45 and found["valid"] >= 100, found


@pytest.mark.soak
def test_kinds() -> None:
    found = check_kinds(range(500))
    assert found["compiled"] >= 450, found
