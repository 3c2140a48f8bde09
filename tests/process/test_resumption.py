"""Requests that are cut anywhere go on in another engine process, with the output of an undisturbed run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from ferrum import LLM, SamplingParams
from ferrum.client.input_processor import RequestOptions
from ferrum.client.offline_batch import Batch, stream
from ferrum.client.records.record import read_record
from ferrum.client.records.resumption import Resumption
from ferrum.client.request_output import CompletionOutput, Logprobs, RequestOutput
from ferrum.core.errors import RecordMismatch, RequestError
from ferrum.core.guidance import Guidance
from ferrum.core.output_format import OutputFormat, Reading, Reasoning
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import Made, Request
from ferrum.engine.progress import progress_bar
from guided_kit import grammar, letter, schema_source, thought
from tiny_with_tokenizer import spoken

COUNT = 500
THOUGHTS = OutputFormat(name="letters", source="test", reasoning=Reasoning(open="<", close=">"))
LIST = grammar(schema_source({"type": "array", "items": {"enum": [1, 23]}, "minItems": 2, "maxItems": 4}))
CALLS = grammar('start: "(" /[a-f]{3,5}/ ")"', letter("="), repeats=True)
BUDGET = Guidance(thought=thought(4))


@pytest.fixture(scope="module")
def first() -> Iterator[LLM]:
    with LLM(str(spoken("qwen3")), dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def second() -> Iterator[LLM]:
    """Another process, whose pool is small enough that sequences lose their pages."""
    with LLM(str(spoken("qwen3")), dtype="float32", host="process", kv_capacity=1024, speculative="ngram") as llm:
        yield llm


def request_of(llm: LLM, number: int) -> Request:
    """Return a request of a kind that follows from its number."""
    pick = Random(number)
    reads = pick.random() < 0.2
    params = SamplingParams(
        n=pick.choice((1, 1, 3)),
        temperature=pick.choice((0.0, 0.8, 1.2)),
        top_p=pick.choice((1.0, 0.9)),
        max_tokens=pick.choice((1, 3, 12, 24)),
        min_tokens=pick.choice((0, 1)),
        seed=number,
        logprobs=pick.choice((None, 0, 2)),
        prompt_logprobs=pick.choice((None, None, 1)),
        stop_token_ids=pick.choice(([], [50, 60, 70])),
        stop=pick.choice(([], ["e"], ["th", "a b"], ["in", "zq"])),
        include_stop_str_in_output=pick.random() < 0.3,
        presence_penalty=pick.choice((0.0, 0.7)),
        repetition_penalty=pick.choice((1.0, 1.3)),
        no_repeat_ngram_size=pick.choice((0, 0, 3)),
        dry_multiplier=pick.choice((0.0, 0.0, 2.0)),
        logit_bias=pick.choice((None, {30: 2.0, 40: -100.0})),
    )
    reading = Reading(format=THOUGHTS, opened=True) if reads else None
    guidance = BUDGET if reads else pick.choice((None, None, LIST, CALLS))
    options = RequestOptions(request_id=f"r{number}", guidance=guidance, reading=reading)
    return llm.client.input_processor.process(f"prompt {number % 7} of the test", params, options)


@cache
def undisturbed(llm: LLM) -> tuple[list[Request], list[RequestOutput]]:
    requests = [request_of(llm, number) for number in range(COUNT)]
    batch = Batch(llm.client.router, llm.client.tokenizer, requests, [None] * COUNT)
    return requests, batch.run(progress_bar(False, COUNT, ""))


def made_of(request: Request, choice: CompletionOutput, count: int) -> Made:
    """Return the first tokens of a choice as its client has them."""
    tokens = tuple(choice.token_ids[:count])
    if choice.logprobs is None:
        return Made(choice.index, tokens)
    top = request.params.logprobs or 0
    pairs = zip(tokens, choice.logprobs, strict=False)
    return Made(choice.index, tokens, tuple(_position(token, each, top) for token, each in pairs))


def _position(token: int, position: Logprobs, top: int) -> TokenLogprobs:
    best = sorted((each.rank, other, each.logprob) for other, each in position.items() if each.rank <= top)
    pairs = tuple((other, logprob) for _, other, logprob in best)
    return TokenLogprobs(token, position[token].logprob, position[token].rank, pairs)


def comparable(pair: tuple[CompletionOutput, list[Logprobs | None] | None]) -> tuple[object, ...]:
    """Return a choice and its prompt's log-probabilities; errors are equal if their texts are."""
    return replace(pair[0], error=None), repr(pair[0].error), pair[1]


