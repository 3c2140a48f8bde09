"""`StructuredOutputs`: exactly one constraint, checked by field, as plain data of the sampling parameters."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

import ferrum
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.structured_outputs import MAX_SOURCE, StructuredOutputs

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"const": "é"}}}

# vLLM's `StructuredOutputsParams`: its names of constraints and of options.
ONE_EACH: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"json": json.dumps(SCHEMA)},
    {"json": True},
    {"json_object": True},
    {"regex": "[0-9]+"},
    {"choice": ["yes", "no"]},
    {"grammar": 'start: "a"'},
    {"structural_tag": {"type": "structural_tag", "structures": [], "triggers": []}},
    {"json": SCHEMA, "disable_any_whitespace": True},
    {"json": SCHEMA, "disable_additional_properties": True},
    {"json_object": True, "whitespace_pattern": "[ ]?"},
]


@pytest.mark.parametrize("values", ONE_EACH, ids=lambda values: "+".join(values))
def test_a_constraint_is_read_hashed_and_written(values: dict[str, Any]) -> None:
    outputs = StructuredOutputs(**values)
    params = SamplingParams(structured_outputs=values)  # type: ignore[arg-type]
    assert params.structured_outputs == outputs and hash(params) == hash(SamplingParams(structured_outputs=outputs))
    assert StructuredOutputs.from_dict(outputs.to_dict()) == outputs == pickle.loads(pickle.dumps(outputs))
    assert SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params
    assert params.but(structured_outputs=None) == SamplingParams()
    assert len(outputs.given) == 1


def test_a_schema_is_kept_as_compact_text_in_the_order_of_its_keys() -> None:
    text = '{"type":"object","properties":{"b":{"type":"string"},"a":{"const":"é"}}}'
    assert StructuredOutputs(json=SCHEMA).json == text  # type: ignore[arg-type]
    assert StructuredOutputs(json=json.dumps(SCHEMA)).json == text


def test_the_record_is_public() -> None:
    assert ferrum.StructuredOutputs is StructuredOutputs


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({}, "structured_outputs"),
        ({"json": None, "json_object": False}, "structured_outputs"),
        ({"json": SCHEMA, "regex": "a"}, "structured_outputs"),
        ({"json": "{"}, "json"),
        ({"json": "[1]"}, "json"),
        ({"json": '{"minimum": NaN}'}, "json"),
        ({"json": {"const": float("nan")}}, "json"),
        ({"json": {"const": {1, 2}}}, "json"),
        ({"json": 5}, "json"),
        ({"json": "[" * 100_000}, "json"),
        ({"json": '"' + "a" * MAX_SOURCE + '"'}, "json"),
        ({"json": {"const": "\ud800"}}, "json"),
        ({"json_object": 1}, "json_object"),
        ({"regex": ""}, "regex"),
        ({"regex": b"a"}, "regex"),
        ({"regex": "a" * (MAX_SOURCE + 1)}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": "yes"}, "choice"),
        ({"choice": ["yes", ""]}, "choice"),
        ({"choice": ["yes", None]}, "choice"),
        ({"choice": ["yes", 1]}, "choice"),
        ({"choice": [["yes"]]}, "choice"),
        ({"choice": [str(number) * 99 for number in range(2000)]}, "choice"),
        ({"grammar": 7}, "grammar"),
        ({"structural_tag": True}, "structural_tag"),
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace"),
        ({"json_object": True, "disable_additional_properties": True}, "disable_additional_properties"),
        ({"choice": ["a"], "whitespace_pattern": " "}, "whitespace_pattern"),
        ({"json": True, "whitespace_pattern": " ", "disable_any_whitespace": True}, "whitespace_pattern"),
        ({"json": True, "backend": "auto"}, "backend"),
    ],
)
def test_a_bad_constraint_is_refused_by_field(values: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputs.from_dict(values)
    assert caught.value.param == param and caught.value.message
    with pytest.raises(RequestError) as caught:
        SamplingParams(structured_outputs=values)  # type: ignore[arg-type]
    assert caught.value.param == (
        "structured_outputs" if param == "structured_outputs" else f"structured_outputs.{param}"
    )


@pytest.mark.parametrize("values", [5, [], ["json"], "json", "[]"])
def test_a_constraint_is_an_object(values: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(structured_outputs=values)  # type: ignore[arg-type]
    assert caught.value.param == "structured_outputs"
