"""An engine on an executor that is no `LocalExecutor`: all that the engine knows of it is `EngineExecutor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contract_kit import INFO, Options, traits_of
from engine_fakes import CONTEXT, VOCABULARY, LetterTokenizer, ServedFake
from fakes import FakeModel
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.client.client_base import engine_config
from ferrum.client.llm import LLM
from ferrum.client.model_client import Parts
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.engine.engine_executor import EngineExecutor
from ferrum.engine.host import ThreadHost
from ferrum.engine.recipe import with_scheduler
from ferrum.runtime.kv_tiers.page_tier import PageFiles
from ferrum.verbs.load_executor import LocalExecutor


class OtherExecutor(ServedFake):
    """A fake executor with the properties and the pages that an engine asks for."""

    def __init__(self, num_pages: int) -> None:
        super().__init__(PageTable([PageGroup("full", num_pages, 4)]), 0.0, None, fails=False)
        self.info = replace(INFO, vocab_size=VOCABULARY)
        traits = traits_of(Options(num_pages=num_pages, max_sequence_length=CONTEXT))
        self.traits = replace(traits, numerics_id="other-1 of 2 ranks", weights="float32")
        self.kept: list[tuple[PageFiles | None, int, Callable[[], float]]] = []

    def kv_capacity(self) -> int:
        return self.pages.capacity_tokens

    def run_ahead(self, depth: int) -> None:
        assert depth == 0, "it computes at submit"

    def keep_pages(
        self, *, files: PageFiles | None = None, swap_bytes: int = 0, recompute: Callable[[], float] = float
    ) -> None:
        self.kept.append((files, swap_bytes, recompute))
        self.keep_evicted()


PROMPTS = [[7, 8, 9, 10, 11, 12, 13, 14, 15, number] for number in range(6)]


def outputs(executor: EngineExecutor, directory: Path, **options: object) -> list[tuple[int, ...]]:
    """Return the tokens of an engine for `PROMPTS`, twice."""
    config = engine_config(str(directory), {"max_batch_size": 4, **options})
    host = ThreadHost(lambda: with_scheduler(executor, config, "other"))
    params = SamplingParams(temperature=0.0, max_tokens=20)
    with LLM.from_parts(Parts(host=host, tokenizer=LetterTokenizer(), config=config)) as llm:
        found = [llm.generate(PROMPTS, params, use_tqdm=False) for _ in range(2)]
    return [tuple(output.outputs[0].token_ids) for run in found for output in run]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}))
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"swap_gib": 1}, {"speculative": "ngram"}, {"prefix_cache": False}])
@pytest.mark.parametrize("num_pages", [64, 14])
def test_every_request_has_the_models_tokens(model: Path, options: dict[str, object], num_pages: int) -> None:
    executor = OtherExecutor(num_pages)
    assert not isinstance(executor, LocalExecutor)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    requests = [Request("r", tuple(prompt), params, seed=0) for prompt in PROMPTS]
    expected = [FakeModel(VOCABULARY).follow(request, 0, CONTEXT).tokens for request in requests]
    assert outputs(executor, model, **options) == expected * 2
    assert executor.stopped and executor.owner is None
    executor.pages.check()
    assert [swap_bytes for _, swap_bytes, _ in executor.kept] == ([1 << 30] if "swap_gib" in options else [])


def test_the_executor_gets_the_tiers_that_the_options_name(model: Path, tmp_path: Path) -> None:
    executor = OtherExecutor(64)
    outputs(executor, model, prefix_cache_dir=str(tmp_path / "pages"), swap_gib=2)
    ((files, swap_bytes, recompute),) = executor.kept
    assert isinstance(files, PageFiles) and swap_bytes == 2 << 30 and recompute() >= 0.0


def test_clients_learn_the_executors_properties(model: Path) -> None:
    executor = OtherExecutor(64)
    info = with_scheduler(executor, engine_config(str(model), {}), "other").info
    assert (info.numerics_id, info.weights, info.page_size) == ("other-1 of 2 ranks", "float32", 4)
    assert (info.kv_capacity, info.vocab_size, info.memory) == (256, VOCABULARY, executor.traits.memory)
