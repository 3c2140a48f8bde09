"""A model on several ranks in one process: the bits of one rank, in any step, and pages of one layout.

Processes are in `tests/process/test_rank_processes.py`. `test_contract_local` runs the contract on two ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_span_property import SEQUENCES, Player, options_of

from changed_sites import random_adapter, random_norms, replacement
from ferrum.client.client_base import engine_config
from ferrum.client.llm import LLM
from ferrum.client.model_client import Parts
from ferrum.core.config import ModelConfig
from ferrum.core.errors import StepError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.step import AdapterUse, Rows, Span, SpanExtras, StepBatch, Want
from ferrum.engine.host import ThreadHost
from ferrum.engine.recipe import with_scheduler
from ferrum.kernels.adapters import Change
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.exchange import memory_bytes
from ferrum.kernels.interface import Kernels
from ferrum.kernels.reference.reference_kernels import ReferenceKernels
from ferrum.kernels.reference.reference_math import round_whole
from ferrum.runtime.load import Bounds, assemble
from ferrum.runtime.rank_model import RankCall
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from native_twin import normal
from rank_models import FAMILIES, WIDE
from rank_threads import RankThreads
from tiny import directory_of, find, tokens_of

WINDOWS = "qwen3-windows"
TOKENS = [token % 97 for token in tokens_of(find(WINDOWS), 40, seed=1)]  # in every vocabulary
ONE_RANK = {"page_size": 16, "max_rows": 64}


def on_ranks(count: int, name: str, format: str = "float32", capacity: int = 16 * 64, **options: Any) -> RankThreads:
    options = {"kernels": "reference", **options_of(format), **options}
    return RankThreads(count, directory_of(find(name)), kv_capacity=capacity, **options)


def on_one(name: str, format: str = "float32", capacity: int = 16 * 64, **options: Any) -> LocalExecutor:
    options = {"kernels": "reference", **options_of(format), **options}
    return load_executor(directory_of(find(name)), kv_capacity=capacity, **ONE_RANK, **options)


@pytest.fixture
def ranks() -> Iterator[RankThreads]:
    with closing(on_ranks(2, WINDOWS)) as both:
        yield both


def step(executor: LocalExecutor, *spans: tuple[str, int, int]) -> list[np.ndarray | Exception]:
    """Run tokens `start` to `end` of each sequence, and return logits or errors."""
    batch = StepBatch(tuple(Span(name, a, tuple(TOKENS[a:b]), Want.LOGITS, Rows.ALL) for name, a, b in spans))
    results = executor.submit(batch).result().results
    return [result if isinstance(result, Exception) else result.logits.copy() for result in results]


@pytest.mark.parametrize(("name", "format"), [(WINDOWS, "float32"), ("llama3", "int8"), (WINDOWS, "kv-int8")])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_logits_on_two_ranks_do_not_depend_on_spans_or_batch(name, format, data):
    with closing(on_ranks(2, name, format)) as ranks:
        player = Player(name, format, data, ranks.executor)
        for _ in range(SEQUENCES):
            player.begin(seed=player.draw(0, 2))
        for _ in range(8):
            player.step()
            player.disturb()
            ranks.check()
        player.executor.lm.pages.check()


NATIVE = {"kernels": "native", "threads": 1}
CASES = (
    ("qwen3-mqa-wide-head-tied", "bfloat16", 2),
    ("qwen3-gqa7", "int8", 2),
    ("qwen3-bias", "int4", 2),
    ("mistral-mixed", "kv-int8", 2),
)
"""One KV head that two ranks keep, uneven query heads, biases, and windows with int8 keys."""


@pytest.mark.parametrize(("name", "format", "count"), CASES)
def test_native_ranks_give_the_bits_of_one(name: str, format: str, count: int) -> None:
    spans = [("a", 0, 17)], [("a", 17, 18), ("b", 0, 9)], [("a", 18, 40)]
    with closing(on_ranks(count, name, format, **NATIVE)) as ranks, on_one(name, format, **NATIVE) as alone:
        for batch in spans:
            for found, expected in zip(step(ranks.executor, *batch), step(alone, *batch), strict=True):
                assert found.tobytes() == expected.tobytes()
        ranks.check()
        assert ranks.executor.memory_plan.weights < alone.memory_plan.weights
        assert ranks.executor.info.num_parameters == alone.info.num_parameters


@contextmanager
def both(family: str, count: int, format: str) -> Iterator[tuple[RankThreads, LocalExecutor]]:
    """Return a random model on several ranks and on one."""
    store = RandomCheckpoint(family, {**WIDE, **FAMILIES[family]})
    options = {**options_of(format), **NATIVE, "kv_capacity": 1024, "max_batch_size": 20}
    made = assemble(ModelConfig(model=family, **options), Bounds(**ONE_RANK), store)
    alone = LocalExecutor(made.lm, info=made.plan.info, traits=made.plan.traits)
    alone.warmup()
    with closing(RankThreads(count, family, store=store, **options)) as ranks, alone:
        yield ranks, alone


@pytest.mark.parametrize(
    ("family", "count", "format"),
    [
        ("experts", 4, "int4"), ("latent", 2, "bfloat16"), ("convolutions", 4, "int8"), ("delta rule", 2, "int4"),
        ("tiled delta rule", 4, "int8"),
        *(pytest.param(name, 2, each, marks=pytest.mark.soak) for name in FAMILIES for each in ("int8", "bfloat16")),
    ],
)  # fmt: skip
def test_every_kind_of_layer_has_the_bits_of_one_rank(family: str, count: int, format: str) -> None:
    with both(family, count, format) as (ranks, alone):
        for span in (("a", 0, 17), ("a", 17, 18), ("a", 18, 40)):
            (found,), (expected,) = step(ranks.executor, span), step(alone, span)
            assert found.tobytes() == expected.tobytes() and np.isfinite(found).all()
        ranks.check()
        assert ranks.executor.memory_plan.weights < alone.memory_plan.weights


DENSE = {**WIDE, "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize(("format", "quarters"), [("int8", 36 / 128), ("bfloat16", 1.0)])
def test_ranks_exchange_bytes_in_front_of_products_that_round(kernels: str, format: str, quarters: float) -> None:
    options = {**options_of(format), "kernels": kernels, "kv_capacity": 1024, "max_batch_size": 20}
    with closing(RankThreads(2, "dense", store=RandomCheckpoint("dense", DENSE), **options)) as ranks:
        before = ranks.ranks.exchanged()
        step(ranks.executor, ("a", 0, 17))
        joined = 2 * 17 * (quarters * (128 + 192) + 2 * 128) + 17 * 261  # of two layers, and logits
        read = [now - then for now, then in zip(ranks.ranks.exchanged(), before, strict=True)]
        assert sum(read) == 4 * joined  # what one rank has, the other one reads
        ranks.check()


@pytest.mark.parametrize("backend", [ReferenceKernels, lambda: NativeKernels(threads=1)])
def test_joined_numbers_round_to_the_codes_and_scales_of_their_origin(backend: Callable[[], Kernels]) -> None:
    rng = np.random.default_rng(5)
    x = (normal(rng, 8, 512) * 10.0 ** rng.integers(-19, 38, (8, 512))).astype(np.float32)
    x[0, :32], x[1, 5], x[2, 40], x[3, 64:96], x[4, 70] = 0, np.nan, np.inf, 2.0**-65, -(2.0**-64)
    halves, memory = np.split(x, 2, axis=1), np.zeros(memory_bytes(2, 512), np.uint8)
    ranks = [backend() for _ in range(2)]
    for rank, kernels in enumerate(ranks):
        kernels.share(memory, rank, 2).begin(1)
    with ThreadPoolExecutor(2) as pool:
        joined = list(pool.map(lambda kernels, own: kernels.join(own, (0, 256, 512), rounded=True), ranks, halves))
    expected = round_whole(x.reshape(8, -1, 32), 127)
    for found in joined:
        for ours, theirs in zip(round_whole(found.reshape(8, -1, 32), 127), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert joined[0].tobytes() != x.tobytes()  # rounded numbers did cross


def adapters_of(alone: LocalExecutor) -> list[dict[str, Change]]:
    """Return eight adapters: of all matrices, of norms, with biases, factors, new rows."""
    made = [random_adapter(alone.lm, seed, rank) for seed, rank in enumerate((1, 2, 3, 4, 5, 6, 8))]
    made[1] |= random_norms(alone.lm, 1)
    rng = np.random.default_rng(7)
    name, product = next((n, c) for n, c in made[2].items() if n.endswith("o_proj.weight"))
    size = product.low_rank.b.shape[0]
    made[2][name] = replace(product, magnitude=normal(rng, size), bias=normal(rng, size))
    rows = replacement(rng, (size, product.low_rank.a.shape[1]), [0, 40, size - 1])
    return [*made, {name: Change(replaced=rows)}]


def adapted_step(executor: LocalExecutor, keys: range) -> list[np.ndarray]:
    """Run a step of a sequence without an adapter and one with each, and return their logits."""
    uses = [(), *((AdapterUse(str(key)),) for key in keys)]
    spans = [
        Span(
            f"{length}-{index}",
            0,
            tuple(TOKENS[:length]),
            Want.LOGITS,
            Rows.ALL,
            extras=SpanExtras(adapters=use).or_none(),
        )
        for length in (5, 1)
        for index, use in enumerate(uses)
    ]
    results = executor.submit(StepBatch(tuple(spans))).result().results
    executor.reset()
    return [result.logits.copy() for result in results]


@pytest.mark.parametrize(
    ("family", "count", "format"),
    [
        ("experts", 2, "float32"),
        ("latent", 2, "float32"),
        pytest.param("delta rule", 2, "int4", marks=pytest.mark.soak),
    ],
)
def test_eight_adapters_in_one_batch_have_the_bits_of_one_rank(family: str, count: int, format: str) -> None:
    with both(family, count, format) as (ranks, alone):
        whole, of_ranks = alone.lm.adapters, ranks.executor.lm.adapters
        for key, changes in enumerate(adapters_of(alone)):
            one, several = whole.prepare(changes), of_ranks.prepare(changes)
            assert one.nbytes <= several.nbytes < count * one.nbytes  # A is on each rank, a row of B on one
            whole.add(str(key), one)
            of_ranks.add(str(key), several)
        found, expected = (adapted_step(executor, range(8)) for executor in (ranks.executor, alone))
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.tobytes() == theirs.tobytes() and np.isfinite(ours).all()
        assert len({each.tobytes() for each in expected[:9]}) == 9
        for executor in (ranks.executor, alone):
            executor.unload_adapter("3")
            executor.lm.adapters.add("3", executor.lm.adapters.prepare(adapters_of(alone)[0]))
        found, expected = (adapted_step(executor, range(4)) for executor in (ranks.executor, alone))
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]
        ranks.check()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_of_one_rank_fails_the_step_on_all_and_the_next_step_runs(ranks: RankThreads, rank: int) -> None:
    (expected,) = step(on_one(WINDOWS), ("a", 0, 30))
    step(ranks.executor, ("a", 0, 20))
    ranks.executor.pages.fork("a", "b")

    def ill(*_: Any) -> Any:
        raise RuntimeError("this rank is ill")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks.models[rank].kernels, "attention", ill)
        for outcome in step(ranks.executor, ("a", 20, 25), ("b", 20, 30), ("c", 0, 9)):
            assert isinstance(outcome, StepError) and "this rank is ill" in str(outcome)
    assert [ranks.executor.pages.length(name) for name in ranks.executor.pages.ids()] == [20, 20]
    first, second, third = step(ranks.executor, ("a", 20, 30), ("b", 20, 30), ("c", 0, 30))
    for found in (first, second, third[20:]):
        np.testing.assert_array_equal(found, expected[20:])
    ranks.check()


@pytest.mark.parametrize("fault", ["copies", "tables"])
def test_a_rank_that_misses_copies_or_tables_gives_other_logits(ranks: RankThreads, fault: str) -> None:
    (expected,) = step(on_one(WINDOWS), ("a", 0, 22))
    step(ranks.executor, ("a", 0, 20))
    ranks.executor.pages.fork("a", "b")  # a copy of the partial page at the next step

    def led_astray(call: RankCall) -> RankCall:
        if call.method == "copy_pages" and fault == "copies":
            return RankCall("copy_pages", ([],))
        if call.method == "compute" and fault == "tables":
            number, tables = call.arguments
            return RankCall("compute", (number, tables._replace(positions=tables.positions + 1)))
        return call

    ranks.others[0].before = led_astray
    found = step(ranks.executor, ("a", 20, 22), ("b", 20, 22))
    assert any(each.tobytes() != expected[20:].tobytes() for each in found)


def test_copies_that_failed_on_one_rank_are_made_again_on_all(ranks: RankThreads) -> None:
    (expected,) = step(on_one(WINDOWS), ("a", 0, 30))
    step(ranks.executor, ("a", 0, 20))
    ranks.executor.pages.fork("a", "b")

    def refused(call: RankCall) -> RankCall:
        if call.method == "copy_pages":
            raise RuntimeError("no copies")
        return call

    ranks.others[0].before = refused
    for outcome in step(ranks.executor, ("a", 20, 25), ("b", 20, 25)):
        assert isinstance(outcome, StepError)
    ranks.others[0].before = lambda call: call
    for found in step(ranks.executor, ("a", 20, 30), ("b", 20, 30)):
        np.testing.assert_array_equal(found, expected[20:])


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

    with closing(on_ranks(2, "llama3", "bfloat16", capacity=16 * 14)) as ranks:
        restored, (expected, _) = answers(ranks.executor), answers(on_one("llama3", "bfloat16"))
        assert restored[0] == expected and restored[1] > 0
        ranks.check()


@pytest.mark.parametrize("format", ["float32", "kv-int8"])
def test_pages_have_one_layout_at_every_degree(format: str) -> None:
    with closing(on_ranks(2, WINDOWS, format)) as ranks, on_one(WINDOWS, format) as alone:
        for executor in (ranks.executor, alone):
            step(executor, ("a", 0, 20))
        many, one = ranks.executor.lm.pool, alone.lm.pool
        for group in alone.pages.groups:
            assert many.page_bytes(group.name) == one.page_bytes(group.name)
            rows = (executor.pages.row("a", group.name) for executor in (ranks.executor, alone))
            for ours, theirs in zip(*rows, strict=True):
                if theirs >= 0:  # else no window reaches it
                    page = one.read_page(group.name, theirs)
                    assert many.read_page(group.name, ours).tobytes() == page.tobytes()
                    many.write_page(group.name, ours, np.zeros_like(page))
                    many.write_page(group.name, ours, page)
        assert step(ranks.executor, ("a", 20, 40))[0].tobytes() == step(alone, ("a", 20, 40))[0].tobytes()


@pytest.mark.parametrize(
    ("name", "count", "reason"),
    [
        ("qwen3", 4, "6 query heads and 3 KV heads, which 4 ranks cannot share"),
        ("qwen3-mqa-wide-head-tied", 4, "o_proj has 48 outputs, and a rank takes at least 32"),
    ],
)
def test_a_degree_without_a_cut_is_refused_by_tensor(name: str, count: int, reason: str) -> None:
    with pytest.raises(Unsupported, match=f"tensor_parallel_size {count}.*{reason}"):
        on_ranks(count, name)