def test_requests_cut_anywhere_go_on_in_another_process(first: LLM, second: LLM) -> None:
    resumptions, expected = [], []
    for request, output in zip(*undisturbed(first), strict=True):
        for choice in output.outputs:
            count = Random(f"{request.request_id}/{choice.index}").randrange(len(choice.token_ids))
            whole = Resumption.of(request, made_of(request, choice, count))
            named = replace(whole.request, request_id=f"{request.request_id}/{choice.index}")
            resumptions.append(Resumption.from_dict(json.loads(json.dumps(replace(whole, request=named).to_dict()))))
            expected.append((choice, None if count else output.prompt_logprobs))
    outputs = second.resume(resumptions, use_tqdm=False)
    found = [(*output.outputs, output.prompt_logprobs) for output in outputs]
    assert list(map(comparable, found)) == list(map(comparable, expected))
    assert [output.metrics.usage.completion_tokens for output in outputs] == [len(c.token_ids) for c, _ in expected]
    # errors are dead ends: a grammar whose only tokens a rule forbids
    stops = {choice.finish_reason for choice, _ in expected} | {type(choice.stop_reason) for choice, _ in expected}
    assert stops == {"stop", "length", "error", str, int, type(None)}


def test_only_what_follows_is_streamed(first: LLM) -> None:
    request, output = (each[3] for each in undisturbed(first))
    choice = output.outputs[0]
    resumed = first.client.resumed(Resumption.of(request, made_of(request, choice, 1)))
    deltas = list(stream(first.client.router, first.client.tokenizer, replace(resumed, request_id="again")))
    assert [token for delta in deltas for token in delta.token_ids] == choice.token_ids[1:]


def test_a_killed_engines_record_goes_on(tmp_path: Path) -> None:
    """A record without its last line is that of an engine that was killed."""
    prompt, params = "a record of an engine", SamplingParams(temperature=0.9, seed=4, max_tokens=20, n=2)
    model = str(spoken("qwen3"))
    with LLM(model, dtype="float32", record_dir=str(tmp_path)) as llm:
        (output,) = llm.generate(prompt, params, use_tqdm=False)
    (path,) = tmp_path.rglob("*.jsonl*")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    record = read_record(path)
    with LLM(model, dtype="float32") as llm:
        resumptions = [Resumption.of_record(record, choice) for choice in record.request.choices]
        assert all(resumption.request.known for resumption in resumptions)
        several = [
            replace(each, request=replace(each.request, request_id=str(i))) for i, each in enumerate(resumptions)
        ]
        assert [again.outputs[0] for again in llm.resume(several, use_tqdm=False)] == output.outputs
    with LLM(model, dtype="bfloat16") as other, pytest.raises(RecordMismatch, match="weights"):
        other.resume(resumptions, use_tqdm=False)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (Made(0, (9, 9, 9, 9)), "nothing is left"),
        (Made(0, (9, 1)), "nothing is left"),
        (Made(3), "generates no choice 3"),
        (Made(0, (70,)), "nothing is left"),  # the stop string
    ],
)
def test_tokens_that_nothing_can_follow_are_refused(first: LLM, made: Made, reason: str) -> None:
    params = SamplingParams(max_tokens=4, stop=["d"], n=2)
    request = first.client.input_processor.process("x", params, RequestOptions(request_id="late"))
    with pytest.raises(RequestError, match=reason):
        for output in first.resume([Resumption.of(request, made)], use_tqdm=False):
            output.outputs[0].check_whole()
