"""A new kind of part or layer needs its spec class and its class in `nn/`, and no other edit.

This file defines three kinds of parts and two kinds of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pytest

from ferrum import DataType, PrefillInput, Span, StepBatch, Want
from ferrum.bench.limits import layer_kv_bytes
from ferrum.core.config import ModelConfig, Switches
from ferrum.core.kv_shape import KvShape
from ferrum.core.memory_plan import MemoryPlan, PoolPart, memory_requirements
from ferrum.core.step import Rows
from ferrum.kernels.op_attributes import AttentionShape
from ferrum.kernels.operations import Array, Operations
from ferrum.kernels.recorded_program import record
from ferrum.kernels.reference import ReferenceKernels
from ferrum.models.attention_spec import AttentionSpec
from ferrum.models.builder import Builder, NormSpec, PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.decoder import build_decoder
from ferrum.models.families import FAMILIES, decoder_spec
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm
from ferrum.models.tensor_names import HEAD
from ferrum.nn.attention import Attention
from ferrum.nn.block import PlainMlp
from ferrum.nn.linear import Linear, Norm, named_weights
from ferrum.runtime.load import build_executor
from ferrum.sources.parameters import Parameters
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.executor_reports import AttentionType
from ferrum.verbs.load_executor import LocalExecutor
from held_arrays import owned_arrays
from native_twin import require_native

HIDDEN, INNER, VOCABULARY, WINDOW, EPS = 32, 48, 64, 5, 1e-6
HEADS, KV_HEADS, KEY_DIM = 4, 2, 16
NARROW = 7
"""Head size of the last layer; odd, so that the mean over four layers is not whole."""
TOKENS = tuple(np.random.default_rng(0).integers(0, VOCABULARY, 24).tolist())


@dataclass(frozen=True, slots=True)
class PlainMlpSpec:
    """Feed-forward without a gate or an activation, under other names."""

    inner: int

    def build(self, make: Builder) -> PlainMlp:
        return PlainMlp(
            make.linear(("fc_in",), (self.inner,), make.hidden_size), make.linear(("fc_out",), (HIDDEN,), self.inner)
        )


@dataclass(frozen=True, slots=True)
class WideKeysSpec:
    """Attention whose keys and values differ in width."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int

    def stored(self) -> KvShape:
        return KvShape(self.num_kv_heads, self.key_dim, self.value_dim)

    def build(self, make: Builder) -> Attention:
        sizes = self.num_heads * self.key_dim, self.num_kv_heads * self.key_dim, self.num_kv_heads * self.value_dim
        slot, scale = make.slot(self), self.key_dim**-0.5
        return Attention(
            inputs=make.linear(("q_proj", "k_proj", "v_proj"), sizes, make.hidden_size),
            output=make.linear(("o_proj",), (make.hidden_size,), self.num_heads * self.value_dim),
            shape=AttentionShape(
                *slot, self.num_heads, self.num_kv_heads, self.key_dim, scale, value_dim=self.value_dim
            ),
            rope=None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadingAttention:
    """Attention over the keys and values of an earlier layer."""

    query: Linear
    output: Linear
    shape: AttentionShape

    def __call__(self, kernels: Operations, x: Array) -> Array:
        (q,) = self.query(kernels, x)
        (y,) = self.output(kernels, kernels.attention(q, self.shape))
        return y


@dataclass(frozen=True, slots=True)
class ReadingSpec:
    source: WideKeysSpec

    def build(self, make: Builder) -> ReadingAttention:
        of = self.source
        slot, scale = make.slot_before(of.stored()), of.key_dim**-0.5
        return ReadingAttention(
            make.linear(("q_proj",), (of.num_heads * of.key_dim,), make.hidden_size),
            make.linear(("o_proj",), (make.hidden_size,), of.num_heads * of.value_dim),
            AttentionShape(*slot, of.num_heads, of.num_kv_heads, of.key_dim, scale, value_dim=of.value_dim),
        )


@dataclass(frozen=True, slots=True)
class ParallelBlock:
    """A layer of one norm, whose parts read the same input: x + first(norm x) + second(norm x)."""

    norm: Norm
    first: Any
    second: Any

    def __call__(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array]:
        assert delta is not None
        residual, x = self.norm.add(kernels, residual, delta)
        residual, _ = self.norm.add(kernels, residual, self.first(kernels, x))
        return residual, self.second(kernels, x)


@dataclass(frozen=True, slots=True)
class ParallelSpec:
    first: PartSpec
    second: PartSpec

    def build(self, make: Builder) -> ParallelBlock:
        parts = (self.first.build(make.under("first")), self.second.build(make.under("second")))
        return ParallelBlock(make.norm("norm"), *parts)


@dataclass(frozen=True, slots=True)
class MlpBlock:
    """A layer without attention."""

    norm: Norm
    mlp: PlainMlp

    def __call__(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array]:
        assert delta is None
        return residual, self.mlp(kernels, self.norm(kernels, residual))


@dataclass(frozen=True, slots=True)
class MlpLayerSpec:
    mlp: PlainMlpSpec

    def build(self, make: Builder) -> MlpBlock:
        return MlpBlock(make.norm("norm"), self.mlp.build(make.under("mlp")))


def toy(config: FamilyConfig) -> DecoderSpec:
    plain, wide = PlainMlpSpec(INNER), WideKeysSpec(HEADS, KV_HEADS, KEY_DIM, config.integer("value_dim", minimum=0))
    windowed = AttentionSpec(HEADS, 1, NARROW, rope=None, window=WINDOW)
    return DecoderSpec(
        family="toy",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        max_sequence_length=128,
        norms=NormSpec(EPS),
        tied_head=config.flag("tied", True),
        layers=(
            MlpLayerSpec(plain),
            pre_norm(wide, MlpSpec(INNER)),
            ParallelSpec(ReadingSpec(wide), plain),
            pre_norm(windowed, plain),
        ),
    )


def config_of(value_dim: int) -> dict[str, Any]:
    return {"architectures": ["ToyForCausalLM"], "value_dim": value_dim}


@pytest.fixture(autouse=True)
def family() -> Iterator[None]:
    FAMILIES.add("ToyForCausalLM", toy)
    yield
    FAMILIES.pop("ToyForCausalLM")


def load(kernels: str, value_dim: int, kv_dtype: str = "float32", **options: Any) -> LocalExecutor:
    if kernels == "native":
        require_native()
    chosen = {"dtype": "float32", "max_batch_size": 3, "kv_capacity": 96} | options
    config = ModelConfig(model="toy", kernels=kernels, kv_dtype=kv_dtype, **chosen)
    return build_executor(
        LocalExecutor, config, checkpoint=RandomCheckpoint("toy", config_of(value_dim)), page_size=16, max_rows=16
    )


def expected_logits(value_dim: int) -> np.ndarray:
    """Compute the toy's logits in float64, all positions at once."""
    checkpoint = RandomCheckpoint("toy", config_of(value_dim))
    tensors = {name: checkpoint.read(name).astype(np.float64) for name in checkpoint.tensors}

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ tensors[f"model.layers.{name}.weight"].T

    def norm(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)  # norm weights are ones

    def plain(x: np.ndarray, name: str) -> np.ndarray:
        return linear(linear(x, f"{name}.fc_in"), f"{name}.fc_out")

    def attend(x: np.ndarray, source: np.ndarray, name: str, of: str, kv: tuple[int, int, int], window: int):
        rows, (kv_heads, key_dim, values) = len(x), kv
        q = linear(x, f"{name}.q_proj").reshape(rows, kv_heads, -1, key_dim)
        k = linear(source, f"{of}.k_proj").reshape(rows, kv_heads, key_dim)
        v = linear(source, f"{of}.v_proj").reshape(rows, kv_heads, values)
        distance = np.subtract.outer(np.arange(rows), np.arange(rows))
        scores = np.einsum("rhsd,thd->hsrt", q, k) * key_dim**-0.5
        scores = np.exp(np.where((distance >= 0) & (distance < window), scores, -np.inf))
        out = np.einsum("hsrt,thd->rhsd", scores / scores.sum(-1, keepdims=True), v)
        return linear(out.reshape(rows, -1), f"{name}.o_proj")

    wide = (KV_HEADS, KEY_DIM, value_dim)
    embedding = tensors["model.embed_tokens.weight"]
    x = embedding[list(TOKENS)]
    x = x + plain(norm(x), "0.mlp")
    stored = norm(x)
    x = x + attend(stored, stored, "1.self_attn", "1.self_attn", wide, len(TOKENS))
    gate = linear(norm(x), "1.mlp.gate_proj")
    x = x + linear(gate / (1 + np.exp(-gate)) * linear(norm(x), "1.mlp.up_proj"), "1.mlp.down_proj")
    x = x + attend(norm(x), stored, "2.first", "1.self_attn", wide, len(TOKENS)) + plain(norm(x), "2.second")
    x = x + attend(norm(x), norm(x), "3.self_attn", "3.self_attn", (1, NARROW, NARROW), WINDOW)
    return norm(x + plain(norm(x), "3.mlp")) @ embedding.T


SIZES = [("reference", 8), ("reference", KEY_DIM), ("native", KEY_DIM)]
"""Native kernels need keys and values of one width."""


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize(("kernels", "value_dim"), SIZES)
def test_toy_parts_compute_their_formulas_in_any_chunks(kernels: str, value_dim: int, replay: bool) -> None:
    expected = expected_logits(value_dim)
    with load(kernels, value_dim, switches=Switches(disable_graphs=not replay)) as executor:
        rows = []
        for begin, end in ((0, 7), (7, 8), (8, 24)):
            span = Span("chunks", begin, TOKENS[begin:end], Want.LOGITS, Rows.ALL)
            rows.append(executor.submit(StepBatch((span,))).result().results[0].logits)
        assert np.array_equal(np.concatenate(rows), executor.forward([TOKENS])[0])
        assert np.abs(np.concatenate(rows) - expected).max() < 1e-5 * np.abs(expected).max()


def test_quantised_toy_is_near_the_exact_one() -> None:
    expected = expected_logits(KEY_DIM)
    with load("reference", KEY_DIM, quantize="q8_0") as executor:
        assert {weight.format for weight in executor.lm.network.weights.values()} == {"q8_0"}
        error = np.abs(executor.forward([TOKENS])[0] - expected).max() / np.abs(expected).max()
        assert 0 < error < 0.05


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("kernels", "value_dim"), SIZES)
def test_memory_follows_what_each_layer_stores(kernels: str, value_dim: int, kv_dtype: str) -> None:
    """Two of four layers store, in groups of different widths; the first of the model stores nothing."""
    number = {"float32": 4, "bfloat16": 2, "int8": 1}[kv_dtype]
    scales = {"int8": 2 * 4 * (KV_HEADS + 1)}.get(kv_dtype, 0)
    stored = number * (KV_HEADS * (KEY_DIM + value_dim) + 2 * NARROW) + scales
    with load(kernels, value_dim, kv_dtype) as executor:
        plan, info, needs = executor.memory_plan, executor.info, executor.memory_requirements
        assert info.kv_bytes_per_token(DataType(kv_dtype)) == stored
        assert info.num_layers == 4 and needs.kv_cache_memory_per_token == ceil(stored / 4)
        full, windowed = plan.pool
        assert full.num_pages * full.page_size == executor.kv_capacity() == 96
        assert windowed.resident_tokens is not None and full.resident_tokens is None
        if kernels == "native":
            assert plan.kv_pool == executor.lm.kernels.lowering.runtime.pool_bytes
        else:
            assert plan.kv_per_token == stored
            assert plan.total - plan.libraries == sum(array.nbytes for array in owned_arrays(executor))
        for batch, length in ((1, 1), (1, 17), (3, 32)):
            filled = sum(batch * part.pages(length) * part.page_bytes for part in plan.pool)
            bound = needs.calculate_total_memory(batch, length, info.num_layers)
            assert plan.total - plan.kv_pool + filled <= bound


