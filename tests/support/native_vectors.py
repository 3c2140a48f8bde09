"""Cases for the conformance program in `native/test`: inputs, and results of the reference kernels.

A file is a line of text, then for each case its name, the number of its fields, and the key, type, rank, extents and
elements of each field. Numbers are little-endian, texts begin with their length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.op_attributes import SILU, Activation, AttentionShape
from ferrum.kernels.reference import ReferenceKernels
from ferrum.kernels.reference.reference_math import LOG2_E
from ferrum.sampling.probabilities import log_total, mass, top
from ferrum.sampling.rows import Row
from ferrum.sampling.rules import distribution
from ferrum.sampling.sampler import draw, greedy
from native_adapter_vectors import ADAPTERS
from native_norm_vectors import ADAPTED_NORMS
from native_state_vectors import STATES
from native_twin import group_of, normal, shape_of, tables_of
from native_weights import BLOCKS, DTYPES, wild
from sampling_twin import request
from vector_fields import Case, Fields, matrix, tables

ACTIVATIONS = (SILU, Activation("gelu"), Activation("gelu_tanh"), Activation("relu2"))

MAGIC = b"ferrum vectors 1\n"
STORES = ("float32", "bfloat16", "int8")
"""KV formats."""


def write(path: Path, seed: int) -> int:
    """Write all cases, drawn from the seed; return their number."""
    makers = linear, norms, rows, attention, sampling, *ADAPTERS, *ADAPTED_NORMS, *STATES
    cases = [case for make in makers for case in make(np.random.default_rng(seed))]
    with path.open("wb") as file:
        file.write(MAGIC)
        for name, fields in cases:
            _write_text(file, name)
            file.write(struct.pack("<I", len(fields)))
            for key, value in fields.items():
                _write_text(file, key)
                _write_field(file, value)
    return len(cases)


def _write_text(file: BinaryIO, text: str) -> None:
    file.write(struct.pack("<I", len(text)) + text.encode())


def _write_field(file: BinaryIO, value: Any) -> None:
    array = np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else np.asarray(value)
    size = array.itemsize
    code = (
        ("f" if size == 4 else "d")
        if array.dtype in (np.float32, np.float64)
        else {1: "B", 2: "h", 4: "i", 8: "q"}[size]
    )
    file.write(struct.pack(f"<cI{array.ndim}q", code.encode(), array.ndim, *array.shape))
    file.write(np.ascontiguousarray(array).tobytes())


def linear(rng: np.random.Generator) -> Iterator[Case]:
    for format in (*DTYPES, *BLOCKS):
        for rows, inputs, outputs in ((1, 64, 96), (2, 1, 1), (3, 33, 31), (7, 130, 65), (13, 97, 32), (40, 300, 40)):
            weight, fields = matrix(rng, "weight", (outputs, inputs), format)
            x, bias = wild(rng, rows, inputs), normal(rng, outputs)
            yield "linear", {**fields, "x": x, "bias": bias, "y": weight.matmul(x) + bias}
            up, more = matrix(rng, "up", (outputs, inputs), format)
            x = normal(rng, rows, inputs)
            activation = replace(ACTIVATIONS[rows % 4], limit=0.7 if rows > 2 else None)
            y = ReferenceKernels().gated_linear(x, weight, up, activation, bias, -bias)
            limit = {} if activation.limit is None else {"limit": activation.limit}
            gate = {"curve": activation.kind, "bias": bias, "up bias": -bias, **limit}
            yield "linear", {**fields, **more, **gate, "x": x, "y": y}


def norms(rng: np.random.Generator) -> Iterator[Case]:
    kernels = ReferenceKernels()
    for columns in (1, 5, 16, 33, 64, 192, 1000):
        for rows in (1, 3, 17):
            x, delta, weight = normal(rng, rows, columns), normal(rng, rows, columns), normal(rng, columns)
            bias, centred, factor = normal(rng, columns), rows > 1, 1.0 if rows == 3 else 0.22
            alone = kernels.norm(x, weight, 1e-6)
            total, y = kernels.add_norm(x, delta, weight, 1e-6, bias, centred, factor)
            fields = {"x": x, "weight": weight, "eps": 1e-6}
            yield "norm", {**fields, "y": alone, "centred": 0}
            more = {"delta": delta, "bias": bias, "centred": int(centred), "factor": factor}
            yield "norm", {**fields, **more, "total": total, "y": y}


def rows(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of embeddings, gathers and the finite check."""
    kernels = ReferenceKernels()
    for format in (*DTYPES, *BLOCKS):
        table, fields = matrix(rng, "table", (50, 37), format)
        made = tables_of(rng, [(0, 4), (9, 1), (0, 8)], (), logit_rows=(3, 4, 12), hidden_rows=(0, 12), vocabulary=50)
        kernels.begin(made)
        x = normal(rng, 13, 37)
        x[rng.integers(13), rng.integers(37)] = rng.choice([np.nan, np.inf])
        results = {"embedded": kernels.embed(table), "gathered": kernels.gather(x), "hidden": kernels.gather_hidden(x)}
        yield "rows", {**fields, **tables("", made), **results, "x": x, "finite": kernels.finite(x)}


