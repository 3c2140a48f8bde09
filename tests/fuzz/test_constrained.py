"""Constrained generations end by themselves, are valid, and have the same bits with and without drafts."""

from __future__ import annotations

import pytest

from constrained_kit import is_valid, random_model, schema_jobs
from ferrum import LLM
from guided_kit import generate
from outcomes import essence

COUNTS = [50, pytest.param(2000, marks=pytest.mark.soak)]


@pytest.mark.parametrize("count", COUNTS)
def test_random_model_ends_every_bounded_schema_with_valid_json(count: int) -> None:
    jobs = schema_jobs(count, max_tokens=600)
    with LLM(str(random_model()), dtype="float32", speculative="ngram") as llm:
        drafted = generate(llm, [job for _, job in jobs])
    for (schema, job), output in zip(jobs, drafted, strict=True):
        (choice,) = output.outputs
        assert choice.finish_reason == "stop", (schema, job.params, choice)
        assert is_valid(schema, choice.text), (schema, choice.text)
    with LLM(str(random_model()), dtype="float32", prefix_cache=False, max_batch_size=1) as llm:
        some = slice(0, len(jobs), 5)
        assert essence(generate(llm, [job for _, job in jobs[some]])) == essence(drafted[some])
