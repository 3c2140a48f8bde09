"""Adapters by the command line, in records, and by the executor's own verbs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_kit import Outcome
from ferrum import (
    LLM,
    LogitsPolicy,
    LoraMetricsSnapshot,
    SamplingParams,
    UnifiedBatch,
    UnifiedBatchItem,
    UnifiedItem,
    load_executor,
)
from ferrum.client.records.record import read_record
from ferrum.client.records.record_files import find_record
from ferrum.core.config import ModelConfig
from ferrum.core.errors import RequestError
from ferrum.sources.adapters.open_adapter import open_adapter
from ferrum.sources.read_model import read_spec
from ferrum.verbs.load_executor import LocalExecutor
from lora_files import write_lora
from tiny import directory_of, find
from tiny_with_tokenizer import spoken

CASE = find("qwen3")
PROMPT = (3, 1, 4, 1, 5, 9)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_lora(root / f"{seed}", CASE, seed) for seed in range(2)]


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    with load_executor(directory_of(CASE), kv_capacity=512, dtype="float32") as executor:
        yield executor


def load(executor: LocalExecutor, key: str, path: Path) -> None:
    executor.load_adapter(key, open_adapter(str(path), read_spec(ModelConfig(model=str(directory_of(CASE))))))


def test_run_adds_the_adapters_and_chat_chooses_one(
    files: list[Path], ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = str(spoken("qwen3")), ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")
    adapters = ("--lora", f"a={files[0]}", "--lora", f'{{"name": "b", "path": "{files[1]}"}}')
    found = {ferrum("run", model, "to be", *options, *adapters[:count])[1] for count in (0, 2, 4)}
    assert len(found) == 3
    monkeypatch.setattr("sys.stdin", io.StringIO("/lora c\nhi\n/reset\n/lora a\nhi\n/reset\n/lora\nhi\n"))
    code, out, err = ferrum("chat", model, *options, *adapters)
    first, second, third = out.splitlines()
    assert code == 0 and first == third != second
    assert "no adapter 'c' is loaded: a, b" in err and "answers come from a" in err
    code, _, err = ferrum("run", model, "to be", "--lora", "a")
    assert code == 2 and "NAME=PATH" in err
    code, _, err = ferrum("run", model, "to be", "--lora", "a=/missing")
    assert code != 0 and "--lora" in err and "/missing" in err


def test_the_plan_holds_adapters(files: list[Path], ferrum: Callable[..., Outcome]) -> None:
    model = str(directory_of(CASE))
    assert "adapters" not in ferrum("plan", model)[1]
    code, out, _ = ferrum("plan", model, "--lora", f"a={files[0]}", "--lora-gib", "0.5")
    assert code == 0 and "adapters             512.0 MiB" in out and "steps with adapters" in out


def test_a_record_holds_digests_and_its_replay_asks_for_them(
    files: list[Path], ferrum: Callable[..., Outcome], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"dtype": "float32", "kv_capacity": 512, "record_dir": str(tmp_path)}
    params = SamplingParams(temperature=0.9, max_tokens=8, ignore_eos=True)
    with LLM(str(directory_of(CASE)), **options) as llm:
        llm.load_adapter("a", str(files[0]), scale=0.5)
        llm.load_adapter("b", str(files[1]))
        deltas = list(llm.stream(list(PROMPT), params, lora_request=["b", "a"]))
        name, digest = deltas[-1].request_id, llm.client.adapters.find("a").facts.digest
    record = read_record(find_record(tmp_path, name))
    assert next((each.name, each.digest, each.scale) for each in record.request.adapters) == ("", digest, 0.5)
    code, _, err = ferrum("replay", name, "--record", str(tmp_path))
    assert code == 1 and f"an adapter of digest {digest.hex()}" in err and "--lora" in err
    given = ("--lora", f"x={files[1]}", "--lora", f"y={files[0]}")
    code, out, _ = ferrum("replay", name, "--record", str(tmp_path), *given)
    assert code == 0 and "same bits" in out


def test_named_verbs_use_adapters_by_their_keys(executor: LocalExecutor, files: list[Path]) -> None:
    def logits(cache_id: str, adapter: str | None) -> np.ndarray:
        item = UnifiedBatchItem(cache_id, PROMPT, 0, True, LogitsPolicy.ALL, adapter=adapter)
        (found,) = executor.unified_decode(UnifiedBatch((item,)))
        executor.release_cache(cache_id)
        assert found is not None
        return np.asarray(found)

    base = logits("s", None)
    assert executor.lora_metrics_snapshot() == LoraMetricsSnapshot()
    for number in range(2):
        load(executor, f"k{number}", files[number])
    with pytest.raises(RequestError, match="is loaded already"):
        load(executor, "k0", files[0])
    changed = logits("s", "k1")
    assert np.abs(changed - base).max() > 1e-3
    np.testing.assert_array_equal(logits("s", None), base)
    lm = executor.lm
    lm.set_lora_adapter("x", "k1")
    (found,) = lm.unified_forward([UnifiedItem("x", PROMPT, 0, LogitsPolicy.ALL)])
    np.testing.assert_array_equal(found, changed)
    snapshot = executor.lora_metrics_snapshot()
    assert (snapshot.loaded, snapshot.active) == (("k0", "k1"), ("k1",)) and snapshot.nbytes > 0
    lm.fork("x", "y")
    one, other = (lm.decode(cache_id, 7, len(PROMPT)) for cache_id in "xy")
    np.testing.assert_array_equal(one, other)
    lm.release("x")
    lm.release("y")
    with pytest.raises(RequestError, match="no adapter 'k9' is loaded"):
        lm.set_lora_adapter("x", "k9")
    executor.unload_adapter("k1")
    assert executor.lora_metrics_snapshot().loaded == ("k0",)
    with pytest.raises(RequestError, match="no adapter 'k1' is loaded"):
        logits("s", "k1")
