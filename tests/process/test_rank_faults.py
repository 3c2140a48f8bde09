"""Ranks that are killed or stopped under load, again and again: an error that names one, and nothing left."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from threading import Timer

import pytest

from ferrum.client.llm import LLM
from ferrum.core.errors import CheckpointError, EngineDead
from ferrum.core.params import SamplingParams
from ferrum.runtime import rank_processes
from ferrum.verbs.load_executor import load_executor
from rank_kit import MODEL, held_things, hosts_of, runs, wait_for, workers_of

RANKS = 4
SECONDS = 5
"""Limit from a fault to the error, of the product's promise."""

PARAMS = SamplingParams(max_tokens=50, ignore_eos=True)


def kill_under_load(host: str, victim: int, fault: signal.Signals, delay: float) -> float:
    """Kill a rank while requests run; return the seconds until the error, when nothing of the engine is left."""
    with LLM(MODEL, tensor_parallel_size=RANKS, kv_capacity=1024, max_batch_size=4, host=host) as llm:
        hosts = hosts_of(os.getpid())
        workers = workers_of(hosts[0] if hosts else os.getpid())
        assert len(workers) == RANKS - 1 and len(hosts) == (host == "process")
        process, killed = [*(hosts or [0]), *workers][victim], [0.0]

        def kill() -> None:
            killed[0] = time.monotonic()
            os.kill(process, fault)

        timer = Timer(delay, kill)
        timer.start()
        with pytest.raises(EngineDead, match=rf"rank {victim} \(process {process}\)"):
            while True:
                llm.generate([[1, 2, 3]] * 4, PARAMS, use_tqdm=False)
        seconds = time.monotonic() - killed[0]
        timer.join()
        wait_for(lambda: not any(map(runs, [*workers, *(hosts if not victim else [])])))
    wait_for(lambda: not any(map(runs, [*workers, *hosts])))
    return seconds


VICTIMS = [*(("thread", rank) for rank in range(1, RANKS)), *(("process", rank) for rank in range(RANKS))]


@pytest.mark.soak
@pytest.mark.parametrize(("host", "victim"), VICTIMS)
def test_ranks_killed_under_load_end_the_engine_in_time_and_leave_nothing(host: str, victim: int) -> None:
    rng, before = random.Random(victim), None
    for _ in range(8):
        assert kill_under_load(host, victim, signal.SIGKILL, rng.uniform(0.0, 0.4)) < SECONDS
        gc.collect()
        before = before or held_things()
        assert held_things() == before


@pytest.mark.soak
@pytest.mark.parametrize(("host", "victim"), VICTIMS)
def test_a_stopped_rank_ends_the_engine_in_time(host: str, victim: int) -> None:
    assert kill_under_load(host, victim, signal.SIGSTOP, 0.2) < SECONDS


@pytest.mark.parametrize("fact", ["version", "files"])
def test_a_rank_with_another_release_or_files_is_refused_before_weights(
    fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, read = rank_processes.facts_of, list[int]()
    monkeypatch.setattr(rank_processes, "facts_of", lambda *each: {**right(*each), fact: "another"})
    with pytest.raises(CheckpointError, match=rf"rank 1 differs: {fact} is .*, and another on rank 0"):
        load_executor(MODEL, tensor_parallel_size=2, kv_capacity=256, progress=lambda done, _: read.append(done))
    assert not any(read) and not workers_of(os.getpid())
