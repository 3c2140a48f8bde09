"""One language model on two ranks: tables and page copies are all that a rank needs of a step.

`test_contract_local` runs the contract on two ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_span_property import SEQUENCES, Player, options_of

from ferrum.client.client_base import engine_config
from ferrum.client.llm import LLM
from ferrum.client.model_client import Parts
from ferrum.core.errors import StepError
from ferrum.core.params import SamplingParams
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.engine.host import ThreadHost
from ferrum.engine.recipe import with_scheduler
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from tiny import directory_of, find, tokens_of
from two_ranks import TwoRanks


def load(name: str, format: str, capacity: int = 16 * 64) -> LocalExecutor:
    small = {"page_size": 16, "kv_capacity": capacity, "max_rows": 64}
    return load_executor(directory_of(find(name)), kernels="reference", **options_of(format), **small)


@pytest.fixture
def ranks() -> Iterator[TwoRanks]:
    with closing(TwoRanks(lambda: load("qwen3-windows", "float32"))) as both:
        yield both


@pytest.mark.parametrize(("name", "format"), [("qwen3-windows", "float32"), ("llama3", "int8"), ("mistral", "kv-int8")])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_logits_on_two_ranks_do_not_depend_on_spans_or_batch(name, format, data):
    with closing(TwoRanks(lambda: load(name, format))) as ranks:
        player = Player(name, format, data, ranks.executor)
        for _ in range(SEQUENCES):
            player.begin(seed=player.draw(0, 2))
        for _ in range(8):
            player.step()
            player.disturb()
            ranks.check()
        player.executor.lm.pages.check()


TOKENS = tokens_of(find("qwen3-windows"), 40, seed=1)


def step(executor: LocalExecutor, *spans: tuple[str, int, int]) -> list[np.ndarray | Exception]:
    """Run tokens `start` to `end` of each sequence, and return logits or errors."""
    batch = StepBatch(tuple(Span(name, a, tuple(TOKENS[a:b]), Want.LOGITS, Rows.ALL) for name, a, b in spans))
    results = executor.submit(batch).result().results
    return [result if isinstance(result, Exception) else result.logits for result in results]


def forked(executor: LocalExecutor) -> None:
    """Begin a sequence and a copy of it, which share a partial page."""
    step(executor, ("a", 0, 20))
    executor.pages.fork("a", "b")


@pytest.mark.parametrize("fault", ["copies", "tables"])
def test_a_rank_that_misses_copies_or_tables_differs(ranks: TwoRanks, fault: str) -> None:
    forked(ranks.executor)
    ranks.check()
    if fault == "copies":
        ranks.kernels[1].dropped = True
    else:
        ranks.replays[1].change = lambda tables: tables._replace(positions=tables.positions + 1)
    step(ranks.executor, ("a", 20, 22), ("b", 20, 22))
    with pytest.raises(AssertionError, match="differ"):
        ranks.check()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_of_one_rank_fails_the_step_on_all_and_the_next_step_runs(ranks: TwoRanks, rank: int) -> None:
    (expected,) = step(load("qwen3-windows", "float32"), ("a", 0, 30))
    forked(ranks.executor)
    ranks.replays[rank].error = RuntimeError("this rank is ill")
    for outcome in step(ranks.executor, ("a", 20, 25), ("b", 20, 30), ("c", 0, 9)):
        assert isinstance(outcome, StepError) and "this rank is ill" in str(outcome)
    assert ranks.replays[0].steps == ranks.replays[1].steps, "no rank is a step ahead"
    assert [ranks.executor.pages.length(name) for name in ranks.executor.pages.ids()] == [20, 20]
    ranks.replays[rank].error = None
    first, second, third = step(ranks.executor, ("a", 20, 30), ("b", 20, 30), ("c", 0, 30))
    for found in (first, second, third[20:]):
        np.testing.assert_array_equal(found, expected[20:])
    for ours, theirs in zip(*(replay.output for replay in ranks.replays), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_copies_that_failed_on_one_rank_are_made_again_on_all(ranks: TwoRanks) -> None:
    (expected,) = step(load("qwen3-windows", "float32"), ("a", 0, 30))
    forked(ranks.executor)
    ranks.kernels[1].error = RuntimeError("no copies")
    for outcome in step(ranks.executor, ("a", 20, 25), ("b", 20, 25)):
        assert isinstance(outcome, StepError)
    ranks.kernels[1].error = None
    for found in step(ranks.executor, ("a", 20, 30), ("b", 20, 30)):
        np.testing.assert_array_equal(found, expected[20:])
    assert ranks.kernels[1].copies > 0


def test_engine_on_two_ranks_gives_the_same_answers_and_restores_pages_on_both() -> None:
    prompts = [tokens_of(find("llama3"), 40, seed) for seed in range(6)]
    config = engine_config(str(directory_of(find("llama3"))), {"swap_gib": 1, "max_batch_size": 4})
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True)

    def answers(executor: LocalExecutor) -> tuple[list[list[int]], int]:
        host = ThreadHost(lambda: with_scheduler(executor, config, "llama3"))
        with LLM.from_parts(Parts(host=host, config=config)) as llm:
            found = [llm.generate(prompts, params, use_tqdm=False) for _ in range(2)]
            restored = executor.cache_metrics_snapshot().restored_pages
        return [list(output.outputs[0].token_ids) for run in found for output in run], restored

    with closing(TwoRanks(lambda: load("llama3", "bfloat16", capacity=16 * 14))) as ranks:
        restored, (expected, _) = answers(ranks.executor), answers(load("llama3", "bfloat16"))
        assert restored[0] == expected and restored[1] > 0
        ranks.check()


def test_a_page_of_all_ranks_is_read_and_written_part_by_part(ranks: TwoRanks) -> None:
    step(ranks.executor, ("a", 0, 20))
    pool, group = ranks.executor.lm.pool, ranks.executor.pages.groups[0].name
    page = ranks.executor.pages.row("a", group)[0]
    content = pool.read_page(group, page)
    assert len(content) == pool.page_bytes(group) == 2 * ranks.kernels[0].page_bytes(group)
    content[-1] ^= 1  # the last byte is the second rank's
    pool.write_page(group, page, content)
    assert pool.read_page(group, page).tobytes() == content.tobytes()
    with pytest.raises(AssertionError, match="differs"):
        ranks.check()
