"""Hashes of what kernels make of small fixed inputs, for every operation and format.

The expected ones are in `assets/self-check`; `self_check` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.params import SamplingParams
from ferrum.core.state_shape import StateShape
from ferrum.core.step import Sampling
from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind
from ferrum.kernels.interface import AdapterRows, GivenRows, Kernels, PoolGroup, StatePool, StateTables, StepTables
from ferrum.kernels.op_attributes import SIGMOID, SILU, Activation, AttentionShape, DeltaShape, EncoderShape, Routing
from ferrum.kernels.operations import F32, Weight
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.rope import rope_spec
from ferrum.quant.backend_quantizer import quantizer_of
from ferrum.quant.block_format import BLOCK_FORMATS, BlockFormat
from ferrum.quant.block_quantizers import QUANTIZERS
from ferrum.quant.block_weight import BlockRows, BlockWeight, RowWeight, file_weight
from ferrum.quant.dense import FORMATS, DenseWeight
from ferrum.quant.low_bits import with_scales
from ferrum.quant.ordered_weight import OrderedWeight
from ferrum.sampling.backend_sampler import sampler_of
from ferrum.sampling.philox import fixed_numbers
from ferrum.sampling.rows import Row
from ferrum.sampling.sampler import LogprobsQuery, SamplerInput

# ---- Fixed inputs: numbers from a counter-based generator, the same everywhere, and tables of steps ----

KV_FORMATS: Final = ("float32", "bfloat16", "int8")

_EXPONENTS: Final = (0, 0, 0, 2, -3, 0, 0, 0, -124, -127, -140, 60, 127)
"""Scales of the rows as powers of two: tiny ones lose bits to subnormal numbers, huge ones give infinities. There
processors differ first."""

Answer = NDArray[Any]


@dataclass
class Inputs:
    """Fixed numbers, in one run that all operations read from different places."""

    _pool: F32 = field(default_factory=lambda: fixed_numbers(1 << 14, seed=0))

    def numbers(self, *shape: int, at: int = 0) -> F32:
        """Return an array of numbers in [-1, 1] from a place on."""
        size = int(np.prod(shape))
        numbers: F32 = np.resize(self._pool[at:], size).reshape(shape)
        return numbers

    def rows(self, columns: int) -> F32:
        """Return rows of ordinary, tiny and huge numbers [13, columns]."""
        scales: F32 = np.ldexp(np.float32(1), np.array(_EXPONENTS)).astype(np.float32)
        return self.numbers(len(scales), columns, at=7) * scales[:, None]


def known_tables(
    spans: Sequence[tuple[int, int]],
    token_ids: NDArray[np.int32] | None = None,
    logit_rows: Sequence[int] = (),
    hidden_rows: Sequence[int] = (),
) -> StepTables:
    """Return the tables of spans (start, rows). Sequence s has the pages s and s + 2."""
    positions = np.concatenate([np.arange(start, start + count) for start, count in spans]).astype(np.int32)
    pages = np.array([[s % 2, s % 2 + 2] for s in range(len(spans))], np.int32)
    return StepTables(
        token_ids=np.zeros(len(positions), np.int32) if token_ids is None else token_ids,
        positions=positions,
        span_rows=np.cumsum([0, *(count for _, count in spans)]).astype(np.int32),
        pages=(pages,) * (len(KV_FORMATS) + 2),
        logit_rows=np.array(logit_rows, np.int32),
        hidden_rows=np.array(hidden_rows, np.int32),
    )


_INPUTS: Final = 200  # 32 inputs six times and a part, in each kind of vector too
_OUTPUTS: Final = 70  # two panels and a part
_TOKENS: Final = 70  # of the longer sequence: a step of 64 keys and a part
_SHAPE: Final = AttentionShape(group=0, layer=0, num_heads=6, num_kv_heads=2, head_dim=40, scale=0.16)
_EPS: Final = 1e-6

_NARROW: Final = replace(_SHAPE, group=len(KV_FORMATS), value_dim=24)
"""The shape of a group whose values are narrower than its keys."""

_LATENT: Final = AttentionShape(
    group=len(KV_FORMATS) + 1, layer=0, num_heads=3, num_kv_heads=1, head_dim=48, scale=0.6, value_dim=32
)

_ROUTINGS: Final = (
    Routing(6, 2, renormalise=True),
    Routing(6, 3, "sigmoid", groups=3, kept_groups=2, group_best=2, renormalise=True, eps=1e-20, factor=2.5),
    Routing(5, 2, "sigmoid", late=True, on_input=True),
    Routing(5, 3, "sqrt_softplus", renormalise=True, least=2.0),
)

_ACTIVATIONS: Final = (
    replace(SILU, sharpness=1.7, limit=0.75),
    Activation("gelu"),
    Activation("gelu_tanh"),
    Activation("relu2"),
    Activation("clip", least=-0.3, most=0.2),
)

_ROPES: Final[tuple[dict[str, Any], ...]] = (
    {"rope_type": "default"},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 64},
)


def answers(kernels: Kernels) -> Iterator[tuple[str, Callable[[], Sequence[Answer]]]]:
    """Yield each check's name, and what computes its answer.

    Args:
        kernels: without a pool; this allocates one with a group for each KV format and one of narrow values.
    """
    narrow = PoolGroup("narrow values", 4, 64, 1, 2, 40, 24, "bfloat16")
    latent = PoolGroup("latent vectors", 4, 64, 1, 1, 48, 0, "bfloat16")
    kernels.allocate((*(PoolGroup(f, 4, 64, 1, 2, 40, 40, f) for f in KV_FORMATS), narrow, latent), STATES)
    inputs = Inputs()
    for format in FORMATS:
        yield f"products of {format}", partial(_dense_products, kernels, inputs, format)
    for kind in BLOCK_FORMATS.values():
        yield f"products of {kind.name}", partial(_block_products, kernels, inputs, kind)
    yield "products of gathered inputs", partial(_gathered_products, kernels, inputs)
    for name in QUANTIZERS:
        yield f"quantisation to {name}", partial(_quantisation, kernels, inputs, name)
    for index, format in enumerate(KV_FORMATS):
        yield f"attention over {format}", partial(_attention, kernels, inputs, index)
    yield "attention over narrow values", partial(_narrow_attention, kernels, inputs)
    yield "attention over latent vectors", partial(_latent_attention, kernels, inputs)
    yield "attention among all rows", partial(_attention_of_all, kernels, inputs)
    for index, routing in enumerate(_ROUTINGS):
        yield f"experts by {routing.score} ({index})", partial(_experts, kernels, inputs, routing)
    yield "activations", partial(_activations, kernels, inputs)
    yield "adapters", partial(_adapters, kernels, inputs)
    yield "adapters of heads and experts", partial(_grouped_adapters, kernels, inputs)
    yield "norms of adapters", partial(_replaced_norms, kernels, inputs)
    yield "norms", partial(_norms, kernels, inputs)
    yield "sums and centred norms", partial(_centred_norms, kernels, inputs)
    yield "rotation", partial(_rotation, kernels, inputs)
    yield "places and added rows", partial(_places, kernels, inputs)
    yield "selection of rows", partial(_selection, kernels, inputs)
    yield "sampling", partial(_sampling, kernels, inputs)
    yield "states", partial(state_answers, kernels, inputs)
    yield "checksums", partial(_checksums, kernels, inputs)
    yield "attention within blocks", partial(_attention_within_blocks, kernels, inputs)


def hash_of(arrays: Sequence[Answer]) -> str:
    """Return 64 bits of SHA-256 as hexadecimal digits. Any NaN counts as any other."""
    digest = sha256()
    for array in arrays:
        if array.dtype == np.float32:
            array = np.where(np.isnan(array), np.float32(np.nan), array)
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _dense_products(kernels: Kernels, inputs: Inputs, format: str) -> list[Answer]:
    weight = DenseWeight(inputs.numbers(_OUTPUTS, _INPUTS).astype(FORMATS[format]))
    return _products(kernels, inputs, weight)


def _block_products(kernels: Kernels, inputs: Inputs, kind: BlockFormat) -> list[Answer]:
    return _products(kernels, inputs, fixed_weight(kind, (_OUTPUTS, _INPUTS), inputs))


def _gathered_products(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Multiply by a matrix whose columns are stored from the last input to the first."""
    weight = fixed_weight(BLOCK_FORMATS["q5_0"], (_OUTPUTS, _INPUTS), inputs)
    return _products(kernels, inputs, OrderedWeight(weight, np.arange(_INPUTS, dtype=np.int32)[None, ::-1]))


