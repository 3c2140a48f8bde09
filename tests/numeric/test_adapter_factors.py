"""DoRA's factors and replaced biases, and checks of changes against the matrices of a model."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from changed_sites import embedding, low_rank, replacement
from family_twin import MODELS
from ferrum.core.errors import RequestError, Unsupported
from ferrum.core.step import AdapterUse, Rows, Span, SpanExtras, StepBatch, Want
from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind
from ferrum.quant.dense import DenseWeight
from ferrum.runtime.adapters.adapter_factors import column_norms, row_norms, with_column_factors, with_factors
from ferrum.runtime.adapters.adapter_slots import refuse_change
from ferrum.verbs.load_executor import load_executor
from native_twin import normal
from native_weights import weight_of
from tiny import directory_of, tokens_of


def none() -> None:
    """Go on."""


@pytest.mark.parametrize("format", [np.float32, "q4_k", "q8_0"])
@pytest.mark.parametrize("rank", [1, 16, 40])
def test_norms_are_those_of_the_changed_rows(format: Any, rank: int) -> None:
    rng = np.random.default_rng(rank)
    matrix, low = weight_of(rng, 70, 512, format), low_rank(rng, (70, 512), rank)
    whole = matrix.dequantize().astype(np.float64) + low.scale * low.b.astype(np.float64) @ low.a.astype(np.float64)
    np.testing.assert_allclose(row_norms(matrix, low, none), np.linalg.norm(whole, axis=1), rtol=1e-12)


@pytest.mark.parametrize("format", [np.float32, "q4_k", "q8_0"])
@pytest.mark.parametrize("rank", [1, 40])
def test_norms_of_embeddings_are_those_of_the_changed_columns(format: Any, rank: int) -> None:
    rng = np.random.default_rng(rank)
    table, low = weight_of(rng, 150, 512, format), embedding(rng, (150, 512), rank)
    whole = table.dequantize().astype(np.float64) + low.scale * low.a.astype(np.float64) @ low.b.T.astype(np.float64)
    np.testing.assert_allclose(column_norms(table, low, none), np.linalg.norm(whole, axis=0), rtol=1e-12)
    magnitude = np.abs(normal(rng, 512))
    change = with_column_factors(Change(low, magnitude=magnitude), table, none)
    np.testing.assert_allclose(change.factor, magnitude / np.linalg.norm(whole, axis=0), rtol=1e-6)
    assert change.magnitude is None and not change.offset.any()


def test_norms_of_columns_have_one_order_of_additions() -> None:
    """They do not depend on the size of the pieces, and have the bits of norms of the transposed matrix's rows."""
    rng = np.random.default_rng(4)
    for tokens, width, rank in ((700, 96, 3), (130, 4096, 60), (31, 8, 1)):
        table, low = normal(rng, tokens, width), embedding(rng, (tokens, width), rank)
        turned = LowRank(np.ascontiguousarray(low.a.T), low.b, low.scale)
        expected = row_norms(DenseWeight(np.ascontiguousarray(table.T)), turned, none)
        np.testing.assert_array_equal(column_norms(DenseWeight(table), low, none), expected)


def test_a_piece_of_work_is_short() -> None:
    """A piece is a few hundred thousand products, whatever the rank and the widths."""
    rng, ends = np.random.default_rng(0), [0.0]
    for outputs, inputs, rank in ((64, 4096, 16), (8, 12288, 100), (300, 64, 8)):
        matrix, low = DenseWeight(normal(rng, outputs, inputs)), low_rank(rng, (outputs, inputs), rank)
        ends.clear()
        row_norms(matrix, low, lambda: ends.append(time.perf_counter()))
        assert len(ends) >= outputs * inputs * rank / (1 << 21)
        ends.clear()
        column_norms(matrix, embedding(rng, (outputs, inputs), rank), lambda: ends.append(time.perf_counter()))
        assert len(ends) >= outputs * inputs * rank / (1 << 21)


