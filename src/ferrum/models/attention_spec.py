"""Specification of softmax attention as data."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.kv_shape import KvShape
from ferrum.kernels.op_attributes import AttentionShape
from ferrum.kernels.operations import Array
from ferrum.models.builder import Builder, Place
from ferrum.models.rank_cuts import HeadCut, cut_heads
from ferrum.models.tensor_names import Runs
from ferrum.nn.attention import Attention
from ferrum.nn.linear import Linear, Norm


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021): the angle of pair i at position p is p * frequencies[i].

    Attributes:
        frequencies: one per rotated pair, in radians per position, with rope scaling applied. Fewer than half of the
            head's numbers leave the others as they are.
        scaling: factor of cos and sin (the attention factor of YaRN, else 1).
        interleaved: a checkpoint's pairs are adjacent numbers. Their rows are put into halves at load, which changes no
            score.
        axes: for each pair, which of three numbers of a token turns it: time, row or column; none: its position.
    """

    frequencies: tuple[float, ...]
    scaling: float = 1.0
    interleaved: bool = False
    axes: tuple[int, ...] = ()

    def rows(self, heads: int, head_dim: int, *, rotated: int | None = None) -> Runs:
        """Return the rows of heads, or of their last `rotated` numbers, in the order of halves."""
        count = head_dim if rotated is None else rotated
        pairs = len(self.frequencies) if self.interleaved else 0
        return Runs(heads, head_dim, head_dim - count, count, pairs=pairs)


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Norms of queries and keys.

    Attributes:
        whole: over all heads at once, else over each.
        last: after the rotation, else before.
        weight: whether they have weights.
    """

    whole: bool = False
    last: bool = False
    weight: bool = True


@dataclass(frozen=True, slots=True)
class Temperature:
    """A factor of queries at position p: 1 + scale x log(1 + floor((p + shift) / period))."""

    scale: float
    period: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Softmax attention: MHA, GQA or MQA by the number of KV heads.

    Attributes:
        window: positions that a query sees, including its position; None: all.
        qk_norm: norms of q and k, or None.
        bias: q, k and v have biases.
        output_bias: the output projection has a bias.
        scale: factor of q . k; None: head_dim^-0.5.
        softcap, chunk, causal: see `AttentionShape`.
        sinks: each head has a logit in its softmax.
        v_norm: each head of v is normed, without a weight.
        keys_as_values: values are the keys before their norm.
        reuses: the part reads what the last one of this shape has stored, and stores nothing.
        value_dim: width of a value; None: head_dim.
        temperature: of queries, or None.
        fused: name of one projection to q, k and v, or None.
        gated: the projection to q has a gate of each number of the result, too, after the query of each head.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    window: int | None = None
    qk_norm: QkNorm | None = None
    bias: bool = False
    output_bias: bool = False
    scale: float | None = None
    softcap: float | None = None
    chunk: int | None = None
    causal: bool = False
    sinks: bool = False
    v_norm: bool = False
    keys_as_values: bool = False
    reuses: bool = False
    value_dim: int | None = None
    temperature: Temperature | None = None
    fused: str | None = None
    gated: bool = False

    @property
    def value_width(self) -> int:
        """Width of a value."""
        return self.value_dim or self.head_dim

    def stored(self) -> KvShape:
        """Return what a token stores in the KV pool."""
        return KvShape(self.num_kv_heads, self.head_dim, self.value_width, self.window or self.chunk)

    def build(self, make: Builder) -> Attention:
        """Return the part with its parameters."""
        dim, rope, norm = self.head_dim, self.rope, self.qk_norm
        cut = self._cut(make)
        slot = make.slot_before(self.stored()) if self.reuses else make.slot(self, () if cut is None else cut.stored)
        scale = dim**-0.5 if self.scale is None else self.scale
        queries, stored = self._heads(make, cut)
        heads = queries.stop - queries.start, stored.stop - stored.start
        by_head = norm is not None and not norm.whole
        return Attention(
            inputs=self._inputs(make, None if cut is None else (queries, stored)),
            output=make.linear(
                ("o_proj",), (make.hidden_size,), self.num_heads * self.value_width, bias=self.output_bias
            ),
            shape=AttentionShape(
                *slot, *heads, dim, scale, self.window, self.value_dim, self.softcap, self.chunk, self.causal
            ),
            rope=None if rope is None else make.rope(rope.frequencies, rope.scaling),
            whole_norms=self._whole_norms(make) if norm is not None and norm.whole else None,
            q_norm=self._head_norm(make, "q_norm") if by_head else None,
            k_norm=self._head_norm(make, "k_norm") if by_head and not self.reuses else None,
            v_norm=make.ones(self.value_width) if self.v_norm and not self.reuses else None,
            norm_last=norm is not None and norm.last,
            temperature=self._temperature(make),
            sinks=self._sinks(make, cut, queries),
            eps=make.norms.eps,
            gated=self.gated,
            join=None if cut is None else tuple(head * self.value_width for head in cut.queries),
            axes=() if rope is None else rope.axes,
        )

    def _cut(self, make: Builder) -> HeadCut | None:
        """Return how ranks share the heads; None if each has all, as a norm over all heads at once needs."""
        if make.ranks.count == 1 or (self.qk_norm is not None and self.qk_norm.whole):
            return None
        return cut_heads(make.ranks, make.prefix, self.num_heads, self.num_kv_heads)

    def _heads(self, make: Builder, cut: HeadCut | None) -> tuple[slice, slice]:
        """Return the query heads and the KV heads of this rank."""
        if cut is None:
            return slice(0, self.num_heads), slice(0, self.num_kv_heads)
        return make.ranks.own(cut.queries), slice(*cut.stored[make.ranks.rank])

    def _sinks(self, make: Builder, cut: HeadCut | None, queries: slice) -> Array | None:
        if not self.sinks:
            return None
        return make.vector("sinks", self.num_heads, part=None if cut is None else queries)

    def _temperature(self, make: Builder) -> Array | None:
        given = self.temperature
        if given is None:
            return None
        return make.temperature(given.scale, given.period, given.shift)

    def _inputs(self, make: Builder, own: tuple[slice, slice] | None) -> Linear:
        """Return the projections, of the own query and KV heads or of all."""
        sizes = {
            "q_proj": self.num_heads * self.head_dim,
            "k_proj": self.num_kv_heads * self.head_dim,
            "v_proj": self.num_kv_heads * self.value_width,
        }
        names = ("q_proj",) if self.reuses else ("q_proj", "k_proj") if self.keys_as_values else tuple(sizes)
        places, begin = {}, 0
        turned = self.rope if self.rope is not None and self.rope.interleaved else None
        for name, heads in zip(names, (self.num_heads, self.num_kv_heads, None), strict=False):
            if self.fused is not None:
                places[name] = Place(self.fused, slice(begin, begin + sizes[name]))
            elif turned is not None and heads is not None:
                places[f"{name}.halves"] = Place(name, turned.rows(heads, self.head_dim))
            begin += sizes[name]
        if self.gated:
            width, names = self.head_dim, ("q_proj.query", *names[1:], "q_proj.gate")
            for name, first in ((names[0], 0), (names[-1], width)):
                sizes[name] = self.num_heads * width
                places[name] = Place("q_proj", Runs(self.num_heads, 2 * width, first, width))
        named = tuple(f"{name}.halves" if f"{name}.halves" in places else name for name in names)
        counts = tuple(sizes[name] for name in names)
        parts = None if own is None else tuple(self._rows(name, *own) for name in names)
        return make.linear(named, counts, make.hidden_size, bias=self.bias, places=places, parts=parts)

    def _rows(self, name: str, queries: slice, stored: slice) -> slice:
        """Return the rows of heads in a projection."""
        heads = stored if name in ("k_proj", "v_proj") else queries
        width = self.value_width if name == "v_proj" else self.head_dim
        return slice(width * heads.start, width * heads.stop)

    def _whole_norms(self, make: Builder) -> tuple[Norm, Norm]:
        q, k = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return make.norm("q_norm", q), make.norm("k_norm", k)

    def _head_norm(self, make: Builder, name: str) -> Array:
        assert self.qk_norm is not None
        if not self.qk_norm.weight:
            return make.ones(self.head_dim)
        return make.norm_weight(f"{name}.weight", self.head_dim)