def fixed_weight(kind: BlockFormat, shape: tuple[int, int], inputs: Inputs) -> BlockWeight:
    """Return a matrix [N, K] of codes and scales of all sizes, with numbers in about [-1, 1]."""
    outputs, blocks = shape[0], kind.blocks(shape[1])
    if kind.low is not None:
        numbers = inputs.numbers(outputs, blocks, kind.low.nbytes, at=31)
        random = ((numbers * np.float32(1 << 23)).astype(np.int32) & 255).astype(np.uint8)
        scales = inputs.numbers(outputs, 2, at=5) if kind.output_scales else None
        return file_weight(kind, with_scales(kind.low, random, inputs.numbers(outputs, blocks, at=3)), shape[1], scales)
    groups = blocks * kind.groups
    bits = (inputs.numbers(outputs, groups, kind.group + 1, at=31) * np.float32(1 << 23)).astype(np.int32)
    largest = 480 if kind.float8 else (128 if kind.signed_bytes else 1 << kind.bits) * (1 if kind.sub is None else 256)
    scales = (inputs.numbers(outputs, blocks, at=3) / np.float32(largest)).astype(kind.scale)
    subs = None if kind.sub is None else (bits[..., -1] & 255).astype(np.uint8)
    rows = BlockRows(
        codes=(bits[..., :-1] & ((1 << kind.bits) - 1)).astype(np.uint8),
        d=scales,
        m=scales[::-1] if kind.minima else None,
        sub=None if subs is None or kind.sub is None else subs.view(kind.sub),
        sub_m=subs[::-1] if subs is not None and kind.minima else None,
    )
    return RowWeight(kind=kind, shape=shape, whole=rows)


