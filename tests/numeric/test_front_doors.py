"""The public entry points on the built-in model: contract.md section 0."""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ferrum
from ferrum import LLM, AsyncEngine, SamplingParams, load_executor
from ferrum.cli.main import execute
from ferrum.client.request_output import RequestOutput
from ferrum.engine.host import Built
from ferrum.engine.recipe import with_scheduler
from ferrum.sources.hub import BUILT_IN, resolve_model
from ferrum.verbs.load_executor import LocalExecutor

PROMPTS = ["def add(a, b):\n", "import os\n", "class Stack:\n    def push(self, item):\n"]
SAMPLED = SamplingParams(n=2, temperature=0.8, seed=7, max_tokens=12, logprobs=2, prompt_logprobs=1)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(BUILT_IN, kernels="reference", kv_capacity=4096) as model:
        yield model


def essence(outputs: list[RequestOutput]) -> list[object]:
    return [
        (o.prompt_token_ids, o.prompt_logprobs, [(c.text, c.token_ids, c.logprobs, c.finish_reason) for c in o.outputs])
        for o in outputs
    ]


def test_generate_gives_the_same_bits_alone_in_a_batch_and_in_another_process(llm: LLM) -> None:
    together = essence(llm.generate(PROMPTS, SAMPLED, use_tqdm=False))
    assert together == [essence(llm.generate(prompt, SAMPLED, use_tqdm=False))[0] for prompt in PROMPTS]
    with LLM(BUILT_IN, kernels="reference", kv_capacity=2048, max_batch_size=2, host="process") as other:
        assert essence(other.generate(PROMPTS, SAMPLED, use_tqdm=False)) == together


def test_a_reported_seed_gives_the_same_text_again(llm: LLM) -> None:
    [first] = llm.generate(PROMPTS[0], SamplingParams(max_tokens=12), use_tqdm=False)
    [again] = llm.generate(PROMPTS[0], SamplingParams(max_tokens=12, seed=first.metrics.seed), use_tqdm=False)
    assert essence([first]) == essence([again])


def test_scores_are_the_log_softmax_of_the_executors_logits(llm: LLM) -> None:
    assert llm.client.tokenizer is not None
    tokens = llm.client.tokenizer.encode(PROMPTS[2])
    [scores] = llm.score([tokens], use_tqdm=False)
    with load_executor(BUILT_IN, kernels="reference", kv_capacity=1024) as executor:
        assert executor.status().is_ready
        logits = executor.forward(tokens)[0].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    for position, (token, score) in enumerate(zip(tokens[1:], scores[1:], strict=True)):
        assert score is not None
        assert score.logprob == pytest.approx(expected[position, token], abs=1e-5)
        assert score.rank == 1 + int((logits[position] > logits[position, token]).sum())


@pytest.mark.contract("0.AsyncEngine")
def test_the_asynchronous_engine_streams_what_the_batch_returns(llm: LLM) -> None:
    async def collect() -> str:
        async with AsyncEngine(BUILT_IN, kernels="reference", kv_capacity=1024) as engine:
            params = SamplingParams(temperature=0.0, max_tokens=12)
            return "".join([delta.text or "" async for delta in engine.generate(PROMPTS[0], params)])

    [output] = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False)
    assert asyncio.run(collect()) == output.outputs[0].text


@pytest.mark.contract("0.LLM")
def test_a_directory_without_a_tokenizer_serves_token_ids(llm: LLM, tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(resolve_model(BUILT_IN) / name, tmp_path)
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    [named] = llm.generate(PROMPTS[0], greedy, use_tqdm=False)
    with LLM(str(tmp_path), kernels="reference", kv_capacity=1024) as bare:
        [output] = bare.generate([named.prompt_token_ids], greedy, use_tqdm=False)
        assert output.outputs[0].text is None and output.outputs[0].token_ids == named.outputs[0].token_ids
        with pytest.raises(ferrum.RequestError, match="no tokenizer"):
            bare.generate("text", greedy, use_tqdm=False)
        with pytest.raises(ferrum.RequestError, match="stop"):
            bare.generate([1, 2], SamplingParams(stop=["x"]), use_tqdm=False)


def test_recommended_sampling_is_the_checkpoints_unless_disabled(llm: LLM) -> None:
    recommended = dict(llm.client.recommended)
    assert recommended and llm.default_sampling_params == SamplingParams(**recommended)
    with LLM(BUILT_IN, kernels="reference", kv_capacity=1024, generation_config="none") as neutral:
        assert neutral.default_sampling_params == SamplingParams()


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ferrum.ConfigError) as caught:
        LLM(BUILT_IN, kv_capacty=1024)
    assert caught.value.param == "kv_capacty"


def test_an_unreferenced_engine_ends(llm: LLM) -> None:
    model = LLM(BUILT_IN, kernels="reference", kv_capacity=1024)
    router = model.client.router
    del model
    with pytest.raises(ferrum.EngineDead):
        router.check_open()


def test_an_engine_in_a_process_needs_no_guard_in_the_callers_script() -> None:
    script = f"""
import ferrum
llm = ferrum.LLM({BUILT_IN!r}, kernels="reference", kv_capacity=1024, host="process")
print(len(llm.generate("def f(", ferrum.SamplingParams(max_tokens=3), use_tqdm=False)))
"""
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_an_engines_process_ends_when_its_parent_is_gone() -> None:
    script = f"""
import os, ferrum
llm = ferrum.LLM({BUILT_IN!r}, kernels="reference", kv_capacity=1024, host="process")
next(llm.stream("x", ferrum.SamplingParams(max_tokens=None, ignore_eos=True)))
print(llm.client.router._host._child.process.pid, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-"], input=script, stdout=subprocess.PIPE, text=True, check=True)
    while alive(int(done.stdout)):
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.contract("0.ferrum")
def test_ferrum_plan_prints_the_executors_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", BUILT_IN, "--kv-capacity", "2048", "--kernels", "reference"]) == 0
    shown = capsys.readouterr().out
    with load_executor(BUILT_IN, kernels="reference", kv_capacity=2048) as executor:
        plan = executor.memory_plan
    assert f"{ceil(plan.kv_per_token):,} B" in shown
    assert "for 2,048 tokens" in shown
    assert f"{plan.max_sequences(256)}\n" in shown


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """Let children handle SIGINT, which shells ignore for background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_interrupts")
def test_ctrl_c_ends_a_run_cleanly() -> None:
    command = [sys.executable, "-m", "ferrum", "run", BUILT_IN, "x", "--max-tokens", "1000", "--ignore-eos"]
    command += ["--kernels", "reference"]  # the native kernels may finish before the signal
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        errors = running.stderr.read()
        assert running.wait() == 130 and "Traceback" not in errors


@pytest.mark.parametrize("options", [{}, {"swap_gib": 1}, {"speculative": BUILT_IN}])
def test_a_closed_model_makes_room_for_the_next_one_at_once(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for garbage collection: two models that fit one by one must load in turn."""
    held: list[weakref.ref[object]] = []

    def watched(executor: LocalExecutor, *rest: Any) -> Built:
        built = with_scheduler(executor, *rest)
        held.extend(map(weakref.ref, (executor, executor.lm.kernels, built.scheduler)))
        return built

    monkeypatch.setattr("ferrum.engine.recipe.with_scheduler", watched)
    gc.disable()
    try:
        with LLM(BUILT_IN, kernels="reference", kv_capacity=256, **options) as model:
            model.generate(PROMPTS, SAMPLED, use_tqdm=False)
            assert all(each() is not None for each in held)
        assert [each() for each in held] == [None] * 3
    finally:
        gc.enable()
