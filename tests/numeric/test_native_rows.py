"""Native row operations against the reference: norms, embeddings, gathers, finite flags."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ferrum.kernels.interface import GivenRows
from ferrum.quant.dense import DenseWeight
from native_twin import TEAMS, TIERS, Twin, normal, same_bits, tables_of

COLUMNS = (1, 5, 16, 33, 64, 192, 1000)


@pytest.mark.parametrize("team", TEAMS)
def test_norms_equal_the_reference(team):
    rng, twin = np.random.default_rng(1), Twin(*team)
    for columns in COLUMNS:
        weight = normal(rng, columns)
        for rows in (1, 2, 3, 17):
            x, delta = normal(rng, rows, columns), normal(rng, rows, columns)
            ours, theirs = twin.both("norm", x, weight, 1e-6)
            same_bits(ours, theirs)
            (total, normed), (expected_total, expected) = twin.both("add_norm", x, delta, weight, 1e-6)
            np.testing.assert_array_equal(total, expected_total)
            same_bits(normed, expected)
            np.testing.assert_array_equal(normed, twin.native.norm(total, weight, 1e-6))
            np.testing.assert_array_equal(normed[:1], twin.native.norm(total[:1], weight, 1e-6))


@pytest.mark.parametrize("team", TEAMS)
def test_centred_and_biased_norms_equal_the_reference(team):
    rng, twin = np.random.default_rng(6), Twin(*team)
    for columns in COLUMNS:
        weight, bias = normal(rng, columns), normal(rng, columns)
        for rows in (1, 17):
            x, delta = 3 + normal(rng, rows, columns), normal(rng, rows, columns)
            for given in ((bias, False), (None, True), (bias, True)):
                same_bits(*twin.both("norm", x, weight, 1e-6, *given))
                for factor in (1.0, 0.22):
                    sums, normed = zip(*twin.both("add_norm", x, delta, weight, 1e-6, *given, factor), strict=True)
                    same_bits(*sums)
                    same_bits(*normed)


def test_centred_norm_is_a_layer_norm():
    rng = np.random.default_rng(7)
    x, weight, bias = 5 + normal(rng, 3, 1000), normal(rng, 1000), normal(rng, 1000)
    exact = x.astype(np.float64) - x.mean(axis=1, keepdims=True, dtype=np.float64)
    exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(Twin(TIERS[0], 1).native.norm(x, weight, 1e-5, bias, True), exact, atol=1e-5)


@pytest.mark.parametrize("team", TEAMS)
def test_sums_of_rows_equal_the_reference(team):
    rng, twin = np.random.default_rng(8), Twin(*team)
    for columns in COLUMNS:
        for rows in (1, 17):
            bits = rng.integers(0, 1 << 32, (2, rows, columns), np.uint32).view(np.float32)
            gate = normal(rng, rows, 1) * np.float32(20)
            gate[0] = rng.choice([np.nan, np.inf, 0])
            for x, y in (bits, normal(rng, 2, rows, columns)):
                with np.errstate(all="ignore"):
                    for given in ((), (0.22,), (1.0, 0.3), (1.0, 2.0, gate)):
                        same_bits(*twin.both("add", x, y, *given))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("team", TEAMS)
def test_embedding_returns_rows_of_the_packed_table(team, dtype):
    rng, twin = np.random.default_rng(2), Twin(*team)
    table = DenseWeight(normal(rng, 101, 37).astype(dtype))
    for spans in ([(0, 1)], [(0, 3), (5, 30), (0, 1)]):
        tables = tables_of(rng, spans, (), vocabulary=101)
        twin.begin(tables)
        np.testing.assert_array_equal(*twin.both("embed", table))
        np.testing.assert_array_equal(*twin.both("embed", table, 6.1))
        rows = np.arange(0, len(tables.token_ids), 2, dtype=np.int32)
        given = GivenRows(rows, normal(rng, len(rows), 37))
        twin.begin(tables._replace(given=given))
        ours, theirs = twin.both("embed", table, 6.1)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(ours[rows], given.values)


@pytest.mark.parametrize("team", TEAMS)
def test_gathers_and_flags_match_the_reference(team):
    rng, twin = np.random.default_rng(3), Twin(*team)
    for columns in COLUMNS:
        x = normal(rng, 13, columns)
        twin.begin(tables_of(rng, [(0, 4), (9, 1), (0, 8)], (), logit_rows=(3, 4, 12), hidden_rows=(0, 12)))
        np.testing.assert_array_equal(*twin.both("gather", x))
        np.testing.assert_array_equal(*twin.both("gather_hidden", x))
        for row, value in ((0, np.nan), (4, np.inf), (12, -np.inf), (7, 3.4e38)):
            soiled = x.copy()
            soiled[row, columns // 2] = value
            np.testing.assert_array_equal(*twin.both("finite", soiled))


@pytest.mark.parametrize("team", TEAMS)
def test_best_token_is_the_lowest_id_of_the_greatest_logits(team):
    rng, twin = np.random.default_rng(5), Twin(*team)
    twin.begin(tables_of(rng, [(0, 1)], ()))
    for columns in (*COLUMNS, 1023, 1024, 1025, 5000):
        for rows in (1, 2, 33):
            x = normal(rng, rows, columns)
            tied = np.round(x)
            for logits in (x, tied, np.full_like(x, -3.0e38)):
                np.testing.assert_array_equal(*twin.both("best", logits))
            x[rng.integers(rows), rng.integers(columns)] = rng.choice([np.nan, np.inf, -np.inf])
            ours, theirs = twin.both("best", x)
            np.testing.assert_array_equal(ours, theirs)
            assert (ours == -1).sum() == 1


@pytest.mark.parametrize("team", TEAMS)
def test_step_without_requested_rows_gathers_nothing(team):
    rng, twin = np.random.default_rng(4), Twin(*team)
    twin.begin(tables_of(rng, [(0, 2)], ()))
    assert twin.native.gather(normal(rng, 2, 8)).shape == (0, 8)
    weight = twin.native.weight(DenseWeight(normal(rng, 40, 8)))
    assert twin.native.head(np.empty((0, 8), np.float32), weight).shape == (0, 40)
    assert twin.native.best(np.empty((0, 40), np.float32)).shape == (0, 1)
