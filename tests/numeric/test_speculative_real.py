"""Every proposer with a real model: answers are those of an engine without drafts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_engine_real_drafts import RULES, SAMPLED
from typer.testing import CliRunner

from fakes import admit_all
from ferrum import LLM, SamplingParams
from ferrum.cli.main import app
from ferrum.client.input_processor import RequestOptions
from ferrum.client.offline_batch import Batch
from ferrum.client.request_output import Delta, RequestOutput
from ferrum.core.errors import ConfigError, KvExhausted, NonFiniteLogits
from ferrum.core.snapshots import SpeculationCounts
from ferrum.core.step import StepBatch, StepOutput
from ferrum.core.types import Request
from ferrum.engine import draft_setup, recipe
from ferrum.engine.messages import EngineStats
from ferrum.engine.progress import NoBar
from ferrum.scheduler import admission
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.draft_model import DraftModel
from ferrum.verbs.load_executor import LocalExecutor
from fixed_costs import SetCosts
from outcomes import essence
from tiny import directory_of, find
from tiny_with_tokenizer import spoken

MODEL = "qwen3-windows"
PROMPTS = ["the rain in Spain, the rain in Spain, the", "ababababab", "mainly in the plain, said no one at all"]
PROPOSERS: dict[str, Any] = {
    "ngram": "ngram",
    "another model": {"method": "draft_model", "model": str(spoken("qwen3")), "num_speculative_tokens": 5},
    "the same model": {"model": str(spoken(MODEL)), "num_speculative_tokens": 3},
}
TIGHT = 3 * 64
"""A pool too small for two of these prompts with their outputs."""


@contextmanager
def model(speculative: Any = None, path: Path | None = None, **options: Any) -> Iterator[LLM]:
    options = {"kernels": "reference", "max_sequence_length": 160, "kv_capacity": 1024, **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "StepCosts", SetCosts)  # whether guesses pay is not to depend on this machine
        patch.setattr(draft_setup, "StepCosts", lambda: SetCosts(step=0.01))
        llm = LLM(str(path or spoken(MODEL)), speculative=speculative, **options)
    with llm:
        llm.client.router.observers = (Watch(),)
        yield llm


class Watch:
    """An `Observer` that keeps the engine's speculation counts."""

    def __init__(self) -> None:
        self.counts = SpeculationCounts()

    def step(self, stats: EngineStats) -> None:
        self.counts = stats.speculation

    def delta(self, request: Request, delta: Delta) -> None: ...


def counts(llm: LLM) -> SpeculationCounts:
    (watch,) = llm.client.router.observers
    assert isinstance(watch, Watch)
    return watch.counts


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with model() as llm:
        yield llm


