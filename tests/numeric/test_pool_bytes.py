"""The KV pool takes the planned bytes exactly, whatever padding the kernels add."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil

import pytest

from ferrum import load_executor
from ferrum.bench.shapes import SHAPES
from ferrum.cli.main import execute
from ferrum.contract.model_info import DataType
from ferrum.core.config import ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.core.state_shape import StateShape
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels, PoolGroup, StatePool
from ferrum.kernels.reference import ReferenceKernels
from ferrum.models.decoder import inventory
from ferrum.models.families import decoder_spec
from ferrum.runtime.load import build_executor
from ferrum.runtime.memory import PoolLimits, pool_groups, pool_part
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.factory import ExecutorConfig, ExecutorMemoryConfig, ModelExecutorFactory
from ferrum.verbs.load_executor import LocalExecutor
from held_arrays import owned_arrays
from native_twin import require_native
from tiny import directory_of, find

HEAD_DIMS = (33, 40, 72, 120, 128)
PAGE_SIZES = (7, 16, 64)
FORMATS = ("float32", "bfloat16", "int8")
KERNELS = ("native", "reference")
SIZES = list(product(KERNELS, HEAD_DIMS, PAGE_SIZES, FORMATS))


def kernels_of(name: str) -> Kernels:
    if name == "reference":
        return ReferenceKernels()
    require_native()
    return NativeKernels(threads=1)


def held_by(kernels: Kernels) -> int:
    """Count the bytes of the pool's arrays."""
    if isinstance(kernels, NativeKernels):
        return int(kernels.lowering.runtime.pool_bytes)
    return sum(array.nbytes for array in owned_arrays(kernels))


def executor_of(kernels: str, head_dim: int, page_size: int, format: str, **options: int) -> LocalExecutor:
    shape = {**SHAPES["tiny"], "head_dim": head_dim}
    config = ModelConfig(model="tiny", kernels=kernels, kv_dtype=format, max_batch_size=4, kv_capacity=200)
    return build_executor(
        LocalExecutor, config, checkpoint=RandomCheckpoint("tiny", shape), page_size=page_size, **options
    )


@pytest.mark.parametrize(("name", "head_dim", "page_size", "format"), SIZES)
def test_pages_take_the_planned_bytes(name: str, head_dim: int, page_size: int, format: str) -> None:
    """Values may differ from keys in width, and there may be several groups."""
    groups = (
        PoolGroup("full", 5, page_size, 2, 3, head_dim, head_dim, format),
        PoolGroup("other", 3, page_size, 1, 2, head_dim, 24, format),
    )
    kernels = kernels_of(name)
    planned = {group.name: kernels.planned_page_bytes(group) for group in groups}
    kernels.allocate(groups)
    assert held_by(kernels) == sum(planned[group.name] * group.num_pages for group in groups)
    for group in groups:  # raw pages are padded, also those of the reference, which pads no array
        assert planned[group.name] <= kernels.page_bytes(group.name)
        assert planned[group.name] == kernels.page_bytes(group.name) or name == "reference"


@pytest.mark.parametrize("name", KERNELS)
def test_slots_take_the_planned_bytes(name: str) -> None:
    pool = StatePool(5, (StateShape(33, 7, 3), StateShape(64, 20), StateShape(0, 1)), 4)
    kernels = kernels_of(name)
    kernels.allocate((), pool)
    held = kernels.lowering.runtime.state_bytes if isinstance(kernels, NativeKernels) else held_by(kernels)
    assert held == pool.num_slots * pool.slot_bytes and kernels.slot_bytes == pool.slot_bytes


@pytest.mark.parametrize(("name", "head_dim", "page_size", "format"), SIZES)
def test_a_pool_fills_its_memory(name: str, head_dim: int, page_size: int, format: str) -> None:
    spec = decoder_spec({**SHAPES["tiny"], "head_dim": 32})
    layers = [each.with_part("self_attn", replace(each.part("self_attn"), head_dim=head_dim)) for each in spec.layers]
    spec = replace(spec, layers=tuple(layers))  # heads of 33 have no rope, which rotates pairs
    kernels, size = kernels_of(name), 3 << 20
    limits = PoolLimits(
        page_size=page_size,
        max_batch_size=1000,
        full_sequences=1000,
        max_sequence_length=1000,
        max_rows=64,
        max_draft=8,
        kv_capacity=None,
        memory_pool_size=size,
    )
    groups = pool_groups(inventory(spec).kv_layers, format, limits, kernels.planned_page_bytes)
    kernels.allocate(groups)
    page = sum(kernels.planned_page_bytes(group) for group in groups)
    assert size - page < held_by(kernels) <= size


