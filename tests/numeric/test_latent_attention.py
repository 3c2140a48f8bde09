"""Latent attention: the formula, one arithmetic in all kernels and spans, and a pool of one vector per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ferrum.contract.model_info import DataType
from ferrum.core.config import ModelConfig
from ferrum.core.errors import Unsupported
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels, PoolGroup
from ferrum.kernels.op_attributes import AttentionShape
from ferrum.kernels.reference import ReferenceKernels
from ferrum.kernels.reference.page_layout import PageLayout
from ferrum.models.attention_spec import RopeSpec
from ferrum.models.builder import Builder, NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.decoder import inventory
from ferrum.models.deepseek import LatentAttentionSpec
from ferrum.models.families import FAMILIES
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm
from ferrum.models.tensor_names import View
from ferrum.quant.dense import DenseWeight
from ferrum.runtime.load import build_executor
from ferrum.runtime.memory import PoolLimits, pool_groups, pool_part
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.sources.viewed_tensors import index_of
from ferrum.verbs.executor_reports import AttentionType
from ferrum.verbs.load_executor import LocalExecutor
from native_twin import TIERS, Twin, normal, require_native, same_bits, tables_of

FORMATS = ("float32", "bfloat16", "int8")
ITEM = {"float32": 4, "bfloat16": 2, "int8": 1}
HIDDEN, EPS = 40, 1e-6


def group_of(latent: int, rope: int, format: str, page_size: int = 64, layers: int = 1) -> PoolGroup:
    return PoolGroup("latent", 8 + 600 // page_size, page_size, layers, 1, latent + rope, 0, format)


def shape_of(heads: int, latent: int, rope: int, layer: int = 0) -> AttentionShape:
    return AttentionShape(0, layer, heads, 1, latent + rope, (latent + rope) ** -0.5, value_dim=latent)


def inputs(rng: np.random.Generator, rows: int, shape: AttentionShape) -> tuple[np.ndarray, ...]:
    """Return q, q_rope, latent and k_rope of some rows."""
    latent, heads = shape.value_dim, shape.num_heads
    rope = shape.head_dim - latent
    return (
        normal(rng, rows, heads * latent),
        normal(rng, rows, heads * rope),
        normal(rng, rows, latent),
        normal(rng, rows, rope),
    )


# The formula.


class Tensors:
    """A source of parameters that are views of a checkpoint's tensors."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors, self.views = tensors, dict[str, View]()

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> DenseWeight:
        assert not exact
        found = self._read(name)
        assert found.shape == shape
        return DenseWeight(found)

    def vector(self, name: str, size: int) -> np.ndarray:
        found = self._read(name)
        assert found.shape == (size,)
        return found

    def release(self, name: str) -> None:
        pass

    def _read(self, name: str) -> np.ndarray:
        view = self.views.get(name)
        if view is None:
            return self.tensors[name]
        (source,) = view.sources
        found = self.tensors[source] if view.rows is None else self.tensors[source][index_of(view.rows)]
        if view.transposed:
            parts = np.split(found, view.transposed)
            found = np.concatenate([part.T for part in parts])
        return np.ascontiguousarray(found)


