"""Workloads and their limits: the arithmetic behind every ratio."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench_kit import costs_of, rates
from ferrum.bench.limits import Rates, label, weights
from ferrum.bench.workloads import (
    WORKLOADS,
    Room,
    SpanShape,
    Workload,
    chosen_workloads,
    fitting_workloads,
    pool_tokens,
)
from ferrum.core.errors import ConfigError

SLOW = Rates(read=52e9, float32=0.5e12, bfloat16=1.02e12, int8=2.18e12, int4=2.18e12)
FAST = Rates(read=82e9, float32=0.5e12, bfloat16=1.02e12, int8=2.18e12, int4=2.18e12)

# Tokens per second and the share of the limit, by format, as measured of other hands' prototypes on another machine:
# their quotient is the limit by the definition in `bench/limits.py`.
MEASURED = [
    ("decode@128", "bfloat16", "bfloat16", SLOW, 41 / 0.95),
    ("decode@1024", "bfloat16", "bfloat16", SLOW, 39.6 / 0.97),
    ("decode@4096", "bfloat16", "bfloat16", FAST, 45 / 0.90),
    ("decode@128", "int8", "int8", SLOW, 75 / 0.96),
    ("decode@4096", "int8", "int8", FAST, 64 / 0.88),
    ("decode@128", "int4", "int8", SLOW, 118 / 0.96),
    ("decode@1024", "int4", "int8", FAST, 130 / 0.87),
    ("batch8@256", "bfloat16", "bfloat16", FAST, 382 / 0.82),
    ("batch16@256", "bfloat16", "bfloat16", SLOW, 406 / 0.81),
    ("batch32@256", "bfloat16", "bfloat16", SLOW, 518 / 0.90),
    ("batch32@256", "int8", "int8", FAST, 718 / 0.65),
    ("prefill512", "bfloat16", "bfloat16", FAST, 879 / 0.82),
    ("prefill2048", "bfloat16", "bfloat16", FAST, 727 / 0.80),
    ("prefill512", "int8", "int8", FAST, 1280 / 0.60),
    ("prefill2048", "int8", "int8", FAST, 980 / 0.63),
]


def workload(name: str) -> Workload:
    (found,) = chosen_workloads([name])
    return found


@pytest.mark.parametrize(("name", "format", "head", "machine", "limit"), MEASURED)
def test_limits_are_those_that_prototypes_were_measured_against(name, format, head, machine, limit):
    cell = workload(name)
    seconds = costs_of("qwen3-0.6b", format, head).seconds(cell.passes(512), machine)
    assert cell.counted_tokens / seconds == pytest.approx(limit, rel=0.035)


def test_a_small_matrix_and_a_step_by_hand():
    """One span of 3 tokens after 5 on the tiny shape: bandwidth 1 byte/s, so that reading is all that counts."""
    costs = costs_of("tiny", "float32", kv_format="float32")
    slow = Rates(1.0, 1e12, 1e12, 1e12)
    matrices = 4 * (512 * 64 + 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64))
    stored = 2 * 8 * (2 * 2 * 16 * 4)
    assert costs.seconds([(SpanShape(5, 3, 1),)], slow) == pytest.approx(matrices + stored)
    without_head = matrices - 4 * 512 * 64
    assert costs.seconds([(SpanShape(5, 3, 0),)], slow) == pytest.approx(without_head + stored)


def test_arithmetic_counts_a_multiply_add_as_two_and_every_visible_key_once():
    costs = costs_of("tiny", "bfloat16")
    narrow = Rates(1e18, 1.0, 1.0, 1.0)
    products = 2 * (3 * 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64) + 512 * 64)
    pairs = 6 + 7 + 8
    attention = 2 * 4 * 4 * 16 * pairs
    assert costs.seconds([(SpanShape(5, 3, 1),)], narrow) == pytest.approx(products + attention)


def test_every_matrix_is_held_once_and_operations_of_one_size_share_a_label():
    costs = costs_of("tiny", "int4", "int8")
    assert len(weights(costs.program)) == 1 + 2 * 7
    labels = {label(op) for op in costs.program.ops if op.name in ("linear", "gated_linear", "head")}
    assert labels == {
        "linear 64>64+32+32",
        "linear 64>64",
        "linear 96>64",
        "gated_linear 64>96+96",
        "head 64>512",
    }


def test_workloads_are_chosen_by_pattern_and_an_unknown_one_is_refused():
    assert [each.name for each in chosen_workloads(["decode*"])] == ["decode@128", "decode@1024", "decode@4096"]
    assert chosen_workloads([]) == WORKLOADS
    with pytest.raises(ConfigError, match="serve16") as told:
        chosen_workloads(["decode@129"])
    assert told.value.param == "workload"


def within(context: int, *patterns: str) -> tuple[list[str], list[str]]:
    """Names of the workloads that fit a context, and what is told of the others."""
    told: list[str] = []
    fitting = fitting_workloads(chosen_workloads(patterns), patterns, Room(context, 32, 1 << 20, 64), told.append)
    return [each.name for each in fitting], told


def test_workloads_with_more_tokens_than_the_context_are_left_out_in_one_line():
    assert within(4113) == ([each.name for each in WORKLOADS], [])
    names, told = within(1041, "decode*", "prefill*")
    assert names == ["decode@128", "decode@1024", "prefill128", "prefill512"]
    assert told == ["left out, more tokens than the context of 1041: decode@4096 (4113), prefill2048 (2048)"]


@pytest.mark.parametrize(
    ("context", "patterns"),
    [
        (1024, ["decode@4096"]),
        (1024, ["decode*", "decode@1024"]),
        (1024, ["serve16", "*2048"]),
        (100, ["*"]),
        (100, []),
    ],
)
def test_a_workload_that_was_asked_for_by_name_is_refused_where_the_context_is_too_short(context, patterns):
    with pytest.raises(ConfigError, match=f"context of {context}: .*decode@4096|prefill2048") as told:
        within(context, *patterns)
    assert told.value.param == "workload"


def test_the_pool_holds_the_largest_workload_in_whole_pages():
    assert pool_tokens(chosen_workloads(["batch32@256"]), 64) == 64 + 32 * 320
    assert pool_tokens(WORKLOADS, 64) == 64 + 32 * 320, "an engine's first sequence goes on while its last begins"


def test_more_of_anything_never_makes_a_limit_longer():
    costs, cell = costs_of("tiny", "int8"), workload("batch8@256")
    base = costs.seconds(cell.passes(512), rates())
    for faster in (rates(read=60), rates(peak=1200)):
        assert costs.seconds(cell.passes(512), faster) <= base


def test_a_product_is_limited_by_the_peak_of_its_own_format():
    costs, slow = costs_of("tiny", "int4"), replace(rates(), int4=1.0)
    passes = list(workload("prefill512").passes(512))
    assert costs.seconds(passes, slow) > 1e6 * costs.seconds(passes, rates())
    others = costs_of("tiny", "int8")
    assert others.seconds(passes, slow) == others.seconds(passes, rates())