@pytest.mark.parametrize("length", [1, 999, 1000])
def test_the_memory_formula_rounds_the_mean_over_layers_up(length: int) -> None:
    """Four layers store 5 bytes per token in total, and nothing is padded."""
    part = PoolPart(name="layers0", num_pages=1000, page_size=1, page_bytes=5)
    plan = MemoryPlan(weights=100, activations=20, activation_row=0, tables=3, pool=(part,))
    needs = memory_requirements(plan, 5, 4, 1)
    assert needs.kv_cache_memory_per_token == 2
    assert 123 + 5 * length <= needs.calculate_total_memory(1, length, 4) <= 123 + 2 * 4 * length


def test_reports_describe_the_first_layer_that_stores() -> None:
    with load("reference", 8) as executor:
        handle = executor.prefill(PrefillInput([TOKENS])).kv_cache
        assert (handle.num_layers, handle.num_kv_heads, handle.head_dim) == (4, KV_HEADS, KEY_DIM)
        assert len(handle.block_table) == 2
        info, config = executor.info, executor.lm.config
        assert (info.num_heads, info.num_kv_heads, info.head_dim) == (HEADS, KV_HEADS, KEY_DIM)
        assert (config.num_layers, config.num_kv_heads, config.head_dim) == (4, KV_HEADS, KEY_DIM)
        assert info.kv_layers == (KvShape(KV_HEADS, KEY_DIM, 8), KvShape(1, NARROW, NARROW, WINDOW))
        assert type(info).from_json(info.to_json()) == info
        kinds = executor.capabilities().attention_mechanisms
        assert {AttentionType.GROUPED_QUERY, AttentionType.SLIDING_WINDOW} < kinds and AttentionType.LATENT not in kinds


