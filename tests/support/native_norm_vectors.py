"""Cases of norms with weights of adapters for the conformance program."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from changed_operations import APART
from changed_sites import Changes, norm_changes, site_of
from ferrum.kernels.adapters import Change, SiteKind
from ferrum.kernels.reference import ReferenceKernels
from native_adapter_vectors import ROWS, begin, site_fields
from native_twin import group_of, normal, shape_of, tables_of
from vector_fields import Case, tables


def norms(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of norms with and without a residual, of which adapters replace the weight, the bias or both."""
    kernels = ReferenceKernels()
    step = begin(kernels, APART)
    for columns in (1, 33, 192, 1000):
        entries: list[Changes] = [
            norm_changes(rng, columns),
            norm_changes(rng, columns, bias=True),
            (Change(bias=normal(rng, columns)),),
        ]
        site = site_of(kernels, SiteKind.NORM, [(columns, 1)], entries)
        x, delta, weight, bias = (
            normal(rng, *each) for each in ((ROWS, columns), (ROWS, columns), (columns,), (columns,))
        )
        fields = {**step, **site_fields(entries), "x": x, "weight": weight, "eps": 1e-6, "factor": 0.22}
        yield "norm", {**fields, "centred": 0, "y": kernels.norm(x, weight, 1e-6, site=site)}
        total, y = kernels.add_norm(x, delta, weight, 1e-6, bias, True, 0.22, site)
        yield "norm", {**fields, "delta": delta, "bias": bias, "centred": 1, "total": total, "y": y}


def heads(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of norms of heads before and after the rotation, of which adapters replace one or both."""
    for store, dim in (("float32", 40), ("bfloat16", 64), ("int8", 80)):
        for norm_last in (False, True):
            group, kernels = group_of(dim, 2, store, page_size=16), ReferenceKernels()  # the first page is full
            kernels.allocate((group,))
            made = tables_of(rng, [(0, ROWS)], (group,))._replace(adapters=APART)
            kernels.begin(made)
            entries: list[Changes] = [
                norm_changes(rng, dim, dim),
                (None, *norm_changes(rng, dim)),
                (*norm_changes(rng, dim), None),
            ]
            site = site_of(kernels, SiteKind.NORM, [(dim, 1)] * 2, entries)
            q, k, v = (normal(rng, ROWS, count * dim) for count in (6, 2, 2))
            q_norm, k_norm, shape = normal(rng, dim), normal(rng, dim), shape_of(group, 3)
            rope = kernels.rope_table(tuple(10.0 ** -np.arange(dim // 2)), 1.0, ROWS)
            turned = kernels.rope_store(q, k, v, shape, rope, q_norm, k_norm, 1e-6, None, norm_last, None, site)
            read = int(made.pages[0][0, 0])
            place = {"store": store, "num_pages": group.num_pages, "page_size": group.page_size, "read": read}
            norms = {"q_norm": q_norm, "k_norm": k_norm, "norm_last": int(norm_last), "eps": 1e-6}
            inputs = {"q": q, "k": k, "v": v, "cosines": rope[0], "sines": rope[1], **norms}
            results = {"turned": turned, "page": kernels.read_page("group", read)}
            yield "adapted heads", {**tables("", made), **site_fields(entries), **place, **inputs, **results}


ADAPTED_NORMS = norms, heads
