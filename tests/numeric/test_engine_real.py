"""Clients on tiny random models: results like those of `transformers`, with bits that do not depend on the batch."""

from __future__ import annotations

import asyncio
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerFast

from fakes import admit_all
from ferrum import LLM, AsyncEngine, SamplingParams
from ferrum.client.request_output import Logprob, Logprobs, RequestOutput
from ferrum.core.errors import NonFiniteLogits
from ferrum.core.step import PendingStep, StepBatch, StepOutput
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.scheduler import admission
from ferrum.scheduler.planner import Planner
from native_twin import require_native
from outcomes import essence
from tiny import Case, directory_of, find, reference_logits
from tiny_with_tokenizer import EOS_IDS, spoken

NAME = "qwen3-windows"
PROMPTS = ["the rain", "s", "mainly in the plain, said the old man to the sea and ", "the rain in Spain stays"]
DRAWN: dict[str, Any] = {"temperature": 0.8, "seed": 11, "max_tokens": 40, "logprobs": 2, "ignore_eos": True}


def open_llm(**options: Any) -> LLM:
    return LLM(str(spoken(NAME)), **{"kernels": "reference", "kv_capacity": 4096} | options)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with open_llm() as model:
        yield model


def run(llm: LLM, prompts: Any, **params: Any) -> list[RequestOutput]:
    return llm.generate(prompts, SamplingParams.from_dict(params), use_tqdm=False)


def log_softmax(tokens: list[int]) -> np.ndarray:
    """Return the logits [S, V] of the independent implementation."""
    logits = reference_logits(find(NAME), tokens).astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def agrees(named: Logprobs, token: int, expected: np.ndarray, top: int) -> None:
    """Compare a token's log-probability and the `top` most likely ones with a row of the other implementation."""
    order = np.argsort(-expected, kind="stable")
    assert next(iter(named)) == token
    assert set(named) == {token, *order[:top].tolist()}
    for each, found in named.items():
        assert found.logprob == pytest.approx(expected[each], abs=1e-4)
        assert found.rank == 1 + int((expected > expected[each]).sum())


# Figures


@pytest.mark.contract("0.LLM")
def test_scores_are_the_log_softmax_of_transformers(llm: LLM) -> None:
    scores = llm.score(PROMPTS, use_tqdm=False)
    for prompt, found in zip(PROMPTS, scores, strict=True):
        tokens = llm.client.tokenizer.encode(prompt)
        assert len(found) == len(tokens) and found[0] is None
        expected = log_softmax(tokens)
        for position, (token, each) in enumerate(zip(tokens[1:], found[1:], strict=True)):
            assert isinstance(each, Logprob) and each.decoded_token == llm.client.tokenizer.token_text(token)
            agrees({token: each}, token, expected[position], 0)


@pytest.mark.contract("0.SamplingParams")
@pytest.mark.parametrize("steps", [512, 7])
def test_log_probabilities_are_those_of_the_raw_logits(steps: int) -> None:
    rules = {"temperature": 1.3, "repetition_penalty": 1.5, "logit_bias": {50: 5.0}, "min_tokens": 20, "top_k": 60}
    with open_llm(max_tokens_per_step=steps, max_batch_size=4) as model:
        (output,) = run(model, PROMPTS[2], **rules, seed=3, logprobs=4, prompt_logprobs=3, max_tokens=20)
    (choice,) = output.outputs
    prompt = output.prompt_token_ids
    expected = log_softmax(prompt + choice.token_ids)
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
    for position, token in enumerate(prompt[1:]):
        agrees(output.prompt_logprobs[position + 1], token, expected[position], 3)
    for position, token in enumerate(choice.token_ids):
        agrees(choice.logprobs[position], token, expected[len(prompt) - 1 + position], 4)
    chosen = [named[token].logprob for named, token in zip(choice.logprobs, choice.token_ids, strict=True)]
    assert choice.cumulative_logprob == pytest.approx(sum(chosen))


@pytest.mark.contract("0.LLM")
def test_prompt_log_probabilities_never_hold_all_rows() -> None:
    vocabulary = 20_000
    shape = {"vocab_size": vocabulary, "head_dim": 8, "hidden_size": 16, "num_hidden_layers": 1}
    directory = str(directory_of(Case("wide", "Qwen3Config", shape)))
    with LLM(directory, kernels="reference", kv_capacity=512, max_tokens_per_step=16, max_batch_size=4) as model:
        short, long = (_peak_of_scoring(model, length) for length in (40, 240))
    row = 4 * vocabulary
    assert short > 16 * row, "the rows of one step are there"
    assert long - short < 200 * row / 20, "and the other steps' are not"