@pytest.mark.parametrize("batch", [1, 4, 32])
def test_memory_that_windows_do_not_need_goes_to_other_layers(batch: int) -> None:
    spec = decoder_spec(SHAPES["tiny"])
    windows = [70, None] * len(spec.layers)
    layers = [
        e.with_part("self_attn", replace(e.part("self_attn"), window=w))
        for e, w in zip(spec.layers, windows, strict=False)
    ]
    spec = replace(spec, layers=tuple(layers))
    limits = PoolLimits(
        page_size=64,
        max_batch_size=batch,
        full_sequences=batch,
        max_sequence_length=1 << 20,
        max_rows=64,
        max_draft=8,
        kv_capacity=None,
        memory_pool_size=8 << 20,
    )
    page_bytes = ReferenceKernels().planned_page_bytes
    groups = pool_groups(inventory(spec).kv_layers, "bfloat16", limits, page_bytes)
    held = sum(group.num_pages * page_bytes(group) for group in groups)
    assert limits.memory_pool_size - sum(map(page_bytes, groups)) < held <= limits.memory_pool_size
    (windowed,) = [g for g, kv in zip(groups, inventory(spec).kv_layers, strict=True) if kv.window is not None]
    assert windowed.num_pages <= limits.batch(limits.resident(70)) // 64


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize("length", [7, 64, 100, 1000])
def test_a_pool_holds_a_full_batch_if_memory_allows(length: int, window: int | None) -> None:
    """Sequences take whole pages: a batch of short ones takes more than its tokens."""
    spec = decoder_spec(SHAPES["tiny"])
    layers = [each.with_part("self_attn", replace(each.part("self_attn"), window=window)) for each in spec.layers]
    spec = replace(spec, layers=tuple(layers))
    limits = PoolLimits(
        page_size=64,
        max_batch_size=32,
        full_sequences=32,
        max_sequence_length=length,
        max_rows=64,
        max_draft=8,
        kv_capacity=None,
        memory_pool_size=1 << 40,
    )
    (group,) = pool_groups(inventory(spec).kv_layers, "bfloat16", limits, ReferenceKernels().planned_page_bytes)
    assert group.num_pages // pool_part(group, 1, window, limits).pages(length) == 32


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("head_dim", "page_size", "format"), [(40, 7, "bfloat16"), (72, 16, "int8"), (128, 7, "int8")])
def test_an_executors_plan_equals_its_arrays(name: str, head_dim: int, page_size: int, format: str) -> None:
    kernels_of(name)
    with executor_of(name, head_dim, page_size, format) as executor:
        plan, pool = executor.memory_plan, executor.lm.kernels
        stored = executor.info.kv_bytes_per_token(DataType(format))
        pages = sum(part.num_pages for part in plan.pool)
        if isinstance(pool, NativeKernels):
            assert plan.kv_pool == pool.lowering.runtime.pool_bytes > pages * page_size * stored, "these are padded"
        else:
            assert plan.kv_pool == pages * page_size * stored
            assert plan.total - plan.libraries == sum(array.nbytes for array in owned_arrays(executor))
        needs = executor.memory_requirements
        assert needs.kv_cache_memory_per_token * executor.info.num_layers == stored, "padding is overhead"
        bound = needs.calculate_total_memory(4, 50, executor.info.num_layers)
        filled = sum(4 * part.pages(50) * part.page_bytes for part in plan.pool)
        assert plan.total - plan.kv_pool + filled <= bound


def test_a_pool_smaller_than_a_page_is_refused() -> None:
    with executor_of("auto", 40, 16, "bfloat16") as executor:
        (part,) = executor.memory_plan.pool
    with executor_of("auto", 40, 16, "bfloat16", memory_pool_size=part.page_bytes) as executor:
        assert executor.memory_plan.kv_pool == part.page_bytes
    with pytest.raises(ConfigError, match=f"one page of {part.page_bytes}") as caught:
        executor_of("auto", 40, 16, "bfloat16", memory_pool_size=part.page_bytes - 1)
    assert caught.value.param == "memory_pool_size"


def test_memory_left_by_mapped_weights_is_never_negative() -> None:
    limits = PoolLimits(
        page_size=64,
        max_batch_size=1,
        full_sequences=1,
        max_sequence_length=64,
        max_rows=64,
        max_draft=8,
        kv_capacity=None,
        mapped=1 << 60,
    )
    with pytest.raises(ConfigError, match=r"^kv_capacity: 0 bytes") as caught:
        pool_groups(
            inventory(decoder_spec(SHAPES["tiny"])).kv_layers, "bfloat16", limits, ReferenceKernels().planned_page_bytes
        )
    assert caught.value.param == "kv_capacity"


def test_memory_pool_size_is_an_upper_bound() -> None:
    """A regression: with heads of 24 and pages of 64 the pool exceeded its limit by padding."""
    case = find("mistral-full")
    with load_executor(directory_of(case)) as executor:
        info = executor.info
    size = 100 * info.kv_bytes_per_token(DataType.FLOAT32)
    config = ExecutorConfig(
        model_info=info,
        dtype=DataType.FLOAT32,
        max_sequence_length=200,
        memory_config=ExecutorMemoryConfig(memory_pool_size=size),
    )
    with ModelExecutorFactory(load_executor).create_executor(config) as made:
        (part,) = made.memory_plan.pool
        assert part.num_pages == 1 and part.page_bytes <= size


def test_ferrum_plan_counts_padded_heads(capsys: pytest.CaptureFixture[str]) -> None:
    directory = directory_of(find("mistral-full"))
    assert execute(["plan", str(directory), "--kv-capacity", "128"]) == 0
    shown = capsys.readouterr().out
    with load_executor(directory, kv_capacity=128) as executor:
        plan, pool = executor.memory_plan, executor.lm.kernels
    if isinstance(pool, NativeKernels):
        assert plan.kv_pool == pool.lowering.runtime.pool_bytes
    assert f"{ceil(plan.kv_per_token):,} B" in shown
    assert f"{plan.kv_pool / 1024:.1f} KiB for 128 tokens" in shown
