"""What a model is, as data: a tree of small parts, one per layer, built from `config.json` by a family's function.

A pattern (sliding here, full there) is a list of layers and not a flag. Whatever a part needs stands in it; nothing
reads the checkpoint's configuration after this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021), resolved: the angle of pair i at position p is p * frequencies[i].

    Attributes:
        frequencies: one per rotated pair, radians per position; scaling variants are already in them.
        scaling: multiplies cos and sin (YaRN's attention factor; 1 for the others).
    """

    frequencies: tuple[float, ...]
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Softmax attention over stored keys: MHA, GQA and MQA by the number of KV heads.

    Attributes:
        window: positions a query can see, its own included; None sees all.
        qk_norm: RMSNorm over each head of q and k before the rotation (Qwen3).
        bias: q, k and v carry biases (Qwen2).
        output_bias: the output projection carries one.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    window: int | None = None
    qk_norm: bool = False
    bias: bool = False
    output_bias: bool = False


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated feed-forward: down(silu(gate x) * (up x))."""

    intermediate_size: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One residual block: norm, attention, add; norm, feed-forward, add. Other kinds of part join as union members."""

    attention: AttentionSpec
    mlp: MlpSpec


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only model.

    Attributes:
        family: the architecture's name, for people; nothing decides by it.
        max_sequence_length: the context the checkpoint was made for, after rope scaling.
        tied_head: the head is the embedding.
        norm_eps: of every RMSNorm.
        ignored_names: patterns of tensors that a checkpoint may hold and the model does not use.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_sequence_length: int
    norm_eps: float
    tied_head: bool
    layers: tuple[LayerSpec, ...]
    ignored_names: tuple[str, ...] = ()