def attention(rng: np.random.Generator) -> Iterator[Case]:
    """Write a case that stores whole sequences, copies one of their pages, and attends with spans."""
    whole, spans = [(0, 1), (0, 64), (0, 130), (0, 131)], [(0, 1), (63, 1), (100, 30), (129, 2)]
    for store in STORES:
        for dim, kv_heads, share, page_size, window, chunk, softcap in (
            (16, 2, 2, 64, None, None, None), (24, 1, 7, 16, None, 70, None), (64, 3, 1, 5, 65, None, 2.0),
            (80, 1, 3, 128, 9, None, None), (128, 2, 2, 64, 64, 100, 30.0),
        ):  # fmt: skip
            group = group_of(dim, kv_heads, store, page_size, pages=2 + 400 // page_size + 4, layers=2)
            group = replace(group, value_dim=dim if softcap is None else 48)
            kernels, shape = ReferenceKernels(), shape_of(group, share, window, layer=1)
            shape = replace(shape, value_dim=group.value_dim, chunk=chunk, softcap=softcap)
            kernels.allocate((group,))
            q, k = (normal(rng, 326, heads * dim) for heads in (kv_heads * share, kv_heads))
            v = normal(rng, 326, kv_heads * group.value_dim)
            vectors: Fields = {} if chunk is None else {
                "k_norm": normal(rng, dim), "v_norm": normal(rng, group.value_dim), "temperature": normal(rng, 200),
            }  # fmt: skip
            norms = (
                None,
                vectors.get("k_norm"),
                1e-6,
                vectors.get("v_norm"),
                chunk is not None,
                vectors.get("temperature"),
            )
            sinks = None if softcap is None else normal(rng, kv_heads * share)
            rope = kernels.rope_table(tuple(10.0 ** -np.arange(dim // 4)), 1.25, 200)
            before, after = (tables_of(rng, each, (group,)) for each in (whole, spans))
            kernels.begin(before)
            turned = kernels.rope_store(q, k, v, shape, rope, *norms)
            source = int(after.pages[0][0, 0])
            target = next(page for page in range(group.num_pages) if page not in after.pages[0])
            kernels.copy_pages((PageCopy("group", source, target),))
            after.pages[0][0, 0] = target
            kernels.begin(after)
            queries = normal(rng, 34, kv_heads * share * dim)
            out = kernels.attention(queries, shape, sinks)
            sizes = {"heads": kv_heads * share, "kv_heads": kv_heads, "dim": dim, "value_dim": group.value_dim}
            seen = {"window": window or 0, "chunk": chunk or 0, "norm_last": int(chunk is not None)}
            vectors |= {} if sinks is None else {"sinks": sinks}
            pool = {
                "store": store,
                "num_pages": group.num_pages,
                "page_size": page_size,
                "source": source,
                "target": target,
            }
            inputs = {"q": q, "k": k, "v": v, "cosines": rope[0], "sines": rope[1], "eps": 1e-6, "queries": queries}
            step = {**tables("whole ", before), **tables("", after)}
            results = {"turned": turned, "out": out}
            yield "attention", {**sizes, **seen, **pool, **inputs, **vectors, **scaling_of(shape), **step, **results}


def scaling_of(shape: AttentionShape) -> Fields:
    """Return how scores become exponents of 2, as the library takes it."""
    scale, softcap = shape.scale, shape.softcap
    if softcap is None:
        return {"curve": "scaled", "slope": float(np.float32(scale) * LOG2_E), "top": 0.0, "span": 0.0}
    top = float(LOG2_E) * softcap
    return {"curve": "capped", "slope": 2 * scale / softcap, "top": top, "span": 2 * top}


def sampling(rng: np.random.Generator) -> Iterator[Case]:
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for size in (1, 5, 64, 65, 1000, 4099):
        for rules in (
            {},
            {"temperature": 0.3, "top_k": 7},
            {"top_p": 0.9},
            {"min_p": 0.02},
            {"top_k": 50, "top_p": 0.5},
        ):
            params = {**neutral, **rules}
            seed = int(rng.integers(2**62))
            logits = np.round(normal(rng, size) * 6) / np.float32(2)
            row = Row(request([0] * 3, seed=seed, choice=2, **params))
            key = {"seed": seed, "position": row.position, "choice": 2}
            chosen = {"greedy": greedy(logits, row), "drawn": draw(distribution(logits, row), row)}
            best = top(logits, min(size, 5)).astype(np.int32)
            total = np.asarray(log_total(mass(logits - logits.max())), np.float32)
            yield "sampling", {**params, **key, **chosen, "logits": logits, "log_total": total, "best": best}