@pytest.fixture(scope="module", params=PROPOSERS)
def drafting(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with model(PROPOSERS[request.param]) as llm:
        yield llm


SEVERAL = [
    *(SamplingParams.from_dict({**SAMPLED, **rule, "max_tokens": 24}) for rule in RULES.values()),
    *(SamplingParams.from_dict({**SAMPLED, "stop": [stop], "max_tokens": 40}) for stop in ("e", "th", "ab")),
]
"""Every sampling rule, and stop strings that drafted text contains."""


def answers(llm: LLM) -> list[Any]:
    """Return the answers to every prompt under each of `SEVERAL`, in one batch."""
    prompts, params = zip(*((prompt, params) for params in SEVERAL for prompt in PROMPTS), strict=True)
    return essence(llm.generate(list(prompts), list(params), use_tqdm=False))


@pytest.fixture(scope="module")
def plain_answers(plain: LLM) -> list[Any]:
    return answers(plain)


def test_no_proposer_changes_an_answer(plain_answers: list[Any], drafting: LLM) -> None:
    assert answers(drafting) == plain_answers
    assert counts(drafting).drafts > 0


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_small_pool_changes_no_answer(plain: LLM, proposer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "growth_reserve", admit_all)
    params = SamplingParams.from_dict({**SAMPLED, "max_tokens": 60, "n": 2})
    expected = essence(plain.generate(PROMPTS, params, use_tqdm=False))
    with model(PROPOSERS[proposer], kv_capacity=TIGHT) as llm:
        assert essence(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert counts(llm).drafts > 0


def test_a_draft_model_that_is_the_target_is_always_right(plain: LLM) -> None:
    params = SamplingParams.from_dict({**SAMPLED, "max_tokens": 24})
    with model(PROPOSERS["the same model"]) as llm:
        llm.generate(PROMPTS, params, use_tqdm=False)
        found = counts(llm)
        assert found.draft_tokens == found.accepted_tokens > 0


def predicted(llm: LLM, output: RequestOutput, params: SamplingParams, prediction: list[int]) -> RequestOutput:
    request = llm.client.input_processor.process(output.prompt_token_ids, params, RequestOptions(prediction=prediction))
    (found,) = Batch(llm.client.router, llm.client.tokenizer, [request], [output.prompt]).run(NoBar())
    return found


@pytest.mark.parametrize("error", [KvExhausted("full"), NonFiniteLogits("nan"), RuntimeError("broken")])
def test_a_failing_draft_model_changes_no_answer(plain: LLM, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams.from_dict({**SAMPLED, "max_tokens": 24})
    expected = essence(plain.generate(PROMPTS, params, use_tqdm=False))

    def failing(executor: LocalExecutor, *costs: StepCosts) -> DraftModel:
        run, steps = executor.lm.run, count()

        def run_sometimes(batch: StepBatch) -> StepOutput:
            if next(steps) % 7 == 6:
                raise error
            return run(batch)

        monkeypatch.setattr(executor.lm, "run", run_sometimes)
        return DraftModel(executor, *costs)

    monkeypatch.setattr(draft_setup, "DraftModel", failing)
    with model(PROPOSERS["another model"]) as llm:
        assert essence(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert counts(llm).drafts > 0


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_a_draft_token_that_fails_the_model_ends_no_answer(tmp_path: Path, kernels: str) -> None:
    poison = 9
    copytree(spoken(MODEL), tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][poison] = np.nan
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    params = SamplingParams.from_dict({**SAMPLED, "max_tokens": 24, "logit_bias": {poison: -100.0}})
    with model(path=tmp_path, kernels=kernels) as llm:
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            said = output.outputs[0].token_ids
            guessed = predicted(llm, output, params, [*said[:10], *[poison] * 8, *said[12:]])
            assert guessed.outputs == output.outputs and guessed.outputs[0].finish_reason == "length"
        assert counts(llm).accepted_tokens > 10 * len(PROMPTS) - 10


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_a_prediction_of_any_quality_changes_only_the_steps(plain: LLM, right: float) -> None:
    params = SamplingParams.from_dict({**SAMPLED, "max_tokens": 60})
    random = np.random.default_rng(7)
    for output in plain.generate(PROMPTS, params, use_tqdm=False):
        (choice,) = output.outputs
        prediction = [token if random.random() < right else 5 for token in choice.token_ids]
        before = counts(plain)
        found = predicted(plain, output, params, prediction)
        assert found.outputs == output.outputs
        usage = found.metrics.usage
        counted = replace(usage, accepted_prediction_tokens=0, rejected_prediction_tokens=0)
        assert replace(counted, cached_tokens=0) == replace(output.metrics.usage, cached_tokens=0)
        if right == 1.0:
            assert usage.accepted_prediction_tokens == 60 and usage.rejected_prediction_tokens == 0
            assert counts(plain).accepted_tokens - before.accepted_tokens > 30


@pytest.mark.parametrize("directory", [directory_of(find("qwen3-bias")), spoken("qwen2-tied-mha")])
def test_a_draft_model_with_another_vocabulary_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"(97|257) tokens") as caught, model(str(directory)):
        raise AssertionError("it was taken")
    assert caught.value.param == "speculative"


def test_a_draft_model_may_have_fewer_padding_rows() -> None:
    """Qwen2.5-0.5B has 128 rows fewer than 7B and the same tokenizer."""
    target, params = spoken("qwen2-tied-mha"), SamplingParams.from_dict({**SAMPLED, "max_tokens": 24})
    with model(path=target) as llm:
        expected = essence(llm.generate(PROMPTS, params, use_tqdm=False))
    with model(str(spoken("qwen3")), path=target) as llm:
        assert essence(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
        assert counts(llm).draft_tokens > 0


def test_a_draft_model_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    copytree(spoken("qwen3"), tmp_path, dirs_exist_ok=True)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"A":', '"Ä":'))
    with pytest.raises(ConfigError, match="token 35") as caught, model(str(tmp_path)):
        raise AssertionError("it was taken")
    assert caught.value.param == "speculative"


def test_the_plan_shows_the_memory_of_a_draft_model() -> None:
    given = ["plan", str(spoken(MODEL)), "--kernels", "reference", "--kv-capacity", "1024"]
    alone, together = (
        dict(re.findall(r"^(draft model|total) +([\d.]+) MiB", CliRunner().invoke(app, given + more).output, re.M))
        for more in ([], ["--speculative", str(spoken("qwen3"))])
    )
    assert alone.keys() == {"total"}
    assert float(together["total"]) == pytest.approx(float(alone["total"]) + float(together["draft model"]), abs=0.15)


@pytest.mark.soak
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_long_random_runs_of_each_proposer(plain: LLM, proposer: str) -> None:
    with model(PROPOSERS[proposer], max_batch_size=3) as llm:
        for seed in range(40):
            params = SamplingParams.from_dict({**SAMPLED, "seed": seed, "temperature": 0.3 + seed / 40, "n": 2})
            expected = essence(plain.generate(PROMPTS, params, use_tqdm=False))
            assert essence(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
