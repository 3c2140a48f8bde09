"""Ranks in processes: the bits of one rank, the loss of a rank, and nothing left after any end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pytest

from command_kit import Outcome
from ferrum.bench.shapes import shape_config
from ferrum.client.llm import LLM
from ferrum.core.config import ModelConfig
from ferrum.core.errors import EngineDead
from ferrum.core.params import SamplingParams
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.runtime.load import build_executor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from rank_kit import MODEL, runs, wait_for, workers_of

SMALL = {"kv_capacity": 1024, "max_batch_size": 4}
RANKS = {"tensor_parallel_size": 2}


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    with load_executor(MODEL, **RANKS, **SMALL) as made:
        yield made


def logits_of(executor: LocalExecutor, cut: int) -> bytes:
    tokens, found = tuple(range(5, 45)), []
    for begin, end in ((0, cut), (cut, 40)):
        span = Span("a", begin, tokens[begin:end], Want.LOGITS, Rows.ALL)
        found.append(executor.submit(StepBatch((span,))).result().results[0].logits.tobytes())
    executor.reset()
    return b"".join(found)


def test_processes_give_the_bits_of_one_rank_and_end_with_the_executor(executor: LocalExecutor) -> None:
    (worker,) = workers_of(os.getpid())
    with load_executor(MODEL, **SMALL) as alone:
        assert logits_of(executor, 17) == logits_of(alone, 39)
    assert executor.capabilities().supports_tensor_parallelism
    executor.shutdown()
    assert not runs(worker)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.soak)],
)
def test_a_lost_rank_ends_the_engine_with_its_name_and_all_ranks(fault: signal.Signals) -> None:
    with LLM(MODEL, **RANKS, **SMALL) as llm:
        workers = workers_of(os.getpid())
        Timer(0.2, os.kill, (workers[0], fault)).start()
        with pytest.raises(EngineDead, match=rf"rank 1 \(process {workers[0]}\)"):
            while True:
                llm.generate([[1, 2, 3]] * 4, SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
        wait_for(lambda: not any(map(runs, workers)))


_SLEEPER = f"""
import sys, time
sys.path[:] = {sys.path!r}
from ferrum.runtime.load import build_executor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import load_executor
executor = load_executor({MODEL!r}, tensor_parallel_size=2, kv_capacity=256)
print("loaded", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, *(pytest.param(each, marks=pytest.mark.soak) for each in (signal.SIGTERM, signal.SIGINT))]
)
def test_no_rank_is_left_when_the_first_ends(end: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        assert first.stdout is not None and first.stdout.readline() == b"loaded\n"
        workers = workers_of(first.pid)
        first.send_signal(end)
        assert len(workers) == 1
        wait_for(lambda: not any(map(runs, workers)))


def test_pages_on_disk_move_between_degrees(tmp_path: Path) -> None:
    prompt = list(range(3, 3 + 200))
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)

    def answer(ranks: int) -> tuple[list[int], int]:
        with LLM(MODEL, tensor_parallel_size=ranks, prefix_cache_dir=str(tmp_path), **SMALL) as llm:
            (output,) = llm.generate([prompt], params, use_tqdm=False)
            return list(output.outputs[0].token_ids), output.metrics.usage.cached_tokens

    (first, fresh), (second, found), (third, again) = answer(2), answer(1), answer(4)
    assert first == second == third
    assert fresh == 0 and found == again > 0


@pytest.mark.parametrize("made", [2, pytest.param(4, marks=pytest.mark.soak), pytest.param(1, marks=pytest.mark.soak)])
def test_records_replay_at_every_degree(made: int, tmp_path: Path, ferrum: Callable[..., Outcome]) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.9, logprobs=2, ignore_eos=True)
    with LLM(MODEL, tensor_parallel_size=made, record_dir=str(tmp_path), run_ahead=2, **SMALL) as llm:
        (output,) = llm.generate([list(range(3, 60))], params, use_tqdm=False)
    for ranks in {1, 2, 4} - {made}:
        code, out, err = ferrum("replay", output.request_id, "--record", str(tmp_path), "-tp", str(ranks))
        assert code == 0 and "same bits" in out, err


def test_random_weights_are_made_on_every_rank() -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    store = RandomCheckpoint("small", {**shape_config("qwen3-0.6b", 1), **sizes})
    found = []
    for ranks in (1, 2):
        config = ModelConfig(model="small", tensor_parallel_size=ranks, kv_capacity=64)
        with build_executor(LocalExecutor, config, checkpoint=store) as executor:
            found.append(logits_of(executor, 17))
    assert found[0] == found[1]
