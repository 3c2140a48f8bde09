"""The text model of Llama 4 (Meta 2025)."""

from __future__ import annotations

from typing import Final

from ferrum.core.errors import CheckpointError
from ferrum.kernels.op_attributes import Routing
from ferrum.models.attention_spec import AttentionSpec, QkNorm, Temperature
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec, Fused
from ferrum.models.families import FAMILIES
from ferrum.models.llama import activation_of, attention_of, decoder_of, heads_of, layer_types, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.smollm3 import rope_layers
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm

_CHUNKED: Final = "chunked_attention"
_FULL: Final = "full_attention"


@FAMILIES.register("Llama4ForCausalLM")
def llama4(config: FamilyConfig) -> DecoderSpec:
    """Return chunked attention with a rope, full attention without one, and experts weighted at their inputs."""
    config = config.with_defaults(max_position_embeddings=1 << 17, head_dim=128, rope_theta=500000.0)
    turned, sparse = rope_layers(config), _sparse_layers(config)
    chunk = None
    if config.values.get("attention_chunk_size", 8192) is not None:
        chunk = config.integer("attention_chunk_size", 8192)
    default = (_CHUNKED if each and chunk else _FULL for each in turned)
    kinds = layer_types(config, default, (_CHUNKED, _FULL))
    dense = mlp_of(config, intermediate_size=config.integer("intermediate_size_mlp", 16384))
    experts = _experts(config)
    layers = [
        pre_norm(_attention(config, rope, chunk if kind == _CHUNKED else None), experts if i in sparse else dense)
        for i, (rope, kind) in enumerate(zip(turned, kinds, strict=True))
    ]
    renames = ((r"(layers\.\d+)\.mlp\.", r"\1.feed_forward."),)
    return decoder_of("llama4", config, layers, norms=norms_of(config, default=1e-5), renames=renames)


def _sparse_layers(config: FamilyConfig) -> set[int]:
    """Return the layers that have experts."""
    given, count = config.values.get("moe_layers"), config.num_layers()
    step = config.integer("interleave_moe_layer_step", 1)
    if given is None:
        return set(range(step - 1, count, step))
    if not isinstance(given, list) or any(not isinstance(each, int) for each in given):
        raise CheckpointError(f"config.json: moe_layers must be numbers of layers, got {given!r}")
    return set(given)


def _attention(config: FamilyConfig, turned: bool, chunk: int | None) -> AttentionSpec:
    heads, bias = heads_of(config), config.flag("attention_bias", False)
    if turned:
        rope = rope_spec(config, heads.head_dim, interleaved=True)
        norm = QkNorm(last=True, weight=False) if config.flag("use_qk_norm", True) else None
        return attention_of(heads, rope=rope, qk_norm=norm, chunk=chunk, bias=bias, output_bias=bias)
    temperature = None
    if config.flag("attn_temperature_tuning", True):
        temperature = Temperature(config.number("attn_scale", 0.1), config.integer("floor_scale", 8192), shift=1)
    return attention_of(heads, rope=None, temperature=temperature, chunk=chunk, bias=bias, output_bias=bias)


def _experts(config: FamilyConfig) -> ExpertsSpec:
    count, chosen = config.integer("num_local_experts", 16), config.integer("num_experts_per_tok", 1)
    inner, activation = config.integer("intermediate_size", 8192), activation_of(config)
    return ExpertsSpec(
        Routing(count, chosen, "sigmoid", late=True, on_input=True),
        inner,
        activation,
        router="router",
        fused=Fused(transposed=True),
        shared=MlpSpec(inner, activation),
        shared_name="shared_expert",
    )
