"""The switches of contract section 4 on a real executor: each has its effect or is refused."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

from ferrum import LLM, load_executor
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.cpu import library
from ferrum.verbs.io_types import DecodeInput, PrefillInput
from ferrum.verbs.load_executor import LocalExecutor
from tiny import Case, directory_of, find, tokens_of

CASE = find("qwen3-windows")
TOKENS = tokens_of(CASE, 20, seed=2)


def load() -> LocalExecutor:
    return load_executor(directory_of(CASE), kernels="reference", kv_capacity=256)


@pytest.mark.contract("4.switches")
@pytest.mark.parametrize("name", ["FERRUM_DISABLE_GRAPHS", "FERRUM_DISABLE_CUDA_RUNNER"])
def test_disabled_graphs_walk_the_network_with_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with load() as replayed:
        monkeypatch.setenv(name, "1")
        with load() as eager:
            assert replayed.lm.replay is not None and eager.lm.replay is None
            np.testing.assert_array_equal(eager.forward(TOKENS), replayed.forward(TOKENS))
            assert eager.memory_plan.activations == 0, "an eager network plans no buffers"


@pytest.mark.contract("4.switches")
@pytest.mark.contract("4.one KV store")
def test_the_paged_store_cannot_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRUM_PAGED_KV", "0")
    for open_it in (load, lambda: LLM(str(directory_of(CASE)), kernels="reference")):
        with pytest.raises(ConfigError) as caught:
            open_it()
        assert caught.value.param == "FERRUM_PAGED_KV"


@pytest.mark.contract("4.switches")
def test_the_token_log_has_position_and_five_best_of_each_span(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FERRUM_LOG_TOKENS", "1")
    with load() as executor, caplog.at_level(logging.INFO, logger="ferrum.tokens"):
        logits = executor.forward(TOKENS)[0]
        caplog.clear()
        handle = executor.prefill(PrefillInput(TOKENS[:-1])).kv_cache
        silent = Span("silent", 0, (1, 2), Want.NONE)
        executor.submit(StepBatch((silent,))).result()
        executor.decode(DecodeInput([TOKENS[-1]], handle))
    assert len(caplog.messages) == 2, "a span without logits logs nothing"
    for position, message in zip((18, 19), caplog.messages, strict=True):
        backend, cache_id, where, *best = message.split()
        assert (backend, cache_id, where) == ("reference", handle.cache_id, f"position={position}")
        five = np.argsort(-logits[position], kind="stable")[:5]
        assert best == [f"{token}:{logits[position, token]:.4f}" for token in five]


@pytest.mark.contract("4.switches")
def test_the_token_log_is_an_argument_and_can_be_switched_later(caplog: pytest.LogCaptureFixture) -> None:
    options = {"kernels": "reference", "kv_capacity": 256}
    with load_executor(directory_of(CASE), log_tokens=True, **options) as executor:
        with caplog.at_level(logging.INFO, logger="ferrum.tokens"):
            logged = []
            for on in (True, False, True):
                executor.log_tokens = on
                caplog.clear()
                executor.forward(TOKENS)
                logged.append((executor.log_tokens, len(caplog.messages)))
        assert logged == [(True, 1), (False, 0), (True, 1)]
        with pytest.raises(ConfigError, match="log_tokens"):
            executor.log_tokens = "yes"
    with pytest.raises(ConfigError, match="log_tokens"):
        load_executor(directory_of(CASE), log_tokens=1, **options)


@pytest.mark.contract("2.submit")
def test_an_executor_and_its_steps_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="ferrum.executor"), load() as executor:
        handle = executor.prefill(PrefillInput(TOKENS)).kv_cache
        executor.decode(DecodeInput([9], handle))
        bad = Span("bad", 3, (1,), Want.LOGITS)
        executor.submit(StepBatch((bad,))).result()
        (made, prefill, decode, failed), plan = caplog.records, executor.memory_plan
    assert made.levelno == logging.INFO and prefill.levelno == logging.DEBUG
    assert made.fields["model"] == executor.info.model_id and made.fields["kernels"] == "reference"
    assert made.fields["memory"] == {"weights": plan.weights, "kv_pool": plan.kv_pool, "total": plan.total}
    assert executor.info.model_id in made.getMessage() and "reference kernels" in made.getMessage()
    assert prefill.fields["spans"] == [{"cache_id": handle.cache_id, "position": 0, "tokens": TOKENS}]
    assert decode.getMessage().endswith(f" ms: {handle.cache_id} position={len(TOKENS)} tokens=[9]")
    assert "bad position=3 tokens=[1] failed: cache_id: unknown sequence 'bad'" in failed.getMessage()


@pytest.mark.contract("4.switches")
def test_nothing_is_formatted_while_the_log_is_off(caplog: pytest.LogCaptureFixture) -> None:
    with load() as executor, caplog.at_level(logging.DEBUG, logger="ferrum.tokens"):
        assert executor.lm.watch is None
        executor.forward(TOKENS)
    assert not caplog.messages


@pytest.mark.contract("4.switches")
def test_the_switches_reach_an_engine_in_another_process() -> None:
    script = (
        "from ferrum import LLM, SamplingParams\n"
        f"llm = LLM({str(directory_of(CASE))!r}, kernels='reference', kv_capacity=256, host='process')\n"
        "llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=2), use_tqdm=False)\n"
        "llm.close()\n"
    )
    environment = {"FERRUM_LOG_TOKENS": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert [line.split()[2] for line in done.stderr.splitlines() if "position=" in line] == ["position=2", "position=3"]


@pytest.mark.contract("4.one KV store")
def test_every_path_reads_the_same_store() -> None:
    """Alternate replay and walk: each continues the other's pages."""
    with load() as executor:
        expected = executor.forward(TOKENS)[0]
        program = executor.lm.replay
        for position, token in enumerate(TOKENS):
            executor.lm.replay = program if position % 2 else None
            span = Span("s", position, (token,), Want.LOGITS, Rows.ALL)
            (result,) = executor.submit(StepBatch((span,))).result().results
            np.testing.assert_array_equal(result.logits[0], expected[position])


@pytest.mark.contract("4.failure to build the fast path")
def test_a_missing_fast_path_is_in_the_status_notes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise Unsupported("native CPU kernels", "there is no compiler, says this test")

    with load() as asked_for:
        assert asked_for.status().notes == (), "the reference was requested"
    monkeypatch.setattr("ferrum.kernels.cpu.library.load", missing)
    with load_executor(directory_of(CASE), kv_capacity=256) as executor:
        (note,) = executor.status().notes
        assert executor.status().backend == "reference" and "there is no compiler, says this test" in note
        assert caplog.messages == [note]
        assert executor.forward(TOKENS).shape == (1, len(TOKENS), 131)
    with pytest.raises(Unsupported, match="no compiler"):
        load_executor(directory_of(CASE), kernels="native")


@pytest.mark.contract("4.failure to build the fast path")
def test_heads_too_wide_for_native_kernels_use_the_reference() -> None:
    case = Case("wide-head", "Qwen3Config", {"head_dim": library.load().MAX_HEAD_DIM + 2, "num_key_value_heads": 1})
    with load_executor(directory_of(case), kv_capacity=64) as executor:
        (note,) = executor.status().notes
        assert executor.status().backend == "reference" and str(library.load().MAX_HEAD_DIM + 2) in note
        assert executor.forward([1, 2, 3]).shape == (1, 3, 131)
    with pytest.raises(Unsupported, match=str(library.load().MAX_HEAD_DIM + 2)):
        load_executor(directory_of(case), kernels="native")
