"""Every row of the contract has a test that names it and that `make test` runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from source_tree import TESTS, nodes

SECTIONS = {
    "0": "load_executor, LLM, SamplingParams, AsyncEngine, ferrum",
    "1": """KvCacheHandle, PrefillInput, PrefillOutput, DecodeInput, DecodeOutput, UnifiedBatch,
            SpeculativeDecodeOutput, LogitsPolicy, ModelInfo, DataType""",
    "2": """info, submit, prefill, batch_prefill, decode, batch_decode, unified_decode, forward_verify, truncate_kv,
            fork, release_cache, forward, speculative_decode, capabilities, memory_requirements, kv_capacity, status,
            metrics, cache_metrics_snapshot, optimal_batch_size, warmup, reset, serialisation, errors, lease,
            BatchModelExecutor, ExecutorRegistry, ModelExecutorFactory, ExecutorConfig""",
    "3": """config, prefill, decode, decode_batch, unified_forward, forward_verify, truncate_kv, fork, release, reset,
            kv_capacity, set_lora_adapter, LlmExecutor, errors""",
    "4": "recorded step, one KV store, failure to build the fast path, switches",
    "5": """speculation is exact, ties go one way, no token of probability zero is drawn,
            temperature comes before top-p, parameters are applied, no hidden defaults,
            stop strings are found as tokens come, no character is cut,
            ends come from generation_config.json, token ids are integers,
            reports wait for no step, the event loop computes nothing, nothing half-written is used,
            sizes follow heads and formats, a prompt that is too long is refused,
            no fallback answers with stale keys""",
}
"""The rows by section: the names in the tables, and each mistake of section 5."""

ROWS = [f"{section}.{name.strip()}" for section, names in SECTIONS.items() for name in names.split(",")]


@cache
def marked() -> frozenset[str]:
    """Return the rows that tests of `make test` are marked with."""
    return frozenset(marks())


def marks() -> Iterator[str]:
    """Yield the row of each mark."""
    for path in TESTS:
        for node in nodes(path):
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if "pytest.mark.soak" in map(ast.unparse, decorators):
                continue
            for mark in decorators:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).split(".")[-1] == "contract":
                    assert node.name.startswith("test_"), f"{node.name} never runs"
                    yield ast.literal_eval(mark.args[0])


def test_every_row_has_a_test_that_names_it() -> None:
    assert set(ROWS) - marked() == set()


def test_every_marked_row_exists() -> None:
    assert marked() - set(ROWS) == set()
