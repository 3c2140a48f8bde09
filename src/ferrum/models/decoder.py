"""The decoder of all model families: a DecoderSpec with its parameters, for any kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ferrum.kernels.interface import Array, AttentionShape, NetworkOutput, Operations, ParameterForms, Weight
from ferrum.models.spec import AttentionSpec, DecoderSpec, LayerSpec, RopeSpec
from ferrum.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD, ParameterSource
from ferrum.nn.attention import Attention
from ferrum.nn.linear import Linear
from ferrum.nn.mlp import GatedMlp
from ferrum.nn.norm import RmsNorm


@dataclass(frozen=True, slots=True)
class Block:
    """A residual layer with a norm before each part.

    residual --+--> norm -> attention --(+)--+--> norm -> mlp --> (added by the next norm)
               +------------------------^    +--------------------------^
    """

    attention_norm: RmsNorm
    attention: Attention
    mlp_norm: RmsNorm
    mlp: GatedMlp

    def __call__(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array]:
        """Map (residual, delta to add to it) to the same pair after this layer. All [R, H]."""
        if delta is None:
            x = self.attention_norm(kernels, residual)
        else:
            residual, x = self.attention_norm.add(kernels, residual, delta)
        residual, x = self.mlp_norm.add(kernels, residual, self.attention(kernels, x))
        return residual, self.mlp(kernels, x)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A `Network` of embedding, blocks, final norm and head. The kernels' step tables hold its inputs."""

    spec: DecoderSpec
    embedding: Weight
    blocks: tuple[Block, ...]
    final_norm: RmsNorm
    head: Weight

    def __call__(self, kernels: Operations) -> NetworkOutput:
        """Run one step."""
        residual, delta = kernels.embed(self.embedding), None  # [R, H]
        for block in self.blocks:
            residual, delta = block(kernels, residual, delta)
        _, x = self.final_norm.add(kernels, residual, delta)
        logits = kernels.head(kernels.gather(x), self.head)  # [G, V]
        return NetworkOutput(logits, kernels.best(logits), kernels.gather_hidden(x), kernels.finite(x))

    def weights(self) -> tuple[Weight, ...]:
        """Return every matrix once (a tied head is the embedding)."""
        found = [self.embedding, *((self.head,) if self.head is not self.embedding else ())]
        for block in self.blocks:
            found += [*block.attention.qkv.weights, *block.attention.output.weights]
            found += [block.mlp.gate, block.mlp.up, *block.mlp.down.weights]
        return tuple(found)


def build_decoder(
    spec: DecoderSpec, source: ParameterSource, kernels: ParameterForms, max_sequence_length: int
) -> Decoder:
    """Build a decoder with the parameters of a source.

    Args:
        spec: of the model.
        source: of its parameters.
        kernels: converts parameters to the backend's form.
        max_sequence_length: positions of the rope tables.
    """
    slots = pool_slots(spec)
    tables = {
        rope: kernels.rope_table(rope.frequencies, rope.scaling, max_sequence_length)
        for rope in {layer.attention.rope for layer in spec.layers}
        if rope is not None
    }
    build = _Builder(spec, source, kernels, tables)
    embedding = build.matrix(EMBEDDING, (spec.vocab_size, spec.hidden_size))
    blocks = tuple(build.block(i, layer, *slots[i]) for i, layer in enumerate(spec.layers))
    final_norm = build.norm(FINAL_NORM, spec.hidden_size)
    head = embedding if spec.tied_head else build.matrix(HEAD, (spec.vocab_size, spec.hidden_size))
    return Decoder(spec, embedding, blocks, final_norm, head)


def parameter_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the parameters that a checkpoint must have."""
    source = _Listing()
    build_decoder(spec, source, _Formless(), 0)
    return source.shapes


def pool_slots(spec: DecoderSpec) -> tuple[tuple[int, int], ...]:
    """Return (layer group, index within it) of each layer. Layers with equal KV shape and window share a group."""
    groups: dict[tuple[int, int, int | None], int] = {}
    counts: list[int] = []
    slots = []
    for layer in spec.layers:
        attention = layer.attention
        kind = (attention.num_kv_heads, attention.head_dim, attention.window)
        if kind not in groups:
            groups[kind] = len(counts)
            counts.append(0)
        group = groups[kind]
        slots.append((group, counts[group]))
        counts[group] += 1
    return tuple(slots)


@dataclass(frozen=True, slots=True)
class _Builder:
    spec: DecoderSpec
    source: ParameterSource
    kernels: ParameterForms
    ropes: dict[RopeSpec, Array]

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        return self.kernels.weight(self.source.matrix(name, shape))

    def vector(self, name: str, size: int) -> Array:
        return self.kernels.vector(self.source.vector(name, size))

    def norm(self, name: str, size: int) -> RmsNorm:
        return RmsNorm(self.vector(name, size), self.spec.norm_eps)

    def linear(self, prefix: str, names: tuple[str, ...], sizes: tuple[int, ...], inputs: int, *, bias: bool) -> Linear:
        parts = list(zip(names, sizes, strict=True))
        weights = [self.matrix(f"{prefix}.{name}.weight", (size, inputs)) for name, size in parts]
        biases = [self.vector(f"{prefix}.{name}.bias", size) for name, size in parts] if bias else None
        return Linear(weights, biases)

    def block(self, index: int, layer: LayerSpec, group: int, slot: int) -> Block:
        prefix, hidden = f"model.layers.{index}", self.spec.hidden_size
        inner = layer.mlp.intermediate_size
        return Block(
            attention_norm=self.norm(f"{prefix}.input_layernorm.weight", hidden),
            attention=self.attention(f"{prefix}.self_attn", layer.attention, group, slot),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm.weight", hidden),
            mlp=GatedMlp(
                gate=self.matrix(f"{prefix}.mlp.gate_proj.weight", (inner, hidden)),
                up=self.matrix(f"{prefix}.mlp.up_proj.weight", (inner, hidden)),
                down=self.linear(f"{prefix}.mlp", ("down_proj",), (hidden,), inner, bias=False),
            ),
        )

    def attention(self, prefix: str, spec: AttentionSpec, group: int, slot: int) -> Attention:
        hidden, dim = self.spec.hidden_size, spec.head_dim
        outputs, stored = spec.num_heads * dim, spec.num_kv_heads * dim
        return Attention(
            qkv=self.linear(prefix, ("q_proj", "k_proj", "v_proj"), (outputs, stored, stored), hidden, bias=spec.bias),
            output=self.linear(prefix, ("o_proj",), (hidden,), outputs, bias=spec.output_bias),
            shape=AttentionShape(group, slot, spec.num_heads, spec.num_kv_heads, dim, dim**-0.5, spec.window),
            rope=None if spec.rope is None else self.ropes[spec.rope],
            q_norm=self.vector(f"{prefix}.q_norm.weight", dim) if spec.qk_norm else None,
            k_norm=self.vector(f"{prefix}.k_norm.weight", dim) if spec.qk_norm else None,
            eps=self.spec.norm_eps,
        )


@dataclass(frozen=True, slots=True)
class _Listing:
    """A parameter source that records the requested shapes."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def matrix(self, name: str, shape: tuple[int, int]) -> Any:
        self.shapes[name] = shape

    def vector(self, name: str, size: int) -> Any:
        self.shapes[name] = (size,)


class _Formless:
    """A backend that converts nothing."""

    def weight(self, weight: Weight) -> Weight:
        return weight

    def vector(self, values: Array) -> Array:
        return values

    def rope_table(self, *_: object) -> Array:
        return None