def test_outputs_are_those_of_dora() -> None:
    """y = m / norm (W x + s B A x) + b (Liu et al. 2024, equation 5), with the old bias or another one."""
    rng = np.random.default_rng(1)
    w, b, x = normal(rng, 24, 40), normal(rng, 24), normal(rng, 7, 40)
    low, magnitude, new = low_rank(rng, (24, 40), 4), np.abs(normal(rng, 24)), normal(rng, 24)
    whole = w + low.scale * low.b @ low.a
    factor = (magnitude / np.linalg.norm(whole, axis=1))[None, :]
    for bias, other, expected in ((b, None, b), (b, new, new), (None, None, 0), (None, new, new)):
        change = with_factors(Change(low, magnitude=magnitude, bias=other), DenseWeight(w), bias, none)
        assert change.factor is not None and change.offset is not None and change.magnitude is None
        y = x @ whole.T + (0 if bias is None else bias)
        np.testing.assert_allclose(change.factor * y + change.offset, factor * (x @ whole.T) + expected, atol=1e-5)


def test_a_model_with_a_bias_replaces_it_and_scales_its_outputs() -> None:
    """An adapter with all factors equals the base at magnitudes of its rows, and biases alone change the result."""
    case = MODELS["llama-mlp-bias"]
    with load_executor(directory_of(case), kernels="reference", dtype="float32", kv_capacity=512) as executor:
        slots, rng = executor.lm.adapters, np.random.default_rng(2)
        same, biases = dict[str, Change](), dict[str, Change]()
        for site in slots.sites:
            if site.kind is not SiteKind.LINEAR:
                continue
            for name, (matrix, bias) in zip(site.names, site.base, strict=True):
                zero = LowRank(normal(rng, 2, matrix.shape[1]), np.zeros((matrix.shape[0], 2), np.float32), 1.0)
                same[name] = Change(zero, magnitude=row_norms(matrix, None, none).astype(np.float32))
                biases[name] = Change(bias=bias + np.float32(0.5) if bias is not None else normal(rng, matrix.shape[0]))
        for key, changes in (("same", same), ("biases", biases)):
            slots.add(key, slots.prepare(changes))
        found = {}
        for key in (None, "same", "biases"):
            extras = None if key is None else SpanExtras(adapters=(AdapterUse(key),))
            span = Span(str(key), 0, tuple(tokens_of(case, 20)), Want.LOGITS, Rows.ALL, extras=extras)
            (result,) = executor.submit(StepBatch((span,))).result().results
            found[key] = result.logits
        np.testing.assert_allclose(found["same"], found[None], atol=1e-5 * np.abs(found[None]).max())
        assert np.abs(found["biases"] - found[None]).max() > 0.1
        for uses in ((AdapterUse("same", 0.5),), (AdapterUse("same"), AdapterUse("biases"))):
            assert isinstance(slots.refuse(uses), RequestError), "factors of outputs are neither scaled nor combined"


SITE = AdapterSite(SiteKind.LINEAR, ("q_proj.weight", "k_proj.weight"), ((8, 6), (4, 6)))
HEADS = AdapterSite(SiteKind.HEADS, ("k_b_proj.weight",), ((64, 6),), 2)
TABLE = AdapterSite(SiteKind.EMBEDDING, ("embed_tokens.weight",), ((50, 6),))
NORM = AdapterSite(SiteKind.NORM, ("norm.weight",), ((8, 1),))
RNG = np.random.default_rng(3)
GOOD = low_rank(RNG, (8, 6), 3)
OF_HEADS = low_rank(RNG, (32, 6), 3, groups=2)

