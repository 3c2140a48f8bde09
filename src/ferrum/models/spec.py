"""Specification of a model as data: a list of layers, built from `config.json` by the function of a family.

A pattern (sliding in some layers, full attention in others) is a list of layers, not a flag. Parts hold all their
parameters; later code does not read the configuration. A new kind of part or layer is another class with `build`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.kv_shape import KvShape
from ferrum.kernels.interface import AttentionShape
from ferrum.models.builder import Builder, LayerSpec, PartSpec
from ferrum.nn.attention import Attention
from ferrum.nn.block import PreNormBlock
from ferrum.nn.mlp import GatedMlp


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021): the angle of pair i at position p is p * frequencies[i].

    Attributes:
        frequencies: one per rotated pair, in radians per position, with rope scaling applied.
        scaling: factor of cos and sin (the attention factor of YaRN, else 1).
    """

    frequencies: tuple[float, ...]
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Softmax attention: MHA, GQA or MQA by the number of KV heads.

    Attributes:
        window: positions that a query sees, including its position; None: all.
        qk_norm: RMSNorm over each head of q and k before the rotation (Qwen3).
        bias: q, k and v have biases (Qwen2).
        output_bias: the output projection has a bias.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    window: int | None = None
    qk_norm: bool = False
    bias: bool = False
    output_bias: bool = False

    def stored(self) -> KvShape:
        """Return what a token stores in the KV pool."""
        return KvShape(self.num_kv_heads, self.head_dim, self.head_dim, self.window)

    def build(self, make: Builder) -> Attention:
        """Return the part with its parameters."""
        dim, rope, slot = self.head_dim, self.rope, make.slot(self)
        outputs, stored = self.num_heads * dim, self.num_kv_heads * dim
        sizes = (outputs, stored, stored)
        return Attention(
            qkv=make.linear(("q_proj", "k_proj", "v_proj"), sizes, make.hidden_size, bias=self.bias),
            output=make.linear(("o_proj",), (make.hidden_size,), outputs, bias=self.output_bias),
            shape=AttentionShape(*slot, self.num_heads, self.num_kv_heads, dim, dim**-0.5, self.window),
            rope=None if rope is None else make.rope(rope.frequencies, rope.scaling),
            q_norm=make.vector("q_norm.weight", dim) if self.qk_norm else None,
            k_norm=make.vector("k_norm.weight", dim) if self.qk_norm else None,
            eps=make.norm_eps,
        )


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated feed-forward: down(silu(gate x) * (up x))."""

    intermediate_size: int

    def build(self, make: Builder) -> GatedMlp:
        """Return the part with its parameters."""
        hidden, inner = make.hidden_size, self.intermediate_size
        return GatedMlp(
            gate=make.matrix("gate_proj.weight", (inner, hidden)),
            up=make.matrix("up_proj.weight", (inner, hidden)),
            down=make.linear(("down_proj",), (hidden,), inner),
        )


@dataclass(frozen=True, slots=True)
class PreNormSpec:
    """Residual layer: norm, attention, add; norm, feed-forward, add."""

    attention: PartSpec
    mlp: PartSpec

    def build(self, make: Builder) -> PreNormBlock:
        """Return the layer with its parameters."""
        return PreNormBlock(
            attention_norm=make.norm("input_layernorm.weight"),
            attention=self.attention.build(make.under("self_attn")),
            mlp_norm=make.norm("post_attention_layernorm.weight"),
            mlp=self.mlp.build(make.under("mlp")),
        )


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only model.

    Attributes:
        family: name of the architecture, for display only.
        max_sequence_length: context of the checkpoint after rope scaling.
        tied_head: the head is the embedding.
        norm_eps: of every RMSNorm.
        ignored_names: patterns of checkpoint tensors that the model does not use.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_sequence_length: int
    norm_eps: float
    tied_head: bool
    layers: tuple[LayerSpec, ...]
    ignored_names: tuple[str, ...] = ()