def _quantisation(kernels: Kernels, inputs: Inputs, name: str) -> list[Answer]:
    return [quantizer_of(kernels)(name, inputs.numbers(_OUTPUTS, 256)).panels]


def _products(kernels: Kernels, inputs: Inputs, weight: Weight) -> list[Answer]:
    """Multiply one row and many, with and without a bias, gated; look up rows."""
    packed, x = kernels.weight(weight), inputs.rows(_INPUTS)
    bias = kernels.vector(inputs.numbers(_OUTPUTS, at=3))
    one = kernels.head(x[3:4], packed)
    kernels.begin(known_tables([(0, 3)], token_ids=np.array([0, 69, 31], np.int32)))
    return [
        one,
        *kernels.linear(x, (packed,), (bias,)),
        kernels.gated_linear(x[:3], packed, packed),
        kernels.embed(packed),
    ]


def _attention(kernels: Kernels, inputs: Inputs, group: int) -> list[Answer]:
    """Store two sequences, attend from all rows, then with a window from the last ones."""
    shape, rows, found = replace(_SHAPE, group=group), _TOKENS + 5, []
    q, k, v = (inputs.numbers(rows, heads * 40, at=at) for heads, at in ((6, 11), (2, 501), (2, 902)))
    k[_TOKENS + 2] *= np.float32(2.0**-128)  # in the short sequence only, because processors are slow at it
    v[_TOKENS + 3] *= np.float32(2.0**-125)
    kernels.begin(known_tables([(0, _TOKENS), (0, 5)]))
    found.append(kernels.rope_store(2 * q, 3 * k, v, shape, None, None, None, _EPS))
    found.append(kernels.attention(4 * q, shape))
    kernels.begin(known_tables([(_TOKENS - 1, 1), (3, 2)]))
    found.append(kernels.attention(9 * q[:3], replace(shape, window=5)))
    return [*found, kernels.read_page(KV_FORMATS[group], 0)]