REFUSED: dict[str, tuple[AdapterSite, Change, str]] = {
    "inputs": (SITE, Change(low_rank(RNG, (8, 7), 3)), r"A of q_proj.weight.*\[3, 7\], not \[3, 6\]"),
    "outputs": (SITE, Change(low_rank(RNG, (4, 6), 3)), r"B of q_proj.weight.*\[4, 3\], not \[8, 3\]"),
    "ranks": (SITE, Change(LowRank(GOOD.a[:2], GOOD.b, 1.0)), "A of q_proj.weight"),
    "empty": (SITE, Change(LowRank(GOOD.a[:0], GOOD.b[:, :0], 1.0)), "q_proj.weight.*empty"),
    "groups of one matrix": (SITE, Change(OF_HEADS), "A of q_proj.weight"),
    "magnitude": (SITE, Change(GOOD, magnitude=np.ones(4, np.float32)), r"magnitude of q_proj.weight.*\[4\]"),
    "bias": (SITE, Change(bias=np.ones(6, np.float32)), "bias of q_proj.weight"),
    "bias of B": (SITE, Change(replace(GOOD, bias=np.ones(9, np.float32))), "bias of B of q_proj.weight"),
    "new rows": (SITE, Change(replaced=replacement(RNG, (7, 6), None)), "new rows of q_proj.weight"),
    "rows outside": (SITE, Change(replaced=replacement(RNG, (8, 6), [1, 8])), "ascend from 0 to 7"),
    "rows twice": (SITE, Change(replaced=Replacement(GOOD.a[:2], np.array([1, 1], np.int32))), "ascend"),
    "heads with a magnitude": (HEADS, Change(OF_HEADS, magnitude=np.ones(32, np.float32)), "k_b_proj.weight.*heads"),
    "other heads": (HEADS, Change(low_rank(RNG, (32, 6), 3, groups=3)), "A of k_b_proj.weight"),
    "scaled tokens": (
        TABLE,
        Change(embedding(RNG, (50, 6), 3), magnitude=np.ones(50, np.float32)),
        r"magnitude of embed_tokens\.weight.*\[50\], not \[6\]",
    ),
    "biases of embeddings": (TABLE, Change(bias=np.ones(6, np.float32)), "embed_tokens.weight.*no biases"),
    "scaled embeddings alone": (TABLE, Change(magnitude=np.ones(6, np.float32)), "embed_tokens.weight.*low-rank"),
    "product of a norm": (NORM, Change(GOOD), "norm.weight.*whole weights"),
    "rows of a norm": (NORM, Change(replaced=replacement(RNG, (8, 1), [3])), "norm.weight.*whole weights"),
    "width of a norm": (NORM, Change(replaced=replacement(RNG, (6, 1), None)), r"weight of norm.weight.*\[6, 1\]"),
    "floats of a norm": (NORM, Change(replaced=replacement(RNG, (8, 1), None, np.float16)), "norm.weight.*float16"),
    "bias of a norm": (NORM, Change(bias=np.ones(6, np.float32)), r"bias of norm.weight.*\[6\]"),
    "tokens": (TABLE, Change(embedding(RNG, (49, 6), 3)), "A of embed_tokens.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_does_not_fit_is_refused_by_the_name_of_its_matrix(name: str) -> None:
    site, change, words = REFUSED[name]
    with pytest.raises(Unsupported, match=words):
        refuse_change(site, 0, change)


def test_changes_that_fit_are_not_refused() -> None:
    refuse_change(SITE, 0, Change(replace(GOOD, bias=np.ones(8, np.float32)), replacement(RNG, (8, 6), [0, 7])))
    refuse_change(HEADS, 0, Change(OF_HEADS))
    refuse_change(HEADS, 0, Change(LowRank(OF_HEADS.a[0], OF_HEADS.b, 1.0)))
    refuse_change(TABLE, 0, Change(embedding(RNG, (50, 6), 3), magnitude=np.ones(6, np.float32)))
    refuse_change(NORM, 0, Change(replaced=replacement(RNG, (8, 1), None), bias=np.ones(8, np.float32)))
    refuse_change(TABLE, 0, Change(embedding(RNG, (50, 6), 3), replacement(RNG, (50, 6), [49])))
