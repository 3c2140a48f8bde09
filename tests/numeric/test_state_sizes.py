"""Slots of states are sized by memory, and stay float32 whatever the format of keys and values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from census import FOLDER
from contract_kit import same
from ferrum.cli.main import app
from ferrum.core.config import ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.core.kv_shape import KvShape
from ferrum.runtime import memory
from ferrum.runtime.load import Bounds, assemble
from ferrum.runtime.memory import MOST_SNAPSHOTS, MOST_STATEFUL, PoolLimits, pool_groups, sized_for_states
from ferrum.sources.random_checkpoint import RandomCheckpoint
from recurrent_model import load
from schedules import HYBRIDS
from tiny import directory_of

SLOT = 83 << 20
"""Bytes of a slot of Qwen3.6-35B-A3B."""
LIMITS = PoolLimits(
    page_size=16,
    max_batch_size=256,
    full_sequences=8,
    max_sequence_length=4096,
    max_rows=512,
    max_draft=16,
    kv_capacity=None,
    batch_given=False,
)


@pytest.mark.parametrize("gib", [1, 2, 4, 8, 16, 64, 1024])
@pytest.mark.parametrize("run_ahead", [0, 2])
def test_the_default_batch_and_its_snapshots_take_at_most_half_of_the_pool(gib: int, run_ahead: int) -> None:
    limits = sized_for_states(SLOT, replace(LIMITS, memory_pool_size=gib << 30, run_ahead=run_ahead))
    assert 1 <= limits.max_batch_size <= MOST_STATEFUL and 1 <= limits.snapshots <= MOST_SNAPSHOTS
    assert limits.full_sequences <= limits.max_batch_size
    slots = limits.max_batch_size * limits.slots_per_sequence + limits.snapshots
    assert limits.state_bytes == slots * SLOT
    least = limits.slots_per_sequence + 1
    assert limits.state_bytes <= max((gib << 30) // 2, least * SLOT)


def test_the_default_batch_grows_with_memory_up_to_its_limit() -> None:
    pools = [replace(LIMITS, memory_pool_size=gib << 30) for gib in (1, 4, 8, 16, 32, 64)]
    batches = [sized_for_states(SLOT, each).max_batch_size for each in pools]
    assert batches == sorted(batches) and batches[0] == 1 < batches[2] < batches[-1] == MOST_STATEFUL


@pytest.mark.parametrize("batch", [1, 8, 100])
def test_a_batch_that_the_user_has_chosen_stays(batch: int) -> None:
    given = replace(LIMITS, max_batch_size=batch, batch_given=True, memory_pool_size=4 << 30)
    limits = sized_for_states(SLOT, given)
    assert limits.max_batch_size == batch and limits.snapshots >= 1


def test_states_that_leave_no_room_for_a_page_are_refused_by_both_options() -> None:
    given = replace(LIMITS, max_batch_size=64, batch_given=True, memory_pool_size=4 << 30)
    layers = (KvShape(num_layers=10, num_heads=2, key_dim=256, value_dim=256),)
    with pytest.raises(ConfigError, match=r"states of 64 sequences \(max_batch_size\)") as caught:
        pool_groups(layers, "bfloat16", sized_for_states(SLOT, given), lambda group: 1 << 20)
    assert caught.value.param == "memory_pool_size"


def test_a_plan_shows_the_slots_of_a_hybrid_model() -> None:
    directory = str(directory_of(HYBRIDS["lfm2-bias"]))
    shown = CliRunner().invoke(app, ["plan", directory, "--kernels", "reference", "--max-batch-size", "3"])
    assert shown.exit_code == 0, shown.output
    (row,) = [line for line in shown.output.splitlines() if "states" in line]
    assert "slots of" in row and "for 3 sequences and 64 snapshots" in row


@pytest.mark.parametrize("quantize", [None, "q4_k_m"])
@pytest.mark.parametrize(
    "name",
    [
        "LiquidAI--LFM2-8B-A1B",
        "Qwen--Qwen3-Next-80B-A3B-Instruct",
        "Qwen--Qwen3.5-0.8B-Base",
        "Qwen--Qwen3.5-4B",
        "Qwen--Qwen3.6-35B-A3B",
        "Qwen--Qwen3.8-27B",
    ],
)
def test_published_models_take_little_more_than_their_weights(
    name: str, quantize: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 40)  # no machine is too large
    config = json.loads((FOLDER / f"{name}.json").read_text())["config"]
    options = ModelConfig(model=name, quantize=quantize)
    plan = assemble(options, Bounds(), RandomCheckpoint(name, config), planning=True).plan
    assert plan.traits.memory.total <= 1.3 * plan.traits.memory.weights + (2 << 30)
    assert plan.traits.max_batch_size >= 3 and plan.kv_capacity >= 32_768


@pytest.mark.parametrize("kind", ["recurrent", "recurrent with attention"])
def test_states_are_float32_with_keys_and_values_of_8_bits(kind: str) -> None:
    logits, slots = [], []
    for kv_dtype in ("float32", "int8"):
        with load(kind, "reference", kv_dtype=kv_dtype, max_batch_size=2) as executor:
            states = executor.memory_plan.states
            assert states is not None
            slots.append(states.slot_bytes)
            logits.append(executor.forward([[*range(40)]])[0])
    assert slots[0] == slots[1]
    if kind == "recurrent":  # it stores nothing but states
        same(*logits)
