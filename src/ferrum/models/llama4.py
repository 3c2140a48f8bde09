"""The text model of Llama 4 (Meta 2025)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from ferrum.kernels.op_attributes import Routing
from ferrum.models.attention_spec import AttentionSpec, QkNorm, Temperature
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec, Fused
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, BOTH, INNER, LOCAL, GgufArchitecture, Values, shared_names
from ferrum.models.llama import activation_of, attention_of, decoder_of, heads_of, layer_types, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.smollm3 import rope_layers
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm

_CHUNKED: Final = "chunked_attention"
_FULL: Final = "full_attention"


@FAMILIES.register("Llama4ForCausalLM")
def llama4(config: FamilyConfig) -> DecoderSpec:
    """Return chunked attention with a rope, full attention without one, and experts weighted at their inputs."""
    turned, sparse = rope_layers(config), _sparse_layers(config)
    chunk = config.optional_integer("attention_chunk_size")
    default = (_CHUNKED if each and chunk else _FULL for each in turned)
    kinds = layer_types(config, default, (_CHUNKED, _FULL))
    dense = mlp_of(config, intermediate_size=config.integer("intermediate_size_mlp"))
    experts = _experts(config)
    layers = [
        pre_norm(_attention(config, rope, chunk if kind == _CHUNKED else None), experts if i in sparse else dense)
        for i, (rope, kind) in enumerate(zip(turned, kinds, strict=True))
    ]
    renames = ((r"(layers\.\d+)\.mlp\.", r"\1.feed_forward."),)
    return decoder_of("llama4", config, layers, norms=norms_of(config), renames=renames)


def _sparse_layers(config: FamilyConfig) -> set[int]:
    """Return the layers that have experts."""
    given, count = config.integers("moe_layers"), config.num_layers()
    step = config.integer("interleave_moe_layer_step", minimum=0)
    if given is None:
        return set(range(step - 1, count, step)) if step else set()
    return set(given)


def _attention(config: FamilyConfig, turned: bool, chunk: int | None) -> AttentionSpec:
    heads, bias = heads_of(config), config.flag("attention_bias")
    if turned:
        rope = rope_spec(config, heads.head_dim, interleaved=True)
        norm = QkNorm(last=True, weight=False) if config.flag("use_qk_norm") else None
        return attention_of(heads, rope=rope, qk_norm=norm, chunk=chunk, bias=bias, output_bias=bias)
    temperature = None
    tuned, scale = config.values.get("attn_temperature_tuning"), config.optional_number("attn_scale")
    tuned = bool(tuned) if isinstance(tuned, int) else config.flag("attn_temperature_tuning")  # Meta's files have 4
    if tuned and scale is not None:
        temperature = Temperature(scale, config.integer("floor_scale"), shift=1)
    return attention_of(heads, rope=None, temperature=temperature, chunk=chunk, bias=bias, output_bias=bias)


def _experts(config: FamilyConfig) -> ExpertsSpec:
    count, chosen = config.integer("num_local_experts"), config.integer("num_experts_per_tok")
    inner, activation = config.integer("intermediate_size"), activation_of(config)
    return ExpertsSpec(
        Routing(count, chosen, "sigmoid", late=True, on_input=True),
        inner,
        activation,
        router="router",
        fused=Fused(transposed=True),
        shared=MlpSpec(inner, activation),
        shared_name="shared_expert",
    )


def _qk_norm(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return whether q and k have norms, which llama.cpp decides by the number of experts."""
    return {"use_qk_norm": config.get("num_local_experts") != 128}


ARCHITECTURES["llama4"] = GgufArchitecture(
    "Llama4ForCausalLM",
    "llama4_text",
    parts={"ffn_gate_inp": "mlp.router", **shared_names("shared_expert")},
    keys={
        **LOCAL,
        INNER: "intermediate_size",
        "feed_forward_length": "intermediate_size_mlp",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    required=(*BOTH, "interleave_moe_layer_step"),
    only={"attention.sliding_window": ()},
    derive=_qk_norm,
)
