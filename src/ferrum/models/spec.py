"""Specification of a model as data: a list of layers, built from `config.json` by the function of a family.

A pattern (sliding in some layers, full attention in others) is a list of layers, not a flag. Parts hold all their
parameters; later code does not read the configuration. A new kind of part or layer is another class with `build`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrum.kernels.op_attributes import SILU, Activation
from ferrum.models.builder import Builder, LayerSpec, NormSpec, PartSpec
from ferrum.models.tensor_names import View
from ferrum.nn.block import Block, Branch, GatedMlp, NormedPart, PlainMlp


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Feed-forward: down(activation(gate x) * (up x)), or without a gate down(activation(up x)).

    Attributes:
        gated: there is a gate.
        bias: all matrices have biases.
        fused: name of one projection to gate and up, or None.
    """

    intermediate_size: int
    activation: Activation = SILU
    gated: bool = True
    bias: bool = False
    fused: str | None = None

    def build(self, make: Builder) -> GatedMlp | PlainMlp:
        """Return the part with its parameters."""
        hidden, inner = make.hidden_size, self.intermediate_size
        join = make.cut("up_proj", inner)
        part = None if join is None else make.ranks.own(join)
        if not self.gated:
            up = make.linear(("up_proj",), (inner,), hidden, bias=self.bias, activation=self.activation)
            return PlainMlp(up, make.linear(("down_proj",), (hidden,), inner, bias=self.bias))

        def view(first: int) -> View | None:
            return None if self.fused is None else View((f"{self.fused}.weight",), slice(first, first + inner))

        return GatedMlp(
            gate=make.matrix("gate_proj.weight", (inner, hidden), view(0), part=part),
            up=make.matrix("up_proj.weight", (inner, hidden), view(inner), part=part),
            down=make.linear(("down_proj",), (hidden,), inner, bias=self.bias),
            activation=self.activation,
            gate_bias=make.vector("gate_proj.bias", inner, part=part) if self.bias else None,
            up_bias=make.vector("up_proj.bias", inner, part=part) if self.bias else None,
            join=join,
        )


@dataclass(frozen=True, slots=True)
class NormedSpec:
    """A part between norms, one of several in a branch.

    Attributes:
        name: of the part; empty: its parameters have the layer's prefix.
        norm, post_norm: names of the norms before and after it, or None.
    """

    name: str
    part: PartSpec
    norm: str | None
    post_norm: str | None

    def build(self, make: Builder) -> NormedPart:
        """Return the part with its parameters."""
        norm, last = (None if name is None else make.norm(name) for name in (self.norm, self.post_norm))
        return NormedPart(norm, self.part.build(make.under(self.name)), last)


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """What a layer adds to the residual stream at once: norm, sum of the parts, norm.

    Attributes:
        parts: by their names.
        norm, post_norm: names of the norms before and after the parts; None: there is none.
    """

    parts: tuple[tuple[str, PartSpec], ...]
    norm: str | None = None
    post_norm: str | None = None

    def build(self, make: Builder) -> Branch:
        """Return the branch with its parameters."""
        norm = None if self.norm is None else make.norm(self.norm)
        parts = tuple(part.build(make.under(name)) for name, part in self.parts)
        return Branch(norm, parts, None if self.post_norm is None else make.norm(self.post_norm))


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """A layer of branches, one after another.

    Attributes:
        scalar: name of the factor of the residual stream after the layer; None: there is none.
    """

    branches: tuple[BranchSpec, ...]
    scalar: str | None = None

    def build(self, make: Builder) -> Block:
        """Return the layer with its parameters."""
        branches = tuple(branch.build(make) for branch in self.branches)
        return Block(branches, 1.0 if self.scalar is None else make.number(self.scalar))

    def with_part(self, name: str, part: PartSpec) -> BlockSpec:
        """Return the layer with another part of that name."""
        branches = tuple(
            replace(each, parts=tuple((own, part if own == name else old) for own, old in each.parts))
            for each in self.branches
        )
        return replace(self, branches=branches)

    def part(self, name: str) -> PartSpec:
        """Return the part of that name. Raises KeyError."""
        return dict(each for branch in self.branches for each in branch.parts)[name]


def pre_norm(attention: PartSpec, mlp: PartSpec) -> BlockSpec:
    """Return a layer with a norm before each part."""
    return BlockSpec(
        (
            BranchSpec((("self_attn", attention),), "input_layernorm"),
            BranchSpec((("mlp", mlp),), "post_attention_layernorm"),
        )
    )


def post_norm(attention: PartSpec, mlp: PartSpec) -> BlockSpec:
    """Return a layer with a norm after each part."""
    return BlockSpec(
        (
            BranchSpec((("self_attn", attention),), None, "post_attention_layernorm"),
            BranchSpec((("mlp", mlp),), None, "post_feedforward_layernorm"),
        )
    )


def sandwich(attention: PartSpec, mlp: PartSpec) -> BlockSpec:
    """Return a layer with a norm before and after each part."""
    return BlockSpec(
        (
            BranchSpec((("self_attn", attention),), "input_layernorm", "post_attention_layernorm"),
            BranchSpec((("mlp", mlp),), "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        )
    )


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only model.

    Attributes:
        family: name of the architecture, for display only.
        max_sequence_length: context of the checkpoint after rope scaling.
        tied_head: the head is the embedding.
        norms: of the whole model.
        embedding_scale: factor of embeddings.
        logit_scale, softcap: of logits, see `Operations.head`.
        renames: patterns of parameters' names, and what a checkpoint calls the tensors instead.
        ignored_names: patterns of checkpoint tensors that the model does not use.
        deep_features: first layers after which features of images are added to their rows.
        rotates_by_grid: tokens of images are rotated by rows and columns.
        given_token: the token whose per-layer embeddings the rows of images get; None: they have none.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_sequence_length: int
    norms: NormSpec
    tied_head: bool
    layers: tuple[LayerSpec, ...]
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None
    renames: tuple[tuple[str, str], ...] = ()
    ignored_names: tuple[str, ...] = ()
    deep_features: int = 0
    rotates_by_grid: bool = False
    given_token: int | None = None
