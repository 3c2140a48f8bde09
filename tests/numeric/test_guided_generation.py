"""Limits on tokens: outputs keep to them, and have the same bits however they are served."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from fakes import admit_all
from ferrum import LLM, SamplingParams
from ferrum.client.request_output import RequestOutput
from ferrum.core.guidance import Grammar, Guidance, Marker
from ferrum.scheduler.scheduler import Scheduler
from guided_kit import TOKEN, Job, generate, grammar, letter, schema_source, thought
from late_backend import late_backend
from outcomes import essence
from tiny_with_tokenizer import spoken

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WORD = 'start: "(" /[a-f]{3,5}/ ")"'
"""The text of a call in these tests."""

PLAIN = grammar(schema_source(PERSON))
BY_ID = grammar(WORD, letter("="), repeats=True)
BY_BYTES = grammar(WORD, Marker(text="e"), repeats=True)
THINKING = Guidance(thought=thought(7), grammar=Grammar(source=WORD))
CLOSING = Guidance(thought=thought(9))
MAY_THINK = Guidance(thought=thought(3, opened=False), grammar=Grammar(source=WORD))


def params(seed: int = 0, **more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 40, "seed": seed, "ignore_eos": False, **more})


JOBS = (
    Job("a person", params(1), PLAIN),
    Job("a person", params(2, temperature=0.0), PLAIN),
    Job("another person, the second", params(3, top_p=0.8, presence_penalty=0.7, n=3, logprobs=2), PLAIN),
    Job("calls " * 6, params(4, logit_bias={TOKEN["="]: 3.0}, min_tokens=30), BY_ID),
    Job(
        "calls " * 3,
        params(5, repetition_penalty=1.1, logit_bias={TOKEN["e"]: 4.0}, min_tokens=30),
        BY_BYTES,
    ),
    Job("think", params(6, n=2, min_tokens=8), THINKING),
    Job("think longer", params(7, min_tokens=12), CLOSING),
    Job("think longer", params(8, min_p=0.01), MAY_THINK),
    Job("no limits at all", params(9)),
    Job("no limits at all", params(10, temperature=0.0, max_tokens=60)),
)


def served(jobs: tuple[Job, ...] = JOBS, **options: Any) -> list[RequestOutput]:
    with LLM(str(spoken("qwen3-windows")), dtype="float32", **options) as llm:
        return generate(llm, jobs)


@pytest.fixture(scope="module")
def alone() -> Iterator[list[RequestOutput]]:
    """The jobs, each alone."""
    with LLM(str(spoken("qwen3-windows")), dtype="float32", prefix_cache=False) as llm:
        yield [output for job in JOBS for output in generate(llm, (job,))]


WAYS = {
    "in company": {},
    "drafts": {"speculative": "ngram"},
    "preempted": {"kv_capacity": 192},
    "chunks": {"max_tokens_per_step": 8, "prefix_cache": False},
    "chunks and drafts": {"max_tokens_per_step": 16, "speculative": "ngram", "max_batch_size": 3},
    "process": {"host": "process"},
}


@pytest.mark.parametrize("way", WAYS)
def test_bits_do_not_depend_on_serving(
    way: str, alone: list[RequestOutput], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    if way == "preempted":
        monkeypatch.setattr("ferrum.engine.recipe.Scheduler", partial(Scheduler, reserve=admit_all))
    assert essence(served(**WAYS[way])) == essence(alone)
    assert ("preempted" in caplog.text) is (way == "preempted")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_bits_do_not_depend_on_steps_in_flight(depth: int, alone: list[RequestOutput]) -> None:
    with late_backend():
        assert essence(served(run_ahead=depth)) == essence(alone)


def texts(outputs: list[RequestOutput], *jobs: int) -> list[str]:
    return [choice.text for job in jobs for choice in outputs[job].outputs]


def test_outputs_of_a_schema_are_valid_if_they_end(alone: list[RequestOutput]) -> None:
    choices = [choice for job in (0, 1, 2) for choice in alone[job].outputs]
    assert {choice.finish_reason for choice in choices} == {"stop"}
    for choice in choices:
        found = json.loads(choice.text)
        assert found.keys() == {"name", "age"} and len(found["name"]) <= 6 and 0 <= found["age"] <= 99


def calls_of(text: str, trigger: str) -> list[str]:
    """Return what follows each trigger that is outside of the calls before it."""
    parts, rest = [], text
    while trigger in rest:
        rest = rest.partition(trigger)[2]
        call = re.match(r"\([a-f]{3,5}\)", rest)
        parts.append(rest[: call.end()] if call else rest)
        rest = rest[call.end() :] if call else ""
    return parts


@pytest.mark.parametrize(("job", "trigger"), [(3, "="), (4, "e")])
def test_grammar_begins_after_each_trigger(job: int, trigger: str, alone: list[RequestOutput]) -> None:
    (text,) = texts(alone, job)
    calls = calls_of(text, trigger)
    assert calls and all(re.fullmatch(r"\([a-f]{3,5}\)", call) for call in calls[:-1])
    assert re.match(r"(\([a-f]{3,5}\)|\([a-f]{0,5})?$", calls[-1])


def test_budget_closes_the_thought_and_the_grammar_follows(alone: list[RequestOutput]) -> None:
    for choice in alone[5].outputs:
        assert choice.token_ids.index(TOKEN[">"]) <= 8 and re.fullmatch(r"[^>]+>\([a-f]{3,5}\)", choice.text)
    assert alone[6].outputs[0].token_ids[9:11] == [TOKEN["~"], TOKEN[">"]]
