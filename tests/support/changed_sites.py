"""Random changes of adapters, sites of kernels for them, and adapters of tiny models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind
from ferrum.kernels.interface import AdapterRows
from ferrum.runtime.decoder_lm import DecoderLM
from native_twin import Twin, normal

Changes = tuple[Change | None, ...]

FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)


def low_rank(
    rng: np.random.Generator,
    shape: tuple[int, int],
    rank: int,
    dtype: Any = np.float32,
    groups: int | None = None,
    bias: bool = False,
) -> LowRank:
    """Return a product for a matrix [N, K], or for one of each group, whose results are about as large as x."""
    (outputs, inputs), axes = shape, () if groups is None else (groups,)
    a = (normal(rng, *axes, rank, inputs) / np.sqrt(inputs)).astype(dtype)
    b = (normal(rng, *axes, outputs, rank) / np.sqrt(rank)).astype(dtype)
    return LowRank(a, b, float(rng.choice([0.25, 1, 1.7])), normal(rng, outputs) if bias else None)


def embedding(rng: np.random.Generator, shape: tuple[int, int], rank: int, dtype: Any = np.float32) -> LowRank:
    """Return a product for an embedding [V, H]."""
    a, b = (normal(rng, size, rank) / np.sqrt(rank) for size in shape)
    return LowRank(a.astype(dtype), b.astype(dtype), 0.5)


def replacement(
    rng: np.random.Generator, shape: tuple[int, int], rows: Sequence[int] | None, dtype: Any = np.float32
) -> Replacement:
    """Return new rows of a matrix [N, K]."""
    count = shape[0] if rows is None else len(rows)
    values = (normal(rng, count, shape[1]) / np.sqrt(shape[1])).astype(dtype)
    return Replacement(values, None if rows is None else np.array(rows, np.int32))


def site_of(
    kernels: Any, kind: SiteKind, shapes: Sequence[tuple[int, int]], entries: Sequence[Changes], groups: int = 1
) -> AdapterSite:
    """Return a site of matrices with these shapes, where kernels hold the entries, slot by slot."""
    site = AdapterSite(kind, tuple(f"matrix {index}" for index in range(len(shapes))), tuple(shapes), groups)
    for slot, changes in enumerate(entries):
        kernels.install(site, slot, kernels.adapted(changes))
    return site


def twin_sites(
    twin: Twin, kind: SiteKind, shapes: Sequence[tuple[int, int]], entries: Sequence[Changes], groups: int = 1
) -> list[AdapterSite]:
    """Return the site of the native kernels, and that of the reference."""
    return [site_of(kernels, kind, shapes, entries, groups) for kernels in (twin.native, twin.reference)]


def norm_changes(rng: np.random.Generator, *sizes: int, bias: bool = False) -> Changes:
    """Return new weights of norms, and biases."""
    return tuple(
        Change(replaced=Replacement(normal(rng, size, 1)), bias=normal(rng, size) if bias else None) for size in sizes
    )


def uses(*rows: tuple[int, float, Sequence[int]], logit_rows: Sequence[Sequence[int]] = ()) -> tuple[AdapterRows, ...]:
    """Return adapters of a step: for each the slot, the scale and its rows."""
    logits = logit_rows or ((),) * len(rows)
    return tuple(
        AdapterRows(slot, scale, np.array(some, np.int32), np.array(wanted, np.int32))
        for (slot, scale, some), wanted in zip(rows, logits, strict=True)
    )


def random_adapter(model: DecoderLM, seed: int, rank: int, dtype: Any = np.float32) -> dict[str, Change]:
    """Return an adapter with a product for every matrix of a model that an adapter can change."""
    rng, found = np.random.default_rng(seed), dict[str, Change]()
    for site in model.adapters.sites:
        if site.kind is SiteKind.NORM:
            continue
        for name, (outputs, inputs) in zip(site.names, site.shapes, strict=True):
            if site.kind is SiteKind.EMBEDDING:
                found[name] = Change(embedding(rng, (outputs, inputs), rank, dtype))
                continue
            groups = site.groups if site.kind in (SiteKind.HEADS, SiteKind.EXPERTS) else None
            found[name] = Change(low_rank(rng, (outputs // site.groups, inputs), rank, dtype, groups))
    return found


def random_norms(model: DecoderLM, seed: int) -> dict[str, Change]:
    """Return an adapter that replaces the weight of every norm of a model."""
    rng = np.random.default_rng(seed)
    sizes = {
        name: size
        for site in model.adapters.sites
        if site.kind is SiteKind.NORM
        for name, (size, _) in zip(site.names, site.shapes, strict=True)
    }
    return {
        name: Change(replaced=Replacement(1 + np.float32(0.3) * normal(rng, size, 1))) for name, size in sizes.items()
    }