def _peak_of_scoring(model: LLM, length: int) -> int:
    params = SamplingParams(max_tokens=0, prompt_logprobs=2)
    model.generate([5, 6, 7], params, use_tqdm=False)
    tracemalloc.start()
    (output,) = model.generate([list(range(length))], params, use_tqdm=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(output.prompt_logprobs) == length
    return peak


# Choices, seeds and ends


@pytest.mark.contract("0.SamplingParams")
@pytest.mark.contract("5.parameters are applied")
def test_choices_differ_and_each_is_reproducible(llm: LLM) -> None:
    (first,), (again,) = (run(llm, PROMPTS[0], **DRAWN, n=4) for _ in range(2))
    assert essence([first]) == essence([again])
    assert [choice.index for choice in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(choice.token_ids) for choice in first.outputs}) == 4
    (fewer,) = run(llm, PROMPTS[0], **DRAWN, n=2)
    assert fewer.outputs == first.outputs[:2], "a choice does not depend on how many others there are"
    (other,) = run(llm, PROMPTS[0], **DRAWN | {"seed": 12}, n=4)
    assert not {tuple(c.token_ids) for c in other.outputs} & {tuple(c.token_ids) for c in first.outputs}


@pytest.mark.contract("0.SamplingParams")
def test_requests_without_a_seed_report_different_seeds(llm: LLM) -> None:
    outputs = run(llm, [PROMPTS[0]] * 3, **DRAWN | {"seed": None})
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 3
    (again,) = run(llm, PROMPTS[0], **DRAWN | {"seed": outputs[1].metrics.seed})
    assert again.outputs == outputs[1].outputs


@pytest.mark.contract("0.LLM")
@pytest.mark.contract("5.stop strings are found as tokens come")
@pytest.mark.parametrize("cut", [(0, 1), (5, 8), (11, 17)])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_text_ids_log_probabilities_and_usage(llm: LLM, cut: tuple[int, int], include: bool) -> None:
    (whole,) = run(llm, PROMPTS[3], **DRAWN)
    (full,) = whole.outputs
    stop = full.text[slice(*cut)]
    (output,) = run(llm, PROMPTS[3], **DRAWN, stop=["never said", stop], include_stop_str_in_output=include)
    (choice,) = output.outputs
    before = full.text.index(stop)
    assert choice.text == full.text[: before + len(stop) * include]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    kept = len(choice.token_ids)
    assert choice.token_ids == full.token_ids[:kept] and choice.logprobs == full.logprobs[:kept]
    decode = llm.client.tokenizer.decode
    assert stop in decode(full.token_ids[:kept]) and stop not in decode(full.token_ids[: kept - 1])
    assert output.metrics.usage.completion_tokens == kept


@pytest.mark.contract("5.ends come from generation_config.json")
def test_end_tokens_are_those_of_the_generation_configuration(llm: LLM) -> None:
    forced = {"temperature": 0.0, "max_tokens": 6, "min_tokens": 2, "logit_bias": {EOS_IDS[1]: 100.0}}
    (output,) = run(llm, PROMPTS[0], **forced)
    (choice,) = output.outputs
    assert len(choice.token_ids) == 3 and choice.token_ids[-1] == EOS_IDS[1]
    assert EOS_IDS[1] not in choice.token_ids[:2], "min_tokens forbids it"
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    (endless,) = run(llm, PROMPTS[0], **forced | {"min_tokens": 0}, ignore_eos=True)
    assert endless.outputs[0].token_ids == [EOS_IDS[1]] * 6 and endless.outputs[0].finish_reason == "length"
    (named,) = run(llm, PROMPTS[0], **forced, ignore_eos=True, stop_token_ids=[EOS_IDS[1]])
    assert named.outputs[0].stop_reason == EOS_IDS[1]


@pytest.mark.contract("0.LLM")
def test_chat_renders_as_transformers_does_and_generates_from_it(llm: LLM) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is rain?"}]
    theirs = PreTrainedTokenizerFast.from_pretrained(spoken(NAME))
    tokens = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    params = SamplingParams.from_dict(DRAWN)
    (answer,) = llm.chat(messages, params, use_tqdm=False)
    assert answer.prompt_token_ids == tokens
    assert answer.outputs == llm.generate([tokens], params, use_tqdm=False)[0].outputs


# Batches


COMPANY: dict[str, dict[str, Any]] = {
    "small steps": {"max_tokens_per_step": 5, "max_batch_size": 4},
    "one at a time": {"max_batch_size": 1},
    "a pool that preempts": {"kv_capacity": 64 * 3},
    "priorities": {"policy": "priority", "max_batch_size": 3, "max_tokens_per_step": 16},
    "process": {"host": "process", "max_batch_size": 2},
}
RULED: dict[str, Any] = DRAWN | {"n": 2, "prompt_logprobs": 1, "frequency_penalty": 0.4, "top_p": 0.95}


@pytest.fixture(scope="module")
def one_by_one(llm: LLM) -> list[object]:
    return [essence(run(llm, prompt, **RULED))[0] for prompt in PROMPTS]


