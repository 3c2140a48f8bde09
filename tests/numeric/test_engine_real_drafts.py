"""Drafts change only the number of steps, not tokens, log-probabilities, text, ends or usage.

Drafts are verified in the span that would have run anyway. The proposer here knows the right tokens, so every number of
accepted and rejected draft tokens occurs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fakes import Guesses
from ferrum import LLM, AsyncEngine, SamplingParams
from ferrum.client.model_client import Parts
from ferrum.client.request_output import Delta, RequestOutput, join
from ferrum.core.step import PendingStep, StepBatch
from ferrum.engine.host import Built, ThreadHost
from ferrum.engine.messages import EngineInfo
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence
from ferrum.text.generation_config import load_generation_config
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import load_tokenizer
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from outcomes import essence
from tiny_with_tokenizer import spoken

DIRECTORY = "qwen3-windows"
PROMPTS = ["the rain in Spain", "stays", "mainly in the plain, said no one at all"]
CONTEXT = 128
LENGTH = 16
ANYWHERE = -1


@dataclass
class Drafter:
    """Proposes `count` of the known next tokens, wrong from position `wrong` on.

    None: all are right. ANYWHERE: another place at every token of the answer.
    """

    count: int = 0
    wrong: int | None = None
    known: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = field(default_factory=dict)

    def __call__(self, sequence: Sequence) -> tuple[int, ...]:
        right = self.known[sequence.request.prompt, sequence.choice] if self.count else ()
        drafts = right[sequence.generated : sequence.generated + self.count]
        wrong = {None: self.count, ANYWHERE: sequence.generated // 2 % (self.count + 1)}.get(self.wrong, self.wrong)
        return tuple(token if place < wrong else (token + 1) % 131 for place, token in enumerate(drafts))


class Spy:
    """An executor that counts verified and sampled tokens."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.inner = executor
        self.drafted = self.accepted = self.sampled = self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, batch: StepBatch) -> PendingStep:
        pending = self.inner.submit(batch)
        self.steps += 1
        for span, result in zip(batch.spans, pending.result().results, strict=True):
            self.drafted += span.drafts
            self.accepted += result.accepted
            self.sampled += len(result.tokens)
        return pending


def parts_of(drafter: Drafter) -> tuple[Parts, Spy]:
    """Return client parts with this proposer and a real model."""
    directory = spoken(DIRECTORY)
    executor = Spy(load_executor(directory, kernels="reference", max_sequence_length=CONTEXT, kv_capacity=1024))
    scheduler = Scheduler(
        executor.pages,
        policy=POLICIES["fcfs"],
        max_tokens_per_step=64,
        max_sequences=8,
        max_sequence_length=CONTEXT,
        drafter=Guesses(drafter),
    )
    info = EngineInfo("tiny", 131, CONTEXT, executor.kv_capacity(), "")
    parts = Parts(
        host=ThreadHost(lambda: Built(executor, scheduler, info)),
        tokenizer=load_tokenizer(DirectoryFiles(directory)),
        generation=load_generation_config(DirectoryFiles(directory)),
    )
    return parts, executor


@dataclass
class Drafting:
    """A client, its proposer and its counting executor."""

    llm: LLM
    drafter: Drafter
    spy: Spy

    def run(self, params: SamplingParams, count: int = 0, wrong: int | None = None) -> list[RequestOutput]:
        self.drafter.count, self.drafter.wrong = count, wrong
        self.spy.drafted = self.spy.accepted = self.spy.sampled = self.spy.steps = 0
        return self.llm.generate(PROMPTS, params, use_tqdm=False)

    def learn(self, params: SamplingParams) -> list[RequestOutput]:
        """Return the outputs without drafts, from which later drafts are taken."""
        outputs = self.run(params)
        for output in outputs:
            for choice in output.outputs:
                self.drafter.known[tuple(output.prompt_token_ids), choice.index] = tuple(choice.token_ids)
        return outputs


@pytest.fixture(scope="module")
def drafting() -> Iterator[Drafting]:
    drafter = Drafter()
    parts, spy = parts_of(drafter)
    with LLM.from_parts(parts) as llm:
        yield Drafting(llm, drafter, spy)


SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": LENGTH, "logprobs": 3, "ignore_eos": True}

RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"top_p": 0.9, "top_k": 50, "min_p": 0.01},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.9, "repetition_penalty": 1.4},
    "logit_bias": {"logit_bias": {70: 4.0, 80: 3.5, 90: -100.0}, "temperature": 0.5},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": [*range(40, 90)], "ignore_eos": False},
    "bad_words": {"bad_words": ["e", "th", "q"], "temperature": 1.2},
    "ngrams": {"no_repeat_ngram_size": 2, "allowed_token_ids": [*range(60, 72)], "temperature": 0.3},
    "dry": {"dry_multiplier": 4.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["e"], "temperature": 0.0},
    "allowed": {"allowed_token_ids": [*range(60, 75)], "presence_penalty": 1.0, "temperature": 1.5},
    "choices": {"n": 3, "prompt_logprobs": 2},
    "all at once": {
        "n": 2,
        "min_tokens": 9,
        "stop_token_ids": [40, 41, 42],
        "logit_bias": {70: 4.0},
        "bad_words": ["th"],
        "frequency_penalty": 0.9,
        "repetition_penalty": 1.4,
        "top_p": 0.9,
    },
}


@pytest.mark.contract("5.speculation is exact")
@pytest.mark.parametrize("rule", RULES)
def test_drafts_right_and_wrong_change_nothing(drafting: Drafting, rule: str) -> None:
    params = SamplingParams.from_dict(SAMPLED | RULES[rule])
    plain = drafting.learn(params)
    expected, steps = essence(plain), drafting.spy.steps
    for count in (1, 8):
        assert essence(drafting.run(params, count)) == expected, "all right"
        if len(plain[0].outputs[0].token_ids) > 2:
            assert drafting.spy.accepted == drafting.spy.drafted > 0 and drafting.spy.steps < steps
    assert essence(drafting.run(params, 3, wrong=0)) == expected, "all wrong"
    assert drafting.spy.accepted == 0 and drafting.spy.drafted > 0
    for count in (2, 5, 8):
        assert essence(drafting.run(params, count, wrong=ANYWHERE)) == expected, "right at first"
        assert 0 < drafting.spy.accepted < drafting.spy.drafted


@pytest.mark.contract("5.speculation is exact")
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_stop_string_completed_inside_an_accepted_draft_ends_there(
    drafting: Drafting, temperature: float, include: bool
) -> None:
    base = SAMPLED | {"temperature": temperature}
    unstopped = drafting.learn(SamplingParams.from_dict(base))
    stops = [output.outputs[0].text[7:10] for output in unstopped]
    params = SamplingParams.from_dict(base | {"stop": stops, "include_stop_str_in_output": include})
    plain = drafting.run(params)
    for output, whole in zip(plain, unstopped, strict=True):
        (choice,), (full,) = output.outputs, whole.outputs
        assert choice.finish_reason == "stop" and choice.stop_reason in stops
        assert choice.text.endswith(choice.stop_reason) == include
        assert full.text.startswith(choice.text)
        kept = len(choice.token_ids)
        assert kept < LENGTH and choice.token_ids == full.token_ids[:kept] and choice.logprobs == full.logprobs[:kept]
        assert output.metrics.usage.completion_tokens == kept
    for count in (1, 2, 4, 8):
        for wrong in (None, count - 1):
            assert essence(drafting.run(params, count, wrong)) == essence(plain)
    drafting.run(params, 8)
    kept = sum(output.metrics.usage.completion_tokens for output in plain)
    assert drafting.spy.sampled > kept, "tokens were sampled, and accepted, behind the stop strings"


def test_the_asynchronous_engine_verifies_drafts_too(drafting: Drafting) -> None:
    params = SamplingParams.from_dict(SAMPLED | RULES["penalties"] | {"stop": ["zq"]})
    plain = drafting.learn(params)
    parts, spy = parts_of(Drafter(5, 3, drafting.drafter.known))

    async def collect(engine: AsyncEngine, prompt: str) -> Delta:
        whole: Delta | None = None
        async for delta in engine.generate(prompt, params):
            whole = delta if whole is None else join(whole, delta)
        assert whole is not None
        return whole

    async def all_of_them() -> list[Delta]:
        async with AsyncEngine.from_parts(parts) as engine:
            return await asyncio.gather(*(collect(engine, prompt) for prompt in PROMPTS))

    for output, delta in zip(plain, asyncio.run(all_of_them()), strict=True):
        (choice,) = output.outputs
        assert (list(delta.token_ids), delta.text, list(delta.logprobs or ())) == (
            choice.token_ids,
            choice.text,
            choice.logprobs,
        )
        assert delta.finish_reason == choice.finish_reason and delta.usage == output.metrics.usage
    assert 0 < spy.accepted < spy.drafted
