"""Workloads and their limits against hand calculations and measured prototypes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from bench_kit import EXPERTS, LATENT, costs_of, rates
from ferrum.bench.limits import Costs, Part, Rates, _peak_of, seconds_of, weights
from ferrum.bench.workloads import (
    WORKLOADS,
    Pass,
    SpanShape,
    Workload,
    chosen_workloads,
    fitting_workloads,
    pool_tokens,
)
from ferrum.core.errors import ConfigError
from ferrum.kernels.op_attributes import DeltaShape
from ferrum.kernels.op_spec import Extent, Op, Value, declared
from ferrum.kernels.operations import Operations

OPERATIONS = declared(Operations)
SLOW = Rates(read=52e9, float32=0.5e12, bfloat16=1.02e12, int8=2.18e12, int4=2.18e12)
FAST = Rates(read=82e9, float32=0.5e12, bfloat16=1.02e12, int8=2.18e12, int4=2.18e12)

# Tokens per second over the reached share of the limit, measured with independent prototypes on another machine.
MEASURED = [
    ("decode@128", "bfloat16", "bfloat16", SLOW, 41 / 0.95),
    ("decode@1024", "bfloat16", "bfloat16", SLOW, 39.6 / 0.97),
    ("decode@4096", "bfloat16", "bfloat16", FAST, 45 / 0.90),
    ("decode@128", "q8_0", "q8_0", SLOW, 75 / 0.96),
    ("decode@4096", "q8_0", "q8_0", FAST, 64 / 0.88),
    ("decode@128", "q4_0", "q8_0", SLOW, 118 / 0.96),
    ("decode@1024", "q4_0", "q8_0", FAST, 130 / 0.87),
    ("batch8@256", "bfloat16", "bfloat16", FAST, 382 / 0.82),
    ("batch16@256", "bfloat16", "bfloat16", SLOW, 406 / 0.81),
    ("batch32@256", "bfloat16", "bfloat16", SLOW, 518 / 0.90),
    ("batch32@256", "q8_0", "q8_0", FAST, 718 / 0.65),
    ("prefill512", "bfloat16", "bfloat16", FAST, 879 / 0.82),
    ("prefill2048", "bfloat16", "bfloat16", FAST, 727 / 0.80),
    ("prefill512", "q8_0", "q8_0", FAST, 1280 / 0.60),
    ("prefill2048", "q8_0", "q8_0", FAST, 980 / 0.63),
]


def seconds(costs: Costs, passes: Iterable[Pass], machine: Rates) -> float:
    return seconds_of(costs.work(passes), machine)


def workload(name: str) -> Workload:
    (found,) = chosen_workloads([name])
    return found


@pytest.mark.parametrize(("name", "format", "head", "machine", "limit"), MEASURED)
def test_limits_agree_with_measured_prototypes(name, format, head, machine, limit):
    cell = workload(name)
    limit_seconds = seconds(costs_of("qwen3-0.6b", format, head), cell.passes(512), machine)
    assert cell.counted_tokens / limit_seconds == pytest.approx(limit, rel=0.035)


def test_reading_time_of_a_small_step_by_hand():
    """One span of 3 tokens after 5 on the tiny shape, at 1 byte/s, so that only reading counts."""
    costs = costs_of("tiny", "float32", kv_format="float32")
    slow = Rates(1.0, 1e12, 1e12, 1e12)
    matrices = 4 * (512 * 64 + 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64))
    stored = 2 * 8 * (2 * 2 * 16 * 4)
    assert seconds(costs, [(SpanShape(5, 3, 1),)], slow) == pytest.approx(matrices + stored)
    without_head = matrices - 4 * 512 * 64
    assert seconds(costs, [(SpanShape(5, 3, 0),)], slow) == pytest.approx(without_head + stored)


def test_a_multiply_add_is_two_operations_and_every_visible_key_counts_once():
    costs = costs_of("tiny", "bfloat16")
    narrow = Rates(1e18, 1.0, 1.0, 1.0)
    products = 2 * (3 * 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64) + 512 * 64)
    pairs = 6 + 7 + 8
    attention = 2 * 4 * 4 * 16 * pairs
    assert seconds(costs, [(SpanShape(5, 3, 1),)], narrow) == pytest.approx(products + attention)


EXPERT = 3 * 32 * 64
"""Numbers of an expert of the tiny shape."""

AROUND_EXPERTS = 512 * 64 + 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 8 * 64)
"""Numbers of its other matrices, routers included."""

READING = Rates(1.0, 1e18, 1e18, 1e18, 1e18)
MULTIPLYING = Rates(1e18, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("spread", [1.0, 0.75])
@pytest.mark.parametrize(("rows", "expected"), [(1, 2.0), (2, 3.5), (4, 5.46875), (900, 8.0)])
def test_a_pass_reads_only_the_experts_that_rows_choose(rows, expected, spread):
    """With 2 of 8 experts per row, 8 x (1 - (3/4)^rows) are expected."""
    costs = replace(costs_of("tiny", "float32", **EXPERTS), spread=spread)
    spans = (SpanShape(0, 1, 1),) * rows
    stored = rows * 2 * 2 * 2 * 16 * 2
    matrices = AROUND_EXPERTS + 2 * spread * expected * EXPERT
    assert seconds(costs, [spans], READING) == pytest.approx(4 * matrices + stored)
    assert costs.expected_experts([spans] * 3) == pytest.approx(3 * 2 * expected)


def test_a_row_is_multiplied_by_its_own_experts_only():
    costs = replace(costs_of("tiny", "float32", **EXPERTS), spread=0.5)
    attention = 2 * 4 * 4 * 16 * (6 + 7 + 8)
    products = 2 * (3 * (AROUND_EXPERTS - 512 * 64 + 2 * 2 * EXPERT) + 512 * 64)
    assert seconds(costs, [(SpanShape(5, 3, 1),)], MULTIPLYING) == pytest.approx(products + attention)


def test_latent_attention_reads_a_vector_per_key_and_each_heads_matrices_once():
    costs = costs_of("tiny", "float32", **LATENT)
    projections = 4 * (16 + 8) * 64 + (32 + 8) * 64 + 4 * (16 + 32) * 32 + 4 * 32 * 64
    matrices = 512 * 64 + 2 * (projections + 3 * 96 * 64)
    stored = 2 * 8 * (32 + 8) * 2
    assert seconds(costs, [(SpanShape(5, 3, 1),)], READING) == pytest.approx(4 * matrices + stored)
    attention = 2 * 2 * 4 * (32 + 8 + 32) * (6 + 7 + 8)
    products = 2 * (3 * (matrices - 512 * 64) + 512 * 64)
    assert seconds(costs, [(SpanShape(5, 3, 1),)], MULTIPLYING) == pytest.approx(products + attention)


def test_state_is_read_and_written_once_per_sequence_and_advanced_by_every_row():
    """Of the delta rule a row takes a product by the decay and three multiply-adds of each number of the state."""
    shape, costs = DeltaShape(0, 0, 4, 2, 8, 12), costs_of("tiny", "float32")
    x = Value(Extent.ROWS, shape.input_columns)
    a, columns = x.like(4), x.like(30)
    delta = Op(OPERATIONS["delta_rule"], (x, a, a, None, None, shape), (x.like(48),))
    conv = Op(OPERATIONS["short_conv"], (columns, np.zeros(4 * 30), (0, 0), None, None), (x.like(30),))
    spans = SpanShape(5, 3, 1), SpanShape(0, 40, 0)
    assert costs.of(delta, spans) == [Part(2 * 4 * 4 * 8 * 12, 7 * 4 * 8 * 12 * rows, "float32") for rows in (3, 40)]
    assert costs.of(conv, spans) == [Part(2 * 4 * 3 * 30, 2 * 4 * 30 * rows, "float32") for rows in (3, 40)]


def test_every_matrix_is_counted_once():
    assert len(weights(costs_of("tiny", "q4_0", "q8_0").program)) == 1 + 2 * 7


def test_patterns_choose_workloads_and_unknown_names_are_refused():
    assert [each.name for each in chosen_workloads(["decode*"])] == ["decode@128", "decode@1024", "decode@4096"]
    assert chosen_workloads([]) == WORKLOADS
    with pytest.raises(ConfigError, match="serve16") as caught:
        chosen_workloads(["decode@129"])
    assert caught.value.param == "workload"


def within(context: int, *patterns: str) -> tuple[list[str], list[str]]:
    """Return the names of the workloads that fit a context, and the reports about the others."""
    reports: list[str] = []
    chosen = chosen_workloads(patterns)
    fitting = fitting_workloads(chosen, patterns, context=context, sequences=32, report=reports.append)
    return [each.name for each in fitting], reports


def test_workloads_beyond_the_context_are_left_out_and_reported():
    assert within(4113) == ([each.name for each in WORKLOADS], [])
    names, reports = within(1041, "decode*", "prefill*")
    assert names == ["decode@128", "decode@1024", "prefill128", "prefill512"]
    assert len(reports) == 2 and "decode@4096 needs 4113 tokens" in reports[0] and "1041" in reports[0]


@pytest.mark.parametrize("patterns", [["decode@4096"], ["decode*", "decode@1024"], ["serve16", "*2048"]])
def test_a_named_workload_beyond_the_context_is_refused(patterns):
    with pytest.raises(ConfigError, match="1024") as caught:
        within(1024, *patterns)
    assert caught.value.param == "workload"


def test_the_pool_holds_the_largest_workload_in_whole_pages():
    assert pool_tokens(chosen_workloads(["batch32@256"]), 64) == 64 + 32 * 320
    assert pool_tokens(WORKLOADS, 64) == 64 + 32 * 320


def test_faster_machines_never_have_longer_limits():
    costs, cell = costs_of("tiny", "q8_0"), workload("batch8@256")
    base = seconds(costs, cell.passes(512), rates())
    for faster in (rates(read=60), rates(peak=1200)):
        assert seconds(costs, cell.passes(512), faster) <= base


def test_products_are_limited_by_the_peak_of_their_format():
    costs, slow = costs_of("tiny", "q4_0"), replace(rates(), int4=1.0)
    passes = list(workload("prefill512").passes(512))
    assert seconds(costs, passes, slow) > 1e6 * seconds(costs, passes, rates())
    others = costs_of("tiny", "q8_0")
    assert seconds(others, passes, slow) == seconds(others, passes, rates())
    assert [_peak_of(format) for format in ("nf4", "fp8", "q8_0", "q4_0")] == ["float32", "bfloat16", "int8", "int4"]
