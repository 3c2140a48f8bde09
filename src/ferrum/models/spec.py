"""Specification of a model as data: a list of layers, built from `config.json` by the function of a family.

A pattern (sliding in some layers, full attention in others) is a list of layers, not a flag. Parts hold all their
parameters; later code does not read the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated feed-forward: down(silu(gate x) * (up x))."""

    intermediate_size: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Residual block: norm, attention, add; norm, feed-forward, add. New kinds of part become union members."""

    attention: AttentionSpec
    mlp: MlpSpec


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