def _attention_within_blocks(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Attend from rows of sequences whose blocks see each other, with a window shorter than a block, and causally."""
    rows, found = _TOKENS + 5, []
    q, k, v = (inputs.numbers(rows, heads * 40, at=at) for heads, at in ((6, 12), (2, 505), (2, 904)))
    tables = known_tables([(0, _TOKENS), (0, 5)])
    last = tables.positions.copy()
    for begin, end in ((3, 66), (66, 69), (_TOKENS + 1, _TOKENS + 4)):
        last[begin:end] = last[end - 1]
    kernels.begin(tables._replace(last_seen=last))
    for group in range(len(KV_FORMATS)):
        shape = replace(_SHAPE, group=group)
        kernels.rope_store(q, k, v, shape, None, None, None, _EPS)
        found += [
            kernels.attention(5 * q, each) for each in (shape, replace(shape, window=30), replace(shape, causal=True))
        ]
    return found


def _narrow_attention(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Store normed values and keys normed last, attend with sinks, softcap and chunks, then queries without keys."""
    q, k, v = (inputs.numbers(_TOKENS, columns, at=at) for columns, at in ((240, 13), (80, 504), (48, 905)))
    rope = kernels.rope_table((1.0, 0.1, 0.01), 1.0, _TOKENS)
    norms = [kernels.vector(1 + inputs.numbers(size, at=at)) for size, at in ((40, 22), (40, 84), (24, 99))]
    sinks, temperature = (kernels.vector(inputs.numbers(size, at=size)) for size in (6, _TOKENS))
    rest = rope, *norms[:2], _EPS, norms[2], True, temperature
    kernels.begin(known_tables([(0, _TOKENS)]))
    results = [kernels.rope_store(q, k, v, _NARROW, *rest)]
    results.append(kernels.attention(3 * q, replace(_NARROW, softcap=0.5, chunk=50), sinks))
    results.append(kernels.rope_store(2 * q, None, None, _NARROW, *rest))
    return [*results, kernels.attention(9 * q, _NARROW, sinks), kernels.read_page("narrow values", 0)]


def _latent_attention(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Store latent vectors, attend, and multiply each head by its weight."""
    q, q_rope, latent, k_rope = (inputs.numbers(_TOKENS, size, at=size) for size in (96, 48, 32, 16))
    rope = kernels.rope_table((1.0, 0.1, 0.01), 1.0, _TOKENS)
    kernels.begin(known_tables([(0, _TOKENS)]))
    stored = kernels.latent_store(q, q_rope, 2 * latent, k_rope, _LATENT, rope)
    attended = kernels.attention(stored, _LATENT)
    values = kernels.weight(DenseWeight(inputs.numbers(96, 32)))
    found = [stored, attended, kernels.head_linear(attended, values, 3)]
    return [*found, kernels.read_page("latent vectors", 0)]


def _attention_of_all(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Embed positions, norm and rotate heads, and attend among the rows of two spans, in both formats."""
    q, k, v = (inputs.numbers(_TOKENS + 5, 123, at=at) for at in (14, 503, 907))
    v[_TOKENS + 3] *= np.float32(2.0**-125)
    rope = kernels.rope_table((1.0, 0.1, 0.01), 1.0, _TOKENS)
    kernels.begin(known_tables([(0, _TOKENS), (40, 5)]))
    table = kernels.weight(DenseWeight(inputs.numbers(_TOKENS, _INPUTS, at=9)))
    found = [kernels.embed_positions(table), kernels.rotate(2 * q, 3, rope)]
    norm = kernels.vector(1 + inputs.numbers(41, at=23))
    found += [kernels.rotate(k, 3, each, norm=norm, eps=_EPS) for each in (rope, None)]
    shapes = EncoderShape(3, 41, 0.16), EncoderShape(3, 41, 2.5, "bfloat16")
    return found + [kernels.attend_all(4 * q, k, v, shape) for shape in shapes]


def _experts(kernels: Kernels, inputs: Inputs, routing: Routing) -> list[Answer]:
    """Send rows to experts, with ties of scores and with biases."""
    count, x = routing.num_experts, inputs.numbers(9, 64, at=4)
    scores = np.rint(8 * inputs.numbers(9, count, at=77))
    sizes = ((count * 32, 64), (count * 32, 64), (count * 64, 32))
    matrices = [kernels.weight(DenseWeight(inputs.numbers(*size, at=at))) for at, size in enumerate(sizes)]
    biases = [kernels.vector(inputs.numbers(size[0], at=at)) for at, size in enumerate(sizes)]
    choice, scale = (kernels.vector(inputs.numbers(count, at=at)) for at in (33, 44))
    kernels.begin(known_tables([(0, 9)]))
    gate, up, down = matrices
    return [kernels.experts(x, scores, routing, gate, up, down, _ACTIVATIONS[0], choice, scale, *biases)]


def _activations(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Activate, gate and cap the products of one weight."""
    weight = kernels.weight(DenseWeight(inputs.numbers(_OUTPUTS, _INPUTS)))
    x, bias = inputs.rows(_INPUTS), kernels.vector(inputs.numbers(_OUTPUTS, at=3))
    results = [kernels.head(x, weight, 0.5), kernels.head(x, weight, 2.0, 3.0)]
    for activation in _ACTIVATIONS:
        results += kernels.linear(x, (weight,), (bias,), activation)
        results.append(kernels.gated_linear(x, weight, weight, activation, bias, bias))
    return results


def _adapters(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Change products and embeddings by adapters with every part, then activate, gate and cap products."""
    x, y, z = (inputs.rows(columns) for columns in (_INPUTS, _OUTPUTS, _OUTPUTS))
    site = AdapterSite(SiteKind.LINEAR, ("one", "two"), ((_OUTPUTS, _INPUTS),) * 2)
    table = AdapterSite(SiteKind.EMBEDDING, ("table",), ((_OUTPUTS, _INPUTS),))
    rows, half = np.arange(0, _OUTPUTS, 2, dtype=np.int32), _OUTPUTS // 2
    for slot, dtype in enumerate(FORMATS.values()):
        a, b, new = (
            inputs.numbers(*shape, at=slot).astype(dtype) for shape in ((5, _INPUTS), (_OUTPUTS, 5), (half, _INPUTS))
        )
        product, vector = LowRank(a, b, 0.3, inputs.numbers(_OUTPUTS, at=9)), inputs.numbers(_OUTPUTS, at=slot)
        alone = Change(product, Replacement(new, rows), vector, vector[::-1].copy())  # the only one of its rows
        kernels.install(site, slot, kernels.adapted((Change(product), alone if slot == 2 else Change(product))))
        factors = (None, None) if slot < 2 else (inputs.numbers(_INPUTS, at=4), np.zeros(_INPUTS, np.float32))
        embedded = Change(LowRank(b, a.T.copy(), 0.7), Replacement(new, rows), *factors)
        kernels.install(table, slot, kernels.adapted((embedded,)))
    kernels.begin(_adapted_tables(len(x)))
    results = [*kernels.adapt(x, (y, y), site), kernels.adapt_embedding(x, table, 2.5)]
    for activation in _ACTIVATIONS:
        results += [kernels.activate(y, activation), kernels.gate(y, z[::-1].copy(), activation)]
    return [*results, kernels.scale_logits(y, 0.5), kernels.scale_logits(y, 2.0, 3.0)]


def _grouped_adapters(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Change products of heads, and of the experts of rows."""
    x, y, scores = (inputs.numbers(13, columns, at=columns) for columns in (96, 192, 4))
    heads = AdapterSite(SiteKind.HEADS, ("heads",), ((192, 32),), 3)
    experts = AdapterSite(SiteKind.EXPERTS, ("gate", "up", "down"), ((128, 96), (128, 96), (384, 32)), 4)
    sizes = ((3, 2, 32), (3, 64, 2)), ((4, 3, 96), (4, 32, 3)), ((4, 3, 32), (4, 96, 3))
    for slot, dtype in enumerate(FORMATS.values()):
        by_head, inner, outer = (
            LowRank(inputs.numbers(*a, at=slot).astype(dtype), inputs.numbers(*b, at=3).astype(dtype), 0.4)
            for a, b in sizes
        )
        kernels.install(heads, slot, kernels.adapted((Change(by_head),)))
        kernels.install(experts, slot, kernels.adapted((Change(inner), None, Change(outer))))
    kernels.begin(_adapted_tables(len(x)))
    matrices = (DenseWeight(inputs.numbers(*size, at=at)) for at, size in enumerate(experts.shapes))
    gate, up, down = map(kernels.weight, matrices)
    changed = kernels.experts(x, scores, Routing(4, 2), gate, up, down, _ACTIVATIONS[0], site=experts)
    return [*kernels.adapt(x, (y,), heads), changed]


def _replaced_norms(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Norm rows, and the heads of queries and keys, by the weights of adapters."""
    x, head = inputs.rows(_INPUTS), kernels.vector(inputs.numbers(40, at=5))
    whole = AdapterSite(SiteKind.NORM, ("norm",), ((_INPUTS, 1),))
    heads = AdapterSite(SiteKind.NORM, ("q", "k"), ((40, 1),) * 2)
    for slot in range(3):
        new = Change(None, Replacement(inputs.numbers(_INPUTS, 1, at=slot)), bias=inputs.numbers(_INPUTS, at=9))
        of_q, of_k = (Change(replaced=Replacement(inputs.numbers(40, 1, at=slot + at))) for at in (21, 83))
        kernels.install(whole, slot, kernels.adapted((new,)))
        kernels.install(heads, slot, kernels.adapted((of_q, None if slot == 1 else of_k)))
    kernels.begin(_adapted_tables(len(x)))
    weight, q, k = kernels.vector(x[0]), inputs.numbers(len(x), 240, at=1), inputs.numbers(len(x), 80, at=2)
    results = [kernels.norm(x, weight, _EPS, site=whole), *kernels.add_norm(x, x, weight, _EPS, None, True, site=whole)]
    results.append(kernels.rope_store(q, k, k, _SHAPE, None, head, head, _EPS, site=heads))
    return [*results, kernels.read_page(KV_FORMATS[0], 0)]


def _adapted_tables(count: int) -> StepTables:
    """Return tables of a step in which the first two adapters share a row, and the last row has none."""
    parts = (0, 1.0, range(5)), (1, 0.6, range(4, 9)), (2, -1.0, range(9, count - 1))
    none = np.array([], np.int32)
    adapters = tuple(AdapterRows(slot, scale, np.array(rows, np.int32), none) for slot, scale, rows in parts)
    return known_tables([(0, count)], np.arange(count, dtype=np.int32) * 5 % _OUTPUTS)._replace(adapters=adapters)


def _norms(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    x = inputs.rows(_INPUTS)
    weight = kernels.vector(inputs.numbers(_INPUTS, at=5))
    return [kernels.norm(x, weight, _EPS), *kernels.add_norm(x, inputs.rows(_INPUTS)[::-1].copy(), weight, 1e-5)]


def _centred_norms(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    x, y = inputs.rows(_INPUTS), inputs.rows(_INPUTS)[::-1].copy()
    weight, bias = (kernels.vector(inputs.numbers(_INPUTS, at=at)) for at in (5, 6))
    gate = 20 * inputs.numbers(len(x), 1, at=8)
    table = kernels.weight(DenseWeight(inputs.numbers(_OUTPUTS, _INPUTS)))
    kernels.begin(known_tables([(0, 3)], token_ids=np.array([0, 69, 31], np.int32)))
    return [
        kernels.embed(table, 6.1),
        kernels.norm(x, weight, _EPS, bias),
        *kernels.add_norm(x, y, weight, _EPS, bias, True, 0.22),
        kernels.add(x, y, 0.22, 0.3),
        kernels.multiply(x, y),
        kernels.add(x, y, gate=gate),
    ]


def _rotation(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Rotate heads with norms, at frequencies of every kind of rope and at steep ones."""
    results: list[Answer] = []
    q_norm, k_norm = (kernels.vector(1 + inputs.numbers(40, at=at)) for at in (21, 83))
    for parameters in _ROPES:
        rope = rope_spec(
            FamilyConfig({"max_position_embeddings": 256, "rope_theta": 10000.0, "rope_scaling": parameters}, 200), 40
        )
        results.append(np.array([*rope.frequencies, rope.scaling], np.float64))
    steep = tuple(map(float, np.ldexp(1.0, np.arange(20)) * 1.1))
    table = kernels.rope_table(steep, 1.25, _TOKENS)
    kernels.begin(known_tables([(0, _TOKENS)]))
    q, k = inputs.numbers(_TOKENS, 240, at=1), inputs.numbers(_TOKENS, 80, at=2)
    results.append(kernels.rope_store(q, k, k, _SHAPE, table, q_norm, k_norm, _EPS))
    return [*results, *(kernels.host(part)[:_TOKENS] for part in table), kernels.read_page(KV_FORMATS[0], 0)]


def _places(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Rotate heads by three numbers of each row, and add numbers to given rows."""
    x, axes = inputs.numbers(_TOKENS, 240, at=6), (0, 1, 2, 0, 2)
    rows = np.arange(_TOKENS, dtype=np.int32)
    places = np.stack([7 * rows % _TOKENS, rows, _TOKENS - 1 - rows], axis=1).astype(np.int32)
    given = GivenRows(rows[3:7], inputs.numbers(4, 240, at=8), inputs.numbers(4, 500, at=2))
    rope = kernels.rope_table((1.0, 0.5, 0.1, 0.03, 0.01), 1.0, _TOKENS)
    kernels.begin(known_tables([(0, _TOKENS)])._replace(places=places, given=given))
    found = [kernels.rotate(x, 6, rope, axes), kernels.add_given(2 * x, 260)]
    found.append(kernels.rope_store(3 * x, None, None, _SHAPE, rope, None, None, _EPS, axes=axes))
    k, v = x[:, :80].copy(), x[:, 80:160].copy()
    found.append(kernels.rope_store(x, k, v, _SHAPE, rope, None, None, _EPS, axes=axes))
    return [*found, kernels.read_page(KV_FORMATS[0], 0)]


def _selection(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Choose rows, find the most likely token of each row, and rows that are not finite."""
    x = inputs.rows(_INPUTS)
    x[4, 9], x[5, 11] = np.nan, np.inf
    kernels.begin(known_tables([(0, 3), (5, 2), (0, 8)], logit_rows=[0, 5, 12], hidden_rows=[1, 2]))
    chosen = kernels.gather(x)
    return [kernels.join(chosen, (0, _INPUTS)), kernels.gather_hidden(x), kernels.best(x), kernels.finite(x)]


def _sampling(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    sampler, logits = sampler_of(kernels), 6 * inputs.numbers(4, 1500, at=17)
    rules: tuple[dict[str, Any], ...] = ({}, {"top_k": 40}, {"top_p": 0.8}, {"min_p": 0.02})
    rows = [Row(Sampling(SamplingParams(temperature=0.7, **rule), 2**40 + 5, 3, [1, 2, 3])) for rule in rules]
    chosen = sampler.choose([SamplerInput(*each, row) for each, row in zip(_with_best(logits), rows, strict=True)])
    reports = sampler.logprobs([LogprobsQuery(row, 7 * i, 5) for i, row in enumerate(logits)])
    flat = [number for each in reports for pair in ((each.rank, each.logprob), *each.top) for number in pair]
    return [np.array(chosen, np.int64), np.array(flat, np.float64)]


def _checksums(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    return [kernels.page_sums()(inputs.numbers(1 << 12).view(np.uint8)[:-3])]


def _with_best(logits: F32) -> list[tuple[F32, int]]:
    return [(row, int(np.argmax(row))) for row in logits]


# ---- Operations of recurrent layers: two steps of two sequences, the first of them with drafts ----

_TAPS: Final = 3
_CHANNELS: Final = 70  # four vectors of 16 and a part
_STATE_SHAPE: Final = DeltaShape(group=1, layer=0, num_heads=4, num_key_heads=2, key_dim=41, value_dim=40)

STATES: Final = StatePool(
    num_slots=4,
    shapes=(
        StateShape((_TAPS - 1) * _CHANNELS, _CHANNELS),
        StateShape(_STATE_SHAPE.state_numbers, _STATE_SHAPE.input_columns + 2 * _STATE_SHAPE.num_heads),
    ),
    kept_rows=2,
)

_FIRST: Final = ((0, 4), (0, 9)), StateTables(*np.array([(-1, -1), (0, 1), (0, 0), (2, 0)], np.int32))
_SECOND: Final = ((3, 9), (9, 4)), StateTables(*np.array([(0, 1), (2, 3), (1, 0), (0, 0)], np.int32))
"""Spans, and slots: of the first sequence two rows are kept, of which one counts. The last rows of the second step are
tiny and huge; they are of the second sequence."""


def state_answers(kernels: Kernels, inputs: Inputs) -> list[Answer]:
    """Advance states, read one of them, norm heads and gate them, and activate by the gate's curve."""
    heads, columns = _STATE_SHAPE.num_heads, _STATE_SHAPE.input_columns
    weight, bias = (kernels.vector(inputs.numbers(size, at=size)) for size in (_TAPS * _CHANNELS, _CHANNELS))
    decay, shift = kernels.vector(-1 - inputs.numbers(heads, at=5)), kernels.vector(3 * inputs.numbers(heads, at=9))
    results: list[Answer] = []
    for spans, states in (_FIRST, _SECOND):
        kernels.begin(known_tables(spans)._replace(states=states))
        x, z = inputs.rows(_CHANNELS), inputs.rows(columns)
        a, b = 8 * inputs.numbers(len(z), heads, at=31), 8 * inputs.numbers(len(z), heads, at=61)
        results.append(kernels.short_conv(x, weight, (0, 0), bias, SILU))
        results.append(kernels.delta_rule(z, a, b, decay, shift, _STATE_SHAPE))
    y, gate = inputs.rows(3 * 40), inputs.rows(3 * 40)[::-1].copy()
    norm = kernels.vector(inputs.numbers(40, at=17))
    results += [kernels.read_slot(2), kernels.gated_norm(y, gate, norm, 1e-6, 3), kernels.gate(y, gate, SIGMOID)]
    return [*results, kernels.gated_norm(y, gate, norm, 1e-5, 3, SIGMOID), kernels.activate(y, SIGMOID)]