def test_keys_without_values_are_latent_attention() -> None:
    with load("reference", 0) as executor:
        assert AttentionType.LATENT in executor.capabilities().attention_mechanisms
        assert executor.memory_plan.kv_per_token == 4 * (KV_HEADS * KEY_DIM + 2 * NARROW)


def test_layers_that_read_a_store_do_not_add_to_it() -> None:
    """Three layers attend and two store: the limits of speed count what each of the three reads."""
    with load("reference", 8) as executor:
        program, parts = record(executor.lm.network), executor.memory_plan.pool
    assert sum(op.name == "attention" for op in program.ops) == 3
    sizes = layer_kv_bytes(program, [part.page_bytes / part.page_size for part in parts])
    assert sizes == (4 * KV_HEADS * (KEY_DIM + 8), 4 * 2 * NARROW)


@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_has_its_name_in_the_checkpoint_once(tied: bool) -> None:
    config = config_of(8) | {"tied": tied}
    checkpoint, spec = RandomCheckpoint("toy", config), decoder_spec(config)
    decoder = build_decoder(spec, Parameters(checkpoint), ReferenceKernels(), 8)
    matrices = {name for name, info in checkpoint.tensors.items() if len(info.shape) == 2}
    assert decoder.weights.keys() == matrices and (HEAD in matrices) is not tied
    assert len({id(weight) for weight in decoder.weights.values()}) == len(matrices)
    assert {each.name for each in named_weights(decoder)} == matrices, "also in parts of this file"
    for name, weight in decoder.weights.items():
        assert np.array_equal(weight.dequantize(), checkpoint.read(name).astype(np.float32))
