"""Native kernels under a whole model: any split of token lists into spans gives the same bits, replayed or eager."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from block_store import BlockStore
from ferrum.core.config import ModelConfig, Switches
from ferrum.core.step import Hidden, Rows, Span, StepBatch, Want
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.op_spec import Extent
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.runtime.load import build_executor
from ferrum.verbs.load_executor import LocalExecutor
from native_twin import TEAMS, TIERS, with_teams
from tiny import directory_of, find, tokens_of

MODELS = ("qwen3-windows", "qwen3-gqa7", "qwen2", "mistral-full")
FORMATS = ("float32", "float16", "bfloat16", "q4_k", "kv-int8")
CASES = tuple(product(MODELS, FORMATS))
OTHERS = tuple(("qwen3-mqa-wide-head-tied", format) for format in BLOCK_FORMATS if format not in FORMATS)
SPREAD = [(team, MODELS[index // 2 % len(MODELS)], format) for index, (team, format) in enumerate(with_teams(FORMATS))]
"""Every format in every tier; the models and the threads take turns."""
TWICE = [
    (TEAMS[place % len(TEAMS)], *case)
    for index, case in enumerate(OTHERS if TEAMS else ())
    for place in (index, index + len(TEAMS) // 2)
]
"""Every other format with one and with two threads, in tiers that take turns. `alone` has each in every tier."""

LENGTH = 150
COUNTS = (*range(1, 20), 31, 32, 33, 40, 70)
"""Rows of a step: all sizes of a small tile, and around the sizes of larger ones."""


def executor_of(name: str, format: str = "auto", *, page_size: int = 64, max_rows: int = 512, **options):
    """Load a model in a format; "kv-int8" quantises only the KV cache."""
    directory = directory_of(find(name))
    checkpoint = BlockStore(directory, format) if format in BLOCK_FORMATS else None
    if format == "kv-int8":
        options |= {"dtype": "float32", "kv_dtype": "int8"}
    elif checkpoint is None:
        options |= {"dtype": format}
    config = ModelConfig(model=str(directory), kv_capacity=4096, **options)
    return build_executor(LocalExecutor, config, checkpoint=checkpoint, page_size=page_size, max_rows=max_rows)


@cache
def alone(name: str, format: str, tier: str) -> np.ndarray:
    """Return the logits of a token list in one span, with one thread, in a separate executor."""
    with executor_of(name, format, kernels="native", isa=tier, threads=1) as executor:
        span = Span("alone", 0, tuple(tokens_of(find(name), LENGTH)), Want.LOGITS, Rows.ALL)
        logits: np.ndarray = executor.submit(StepBatch((span,))).result().results[0].logits
        return logits


def play(executor, name: str, expected: np.ndarray, rng: np.random.Generator) -> None:
    """Run five copies of a token list in spans of random sizes, sometimes forked or truncated."""
    tokens, pages = tokens_of(find(name), LENGTH), executor.lm.pages
    lengths = {f"s{index}": 0 for index in range(5)}
    while min(lengths.values()) < LENGTH:
        spans = []
        for cache_id, start in lengths.items():
            size = min(int(rng.choice([0, 1, 1, 2, 7, 40])), LENGTH - start)
            if size:
                spans.append(Span(cache_id, start, tuple(tokens[start : start + size]), Want.LOGITS, Rows.ALL))
        for span, result in zip(spans, executor.submit(StepBatch(tuple(spans))).result().results, strict=True):
            assert not isinstance(result, Exception), result
            np.testing.assert_array_equal(result.logits, expected[span.start : span.end])
            lengths[span.cache_id] = span.end
        victim = f"s{rng.integers(5)}"
        cut = lengths[victim] - int(rng.integers(0, 9))
        if rng.random() < 0.2 and cut > 0 and pages.can_truncate(victim, cut):
            pages.truncate(victim, cut)
            lengths[victim] = cut
        if rng.random() < 0.1 and lengths[victim]:
            pages.fork(victim, f"s{len(lengths)}")
            lengths[f"s{len(lengths)}"] = lengths[victim]


@pytest.mark.parametrize(("team", "name", "format"), [*SPREAD, *TWICE])
def test_logits_do_not_depend_on_spans_or_batch(team, name, format):
    tier, threads = team
    expected = alone(name, format, tier)
    page_size, max_rows = (64, 64) if threads == 1 else (16, 33)
    options = {"isa": tier, "threads": threads, "page_size": page_size, "max_rows": max_rows}
    with executor_of(name, format, **options) as executor:
        play(executor, name, expected, np.random.default_rng(threads))


@pytest.mark.contract("4.recorded step")
@pytest.mark.contract("4.switches")
@pytest.mark.parametrize(("team", "format"), with_teams(FORMATS))
def test_eager_steps_equal_replayed_steps(team, format):
    tier, turn = team
    name = MODELS[turn - 1]
    replayed = executor_of(name, format, isa=tier, threads=2)
    eager = executor_of(name, format, isa=tier, threads=2, switches=Switches(disable_graphs=True))
    assert replayed.lm.replay is not None and eager.lm.replay is None
    for count in COUNTS:
        span = Span(f"s{count}", 0, tuple(tokens_of(find(name), count, count)), Want.LOGITS, Rows.ALL, Hidden.ALL)
        ours, theirs = (each.submit(StepBatch((span,))).result().results[0] for each in (replayed, eager))
        np.testing.assert_array_equal(ours.logits, theirs.logits)
        np.testing.assert_array_equal(ours.hidden, theirs.hidden)
        for each in (replayed, eager):
            each.release_cache(span.cache_id)


@cache
def by_reference(name: str, format: str) -> np.ndarray:
    """Return the logits of the reference."""
    with executor_of(name, format, kernels="reference") as reference:
        span = Span("it", 0, tuple(tokens_of(find(name), LENGTH)), Want.LOGITS, Rows.ALL)
        logits: np.ndarray = reference.submit(StepBatch((span,))).result().results[0].logits
        return logits


@pytest.mark.parametrize(("name", "format"), [*CASES, *OTHERS])
@pytest.mark.parametrize("tier", TIERS)
def test_logits_equal_the_reference(tier, name, format):
    np.testing.assert_array_equal(alone(name, format, tier), by_reference(name, format))


@pytest.mark.parametrize("tier", TIERS)
def test_tied_head_is_stored_once(tier):
    with executor_of("mistral-full", isa=tier) as executor:
        decoder = executor.lm.network
        assert decoder.head is decoder.embedding
        rows, columns = decoder.embedding.weight.shape
        assert decoder.embedding.weight.nbytes == -(-rows // 32) * 32 * columns * 4


@pytest.mark.parametrize("tier", TIERS)
def test_memory_plan_counts_program_buffers(tier):
    with executor_of("qwen2", isa=tier, max_rows=32) as executor:
        planned = executor.lm.replay
        assert planned is not None
        sizes = {extent: planned.nbytes(extent) for extent in Extent}
        assert sizes[Extent.SPANS] == 32
        assert sizes[Extent.LOGITS] > sizes[Extent.ROWS] / 32 > 0


@pytest.mark.parametrize("tier", TIERS)
def test_status_reports_kernels_and_tier(tier):
    with executor_of("qwen2", isa=tier) as executor:
        status = executor.status()
        assert (status.numerics_id, status.backend) == (NUMERICS_ID, "native")
        assert executor.traits.kernels == f"native {tier}"