def checkpoint(spec: LatentAttentionSpec, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return tensors with the names and shapes of the published models."""
    heads, query = spec.num_heads, spec.num_heads * (spec.nope_dim + spec.rope_dim)
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (spec.latent_dim + spec.rope_dim, HIDDEN),
        "kv_a_layernorm.weight": (spec.latent_dim,),
        "kv_b_proj.weight": (heads * (spec.nope_dim + spec.value_dim), spec.latent_dim),
        "o_proj.weight": (HIDDEN, heads * spec.value_dim),
    }
    if spec.q_rank is None:
        shapes["q_proj.weight"] = query, HIDDEN
    else:
        shapes["q_a_proj.weight"], shapes["q_a_layernorm.weight"] = (spec.q_rank, HIDDEN), (spec.q_rank,)
        shapes["q_b_proj.weight"] = query, spec.q_rank
    return {name: normal(rng, *shape) / np.float32(shape[-1] ** 0.5) for name, shape in shapes.items()}


def expanded(spec: LatentAttentionSpec, tensors: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Compute the part in float64 with keys and values expanded per head (DeepSeek-V2, equations 9 to 19)."""
    rows, heads, nope, rank = len(x), spec.num_heads, spec.nope_dim, spec.latent_dim

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ tensors[f"{name}.weight"].astype(np.float64).T

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * tensors[f"{name}.weight"]

    def rotated(x: np.ndarray) -> np.ndarray:
        """Rotate x [rows, heads, rope] as complex numbers of adjacent pairs, or of both halves."""
        turn = np.exp(1j * np.arange(rows)[:, None, None] * np.array(spec.rope.frequencies)) * spec.rope.scaling
        low, high = (x[..., ::2], x[..., 1::2]) if spec.rope.interleaved else np.split(x, 2, axis=-1)
        turned = (low + 1j * high) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    q = linear(x, "q_proj") if spec.q_rank is None else linear(norm(linear(x, "q_a_proj"), "q_a_layernorm"), "q_b_proj")
    q = q.reshape(rows, heads, -1)
    kv = linear(x, "kv_a_proj_with_mqa")
    up = linear(norm(kv[:, :rank], "kv_a_layernorm"), "kv_b_proj").reshape(rows, heads, -1)
    scores = np.einsum("rhd,thd->hrt", q[..., :nope], up[..., :nope])
    scores += np.einsum("rhd,thd->hrt", rotated(q[..., nope:]), rotated(kv[:, None, rank:]).repeat(heads, 1))
    seen = np.tri(rows, dtype=bool)
    weights = np.exp(np.where(seen, scores * spec.scale, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return linear(np.einsum("hrt,thd->rhd", weights, up[..., nope:]).reshape(rows, -1), "o_proj")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("q_rank", [None, 24])
def test_the_absorbed_form_computes_attention_over_expanded_keys_and_values(q_rank: int | None, interleaved: bool):
    rng, rows = np.random.default_rng(1), 90
    rope = RopeSpec((1.0, 0.3, 0.01, 0.002), 1.1, interleaved)
    spec = LatentAttentionSpec(3, 16, 8, 32, 64, rope, 0.31, q_rank, EPS)
    tensors, x = checkpoint(spec, rng), normal(rng, rows, HIDDEN)
    source, kernels = Tensors(tensors), ReferenceKernels()
    part = spec.build(Builder(source, kernels, HIDDEN, NormSpec(EPS), 128, views=source.views))
    group = group_of(64, 8, "float32", page_size=16)
    kernels.allocate((group,))

    def run(cut: int) -> np.ndarray:
        found = []
        for start in range(0, rows, cut):
            here = slice(start, min(start + cut, rows))
            kernels.begin(tables_of(rng, [(start, here.stop - start)], (group,)))
            found.append(part(kernels, x[here]))
        return np.concatenate(found)

    ours, theirs = run(rows), expanded(spec, tensors, x)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()
    for cut in (1, 37):
        np.testing.assert_array_equal(run(cut), ours)


@pytest.mark.parametrize(
    ("name", "changes"), [("kv_lora_rank 40", {"latent_dim": 40}), ("v_head_dim 48", {"value_dim": 48})]
)
def test_widths_that_fill_no_panel_are_refused(name: str, changes: dict[str, int]) -> None:
    widths = {"num_heads": 2, "nope_dim": 16, "rope_dim": 8, "value_dim": 32, "latent_dim": 64} | changes
    with pytest.raises(Unsupported, match=f"{name} .* multiple of 32"):
        LatentAttentionSpec(**widths, rope=RopeSpec((1.0,) * 4), scale=1.0)


# Native kernels.

SPANS = [(0, 1), (63, 1), (0, 65), (100, 30), (129, 2)]


def compare(team: tuple[str, int], spans: list[tuple[int, int]], group: PoolGroup, shape: AttentionShape) -> None:
    """Store whole sequences, then attend from the rows of the spans."""
    rng, twin = np.random.default_rng(shape.head_dim + shape.num_heads), Twin(*team, group)
    pairs = (shape.head_dim - shape.value_dim) // 2
    lengths = [(0, start + count) for start, count in spans]
    tables = tables_of(rng, lengths, (group,))
    ropes = [each.rope_table(tuple(10.0 ** -np.arange(pairs)), 1.25, 300) for each in (twin.native, twin.reference)]
    twin.begin(tables)
    given = inputs(rng, len(tables.positions), shape)
    ours = twin.native.latent_store(*given, shape, ropes[0])
    theirs = twin.reference.latent_store(*given, shape, ropes[1])
    same_bits(ours, theirs)
    ends = np.cumsum([count for _, count in lengths])
    q = np.concatenate([theirs[end - count : end] for end, (_, count) in zip(ends, spans, strict=True)])
    twin.begin(tables_of(rng, spans, (group,)))
    same_bits(*twin.both("attention", q, shape))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("heads", "latent", "rope", "page_size"),
    [(1, 16, 4, 64), (3, 32, 8, 5), (5, 48, 16, 16), (20, 80, 24, 128), (9, 144, 34, 64), (2, 96, 10, 7)],
)
def test_native_kernels_equal_the_reference(tier, heads, latent, rope, page_size, format) -> None:
    compare(
        (tier, 1 + heads % 2),
        SPANS,
        group_of(latent, rope, format, page_size, layers=2),
        shape_of(heads, latent, rope, layer=1),
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_keys_of_published_models_fit(tier: str, format: str) -> None:
    compare((tier, 2), [(66, 3)], group_of(512, 64, format), shape_of(16, 512, 64))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_row_bits_do_not_depend_on_spans_page_size_or_team(tier: str, format: str) -> None:
    rng, length, shape = np.random.default_rng(11), 150, shape_of(34, 32, 8)
    given, expected = inputs(rng, length, shape), None
    for threads, page_size, cut in ((1, 64, 150), (2, 64, 1), (2, 64, 37), (1, 16, 64), (3, 7, 149)):
        group, rows = group_of(32, 8, format, page_size), []
        kernels = NativeKernels(tier, threads)
        kernels.allocate((group,))
        rope = kernels.rope_table((1.0, 0.1, 0.01, 0.001), 1.0, length)
        for start in range(0, length, cut):
            here = slice(start, min(start + cut, length))
            kernels.begin(tables_of(rng, [(start, here.stop - start)], (group,)))
            rows.append(kernels.attention(kernels.latent_store(*(x[here] for x in given), shape, rope), shape))
        expected = np.concatenate(rows) if expected is None else expected
        np.testing.assert_array_equal(np.concatenate(rows), expected)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_previous_content_of_a_page_is_not_read(tier: str, format: str) -> None:
    rng, group, shape = np.random.default_rng(5), group_of(32, 8, format), shape_of(3, 32, 8)
    given, results = inputs(rng, 70, shape), []
    for stale in (0.0, np.nan, np.inf):
        kernels = NativeKernels(tier, 1)
        kernels.allocate((group,))
        rope = kernels.rope_table((1.0, 0.1, 0.01, 0.001), 1.0, 128)
        kernels.begin(tables_of(rng, [(0, 128)], (group,)))
        bad = [np.full((128, x.shape[1]), stale, np.float32) for x in given]
        kernels.latent_store(*bad, shape, rope)
        rows = []
        for start, stop in ((0, 33), (33, 34), (34, 70)):
            kernels.begin(tables_of(rng, [(start, stop - start)], (group,)))
            rows.append(kernels.attention(kernels.latent_store(*(x[start:stop] for x in given), shape, rope), shape))
        results.append(np.concatenate(rows))
    assert np.isfinite(results[0]).all()
    for found in results[1:]:
        np.testing.assert_array_equal(found, results[0])


# The pool.


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("page_size", [7, 16, 64, 128])
@pytest.mark.parametrize(("latent", "rope"), [(512, 64), (16, 6)])
def test_pages_hold_one_vector_per_token_and_move_between_kernels(latent, rope, page_size, format) -> None:
    layers, shape = 2, shape_of(1, latent, rope)
    group = PoolGroup("latent", 2, page_size, layers, 1, latent + rope, 0, format)
    made: dict[str, Kernels] = {"reference": ReferenceKernels()}
    made.update({tier: NativeKernels(tier, 1) for tier in TIERS})
    given = inputs(np.random.default_rng(0), page_size, shape)
    contents, attended = {}, {}
    for name, kernels in made.items():
        planned = kernels.planned_page_bytes(group)
        kernels.allocate((group,))
        tables = tables_of(np.random.default_rng(0), [(0, page_size)], (group,))
        table, other = (tables._replace(pages=(np.array([[page]], np.int32),)) for page in (0, 1))
        rope_table = kernels.rope_table((1.0, 0.1, 0.01), 1.0, page_size)
        kernels.begin(table)
        for layer in range(layers):
            q = kernels.latent_store(*given, replace(shape, layer=layer), rope_table)
        contents[name] = kernels.read_page("latent", 0)
        assert planned <= kernels.page_bytes("latent") == len(contents[name]) == PageLayout(group).nbytes
        if (page_size % 64 == 0 and (latent + rope) % 4 == 0) or name == "reference":  # others are padded
            assert planned == layers * page_size * ((latent + rope) * ITEM[format] + 4 * (format == "int8"))
        kernels.write_page("latent", 1, contents["reference"])
        kernels.begin(other)
        attended[name] = kernels.attention(q, shape)
    for name in made:
        np.testing.assert_array_equal(contents[name], contents["reference"], name)
        same_bits(attended[name], attended["reference"])
    assert contents["reference"].any()


@pytest.mark.parametrize("format", FORMATS)
def test_the_pool_of_deepseek_v2_lite_holds_latent_and_rope_and_nothing_more(format: str) -> None:
    require_native()
    part = LatentAttentionSpec(16, 128, 64, 128, 512, RopeSpec((1.0,) * 32), 0.1)
    spec = DecoderSpec("lite", 64, 2048, 4096, NormSpec(EPS), False, (pre_norm(part, MlpSpec(64)),) * 27)
    stored, tokens = inventory(spec).kv_layers, 4096
    limits = PoolLimits(
        page_size=64,
        max_batch_size=1,
        full_sequences=1,
        max_sequence_length=tokens,
        max_rows=512,
        max_draft=8,
        kv_capacity=tokens,
    )
    for kernels in (ReferenceKernels(), NativeKernels(threads=1)):
        (group,) = pool_groups(stored, format, limits, kernels.planned_page_bytes)
        pool = pool_part(group, kernels.planned_page_bytes(group), None, limits)
        assert pool.nbytes == tokens * 27 * ((512 + 64) * ITEM[format] + 4 * (format == "int8"))


def toy(config: FamilyConfig) -> DecoderSpec:
    rope = RopeSpec(tuple(float(each) for each in 10.0 ** -np.arange(4)))
    latent = LatentAttentionSpec(4, 16, 8, 32, 64, rope, 24**-0.5, config.integer("q_lora_rank", 0) or None)
    return DecoderSpec("toy", 64, HIDDEN, 512, NormSpec(EPS), True, (pre_norm(latent, MlpSpec(64)),) * 2)


@pytest.fixture
def family() -> Iterator[None]:
    FAMILIES.add("LatentForCausalLM", toy)
    yield
    FAMILIES.pop("LatentForCausalLM")


def opened(kernels: str, format: str, **options: Any) -> LocalExecutor:
    if kernels == "native":
        require_native()
    usual = {"dtype": "float32", "max_batch_size": 3, "kv_capacity": 576}
    config = ModelConfig(model="toy", kernels=kernels, kv_dtype=format, **usual | options)
    values = {"architectures": ["LatentForCausalLM"], "q_lora_rank": 24}
    return build_executor(LocalExecutor, config, checkpoint=RandomCheckpoint("toy", values), page_size=64)


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize("format", FORMATS)
def test_an_executor_stores_one_vector_per_token_and_layer(format: str) -> None:
    """Kernels agree, and so do any cut into spans, and a sequence that begins with the raw pages of another."""
    tokens = tuple(int(token) for token in np.random.default_rng(2).integers(0, 64, 150))
    stored, logits = 2 * (72 * ITEM[format] + 4 * (format == "int8")), []
    for kernels in ("reference", "native"):
        with opened(kernels, format) as executor:

            def run(sequence: str, begin: int, end: int, executor: LocalExecutor = executor) -> np.ndarray:
                span = Span(sequence, begin, tokens[begin:end], Want.LOGITS, Rows.ALL)
                return executor.submit(StepBatch((span,))).result().results[0].logits.copy()

            assert executor.info.kv_bytes_per_token(DataType(format)) == stored
            assert executor.memory_plan.kv_pool == 576 * stored
            assert AttentionType.LATENT in executor.capabilities().attention_mechanisms
            logits.append(run("a", 0, 150))
            cut = [run("b", begin, end) for begin, end in ((0, 70), (70, 71), (71, 150))]
            np.testing.assert_array_equal(np.concatenate(cut), logits[-1])
            pages, kernel = executor.lm.pages, executor.lm.kernels
            (group,) = pages.groups
            pages.reserve("c", 128)
            for source, target in zip(pages.row("a", group.name)[:2], pages.row("c", group.name), strict=True):
                kernel.write_page(group.name, target, kernel.read_page(group.name, source))
            pages.commit("c", 128)
            np.testing.assert_array_equal(run("c", 128, 150), logits[-1][128:])
    np.testing.assert_array_equal(*logits)
