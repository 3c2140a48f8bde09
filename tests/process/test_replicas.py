"""Several engine processes behind one client: what survives the death of one, and where requests go."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from ferrum import LLM, SamplingParams
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.input_processor import RequestOptions
from ferrum.client.offline_batch import Batch
from ferrum.client.replicas.prefix_owners import PrefixOwners
from ferrum.client.replicas.replica_host import ReplicaHost
from ferrum.client.request_output import RequestOutput
from ferrum.core.errors import ConfigError, ReplicaMismatch
from ferrum.core.types import Request
from ferrum.engine.progress import progress_bar
from guided_kit import grammar, letter, schema_source
from outcomes import essence
from tiny_with_tokenizer import spoken

COUNT = 40
KILLS = 3
LIST = grammar(schema_source({"type": "array", "items": {"enum": [1, 23]}, "minItems": 2, "maxItems": 9}))
CALLS = grammar('start: "(" /[a-f]{3,5}/ ")"', letter("="), repeats=True)


def request_of(llm: LLM, number: int) -> Request:
    pick = Random(number)
    params = SamplingParams(
        n=pick.choice((1, 1, 2)),
        temperature=pick.choice((0.0, 0.9)),
        max_tokens=60,
        seed=number,
        logprobs=pick.choice((None, 2)),
        stop=pick.choice(([], ["th"])),
        presence_penalty=pick.choice((0.0, 0.7)),
        repetition_penalty=pick.choice((1.0, 1.3)),
    )
    options = RequestOptions(request_id=f"r{number}", guidance=pick.choice((None, None, LIST, CALLS)))
    return llm.client.input_processor.process(f"prompt {number % 5}", params, options)


def outputs(llm: LLM) -> list[RequestOutput]:
    requests = [request_of(llm, number) for number in range(COUNT)]
    batch = Batch(llm.client.router, llm.client.tokenizer, requests, [None] * COUNT)
    return batch.run(progress_bar(False, COUNT, ""))


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[list[RequestOutput]]:
    with LLM(str(spoken("qwen3")), dtype="float32") as llm:
        yield outputs(llm)


def replicas_of(llm: LLM | AsyncEngine) -> ReplicaHost:
    host = llm.client.router._host
    assert isinstance(host, ReplicaHost)
    return host


def process_of(host: ReplicaHost, number: int) -> int:
    return host._members.of(number).host._child.process.pid  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["killed", "drained"])
def test_outputs_are_those_of_an_undisturbed_run(undisturbed: list[RequestOutput], way: str) -> None:
    moved = 0
    for turn in range(KILLS):
        with LLM(str(spoken("qwen3")), dtype="float32", host="process", replicas=2) as llm:
            host, victim = replicas_of(llm), turn % 2

            def disturb(host: ReplicaHost = host, victim: int = victim, turn: int = turn) -> None:
                time.sleep(0.03 * (turn + 1))
                if way == "killed":
                    os.kill(process_of(host, victim), signal.SIGKILL)
                else:
                    host.drain(victim)

            thread = threading.Thread(target=disturb)
            thread.start()
            found = outputs(llm)
            thread.join()
            assert essence(found) == essence(undisturbed)
            moved += host.moved
    assert moved > 0


def test_a_stream_waits_for_an_engine_that_starts_again() -> None:
    async def run() -> None:
        model, params = str(spoken("qwen3")), SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.0)
        with LLM(model, dtype="float32") as llm:
            expected = llm.generate("x", params, use_tqdm=False)[0].outputs[0].token_ids
        async with AsyncEngine(model, dtype="float32", host="process", replicas=2) as engine:
            host = replicas_of(engine)
            tokens: list[int] = []
            async for delta in engine.generate("x", params):
                if not tokens:
                    for number in range(2):
                        os.kill(process_of(host, number), signal.SIGKILL)
                tokens += delta.token_ids
            assert tokens == expected

    asyncio.run(run())


def test_an_engine_that_hangs_counts_as_dead(undisturbed: list[RequestOutput], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.client.engine_process.JOIN_SECONDS", 0.5)
    options = {"host": "process", "replicas": 2, "stall_seconds": 5.0}
    with LLM(str(spoken("qwen3")), dtype="float32", **options) as llm:
        stopped = process_of(replicas_of(llm), 0)
        os.kill(stopped, signal.SIGSTOP)
        assert essence(outputs(llm)) == essence(undisturbed)
        assert replicas_of(llm).moved > 0
        llm.client.router._host.close()
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)


def test_no_engine_is_started_again_from_changed_files(tmp_path: Path) -> None:
    model = shutil.copytree(spoken("qwen3"), tmp_path / "model")
    with LLM(str(model), dtype="float32", host="process", replicas=2) as llm:
        (model / "config.json").touch()
        for number in range(2):
            os.kill(process_of(replicas_of(llm), number), signal.SIGKILL)
        endless = SamplingParams(max_tokens=100_000, ignore_eos=True)
        with pytest.raises(ReplicaMismatch, match="have changed"):
            llm.generate("x", endless, use_tqdm=False)[0].outputs[0].check_whole()


def test_equal_beginnings_go_to_one_engine_within_its_share() -> None:
    owners = PrefixOwners(page_size=4)
    loads = {0: 0, 1: 0, 2: 0}
    request = Request("r", (1, 2, 3, 4, 5, 6, 7, 8), SamplingParams(), seed=0)
    first = owners.choose(request, loads)
    assert owners.choose(request, loads) == first
    other = next(each for each in loads if each != first)
    assert owners.choose(request, {**loads, first: 9}) != first  # it has more than its share
    owners.forget(first)
    assert owners.choose(request, {other: 3}) == other


def test_shared_beginnings_stay_together_when_few_requests_run() -> None:
    owners, draws = PrefixOwners(page_size=4), Random(0)
    running, seen, hits = list[int](), set[tuple[int, int]](), 0
    for number in range(4 * 32):
        prefix = number % 32
        request = Request(str(number), (prefix,) * 8 + (number,) * 4, SamplingParams(), seed=0)
        engine = owners.choose(request, {each: running.count(each) for each in (0, 1)})
        hits += (prefix, engine) in seen
        seen.add((prefix, engine))
        running.append(engine)
        if len(running) == 8:
            running.pop(draws.randrange(8))
    assert hits >= 0.95 * 3 * 32
    assert 0.4 < sum(engine for _, engine in seen) / len(seen) < 0.6


def test_engines_in_threads_and_the_last_engine_are_refused() -> None:
    with pytest.raises(ConfigError, match="set host to process"):
        LLM(str(spoken("qwen3")), replicas=2)
    with LLM(str(spoken("qwen3")), dtype="float32", host="process", replicas=2) as llm:
        host = replicas_of(llm)
        host.drain(0)
        with pytest.raises(ConfigError, match="last engine"):
            host.drain(1)
        assert llm.generate("x", SamplingParams(max_tokens=2), use_tqdm=False)[0].finished