@pytest.mark.contract("0.LLM")
@pytest.mark.parametrize("options", COMPANY.values(), ids=COMPANY)
def test_sampled_results_do_not_depend_on_how_they_are_served(
    one_by_one: list[object], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted: list[str] = []
    preempt = Planner._preempt

    def counted(planner: Planner, victim: Any, step: Any) -> None:
        preempted.append(victim.cache_id)
        preempt(planner, victim, step)

    monkeypatch.setattr(Planner, "_preempt", counted)
    if "kv_capacity" in options:
        monkeypatch.setattr(admission, "growth_reserve", admit_all)
    with open_llm(**options) as model:
        assert essence(run(model, PROMPTS, **RULED)) == one_by_one
    assert ("kv_capacity" in options) == bool(preempted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_results_do_not_depend_on_threads_or_serving(dtype: str) -> None:
    require_native()
    params = DRAWN | {"n": 2, "prompt_logprobs": 1, "repetition_penalty": 1.2}
    native = {"kernels": "native", "dtype": dtype}
    with open_llm(**native, threads=1) as model:
        alone = [essence(run(model, prompt, **params))[0] for prompt in PROMPTS]
    with open_llm(**native, threads=2, max_tokens_per_step=7, max_batch_size=5, kv_capacity=64 * 3) as model:
        assert essence(run(model, PROMPTS, **params)) == alone


@pytest.mark.contract("0.LLM")
def test_streamed_deltas_add_up_to_the_output(llm: LLM) -> None:
    params = SamplingParams.from_dict(DRAWN | {"stop": ["zz"]})
    (output,) = llm.generate(PROMPTS[1], params, use_tqdm=False)
    (choice,) = output.outputs
    deltas = list(llm.stream(PROMPTS[1], params))
    assert "".join(delta.text for delta in deltas) == choice.text
    assert [token for delta in deltas for token in delta.token_ids] == choice.token_ids
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == choice.finish_reason and deltas[-1].usage == output.metrics.usage


@pytest.mark.contract("0.AsyncEngine")
@pytest.mark.contract("5.the event loop computes nothing")
def test_the_event_loop_runs_while_the_engine_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    computing: set[int] = set()
    meanwhile = threading.Event()
    step = DecoderLM.run

    def watched(lm: DecoderLM, batch: StepBatch) -> StepOutput:
        computing.add(threading.get_ident())
        assert meanwhile.wait(30), "the loop waits for the step, and the step for the loop"
        return step(lm, batch)

    async def serve() -> int:
        async with AsyncEngine(str(spoken(NAME)), kernels="reference", kv_capacity=256) as engine:
            deltas = engine.generate(PROMPTS[0], SamplingParams.from_dict(DRAWN))
            first = asyncio.ensure_future(anext(deltas))
            while not computing:
                await asyncio.sleep(0.001)
            meanwhile.set()
            await first
            async for _ in deltas:
                pass
        return threading.get_ident()

    monkeypatch.setattr(DecoderLM, "run", watched)
    assert asyncio.run(serve()) not in computing


@pytest.mark.contract("0.AsyncEngine")
def test_a_cancelled_request_releases_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    executors: list[LocalStepExecutor] = []
    submit = LocalStepExecutor.submit

    def seen(executor: LocalStepExecutor, batch: StepBatch) -> PendingStep:
        executors.append(executor)
        return submit(executor, batch)

    async def serve() -> None:
        async with AsyncEngine(str(spoken(NAME)), kernels="reference", kv_capacity=512) as engine:
            params = SamplingParams.from_dict(DRAWN | {"max_tokens": None, "n": 3})
            deltas = engine.generate(PROMPTS[2], params)
            await anext(deltas)
            pages = executors[0].pages
            assert pages.used > 0
            await deltas.aclose()
            steps = len(executors)
            while engine.num_live:
                await asyncio.sleep(0.001)
            assert pages.used == 0 and len(executors) <= steps + 2
            (again,) = [d async for d in engine.generate([5, 6], SamplingParams(max_tokens=0))]
            assert again.finish_reason == "length"

    monkeypatch.setattr(LocalStepExecutor, "submit", seen)
    asyncio.run(serve())


@pytest.mark.contract("5.nothing half-written is used")
def test_a_request_that_fails_midway_fails_alone(tmp_path: Path) -> None:
    poison = 9
    shutil.copytree(spoken(NAME), tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][poison] = np.nan
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    params = DRAWN | {"max_tokens": 8}
    prompts = [[3, 4, 5], [3, poison, 5], list(range(20, 50))]
    with LLM(str(tmp_path), kernels="reference", kv_capacity=1024) as model:
        # The first request samples a token whose embedding makes the model fail.
        several = [SamplingParams.from_dict(params | {"logit_bias": bias}) for bias in ({poison: 100.0}, None, None)]
        sampled, prompted, innocent = model.generate(prompts, several, use_tqdm=False)
        assert sampled.outputs[0].token_ids == [poison] and prompted.outputs[0].token_ids == []
        for failed in (sampled, prompted):
            assert failed.outputs[0].finish_reason == "error"
            assert isinstance(failed.outputs[0].error, NonFiniteLogits)
        assert innocent.outputs == run(model, prompts[2:], **params)[0].outputs
        assert innocent.outputs[0].finish_reason == "length"
        with pytest.raises(NonFiniteLogits):
            model.score(prompts, use_tqdm=False)
