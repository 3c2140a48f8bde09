"""Granite 3 and its mixture of experts (IBM 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ferrum.kernels.op_attributes import Routing
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec, Fused
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, COUNTED, LOCAL, GgufArchitecture
from ferrum.models.llama import activation_of, attention_of, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, pre_norm

_FACTORS: Final = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_ENTRY: Final = GgufArchitecture(
    "GraniteForCausalLM",
    "granite",
    permuted=True,
    keys=_FACTORS,
    required=tuple(_FACTORS),
    only={"rope.scaling.finetuned": (True,)},  # files turn the rope off with it
)
ARCHITECTURES["granite"] = _ENTRY
ARCHITECTURES["granitemoe"] = replace(
    _ENTRY,
    name="GraniteMoeForCausalLM",
    model_type="granitemoe",
    parts={"ffn_gate_inp": "mlp.router.layer"},
    keys={**_FACTORS, **LOCAL},
    required=(*_FACTORS, *COUNTED),
)


@FAMILIES.register("GraniteForCausalLM")
def granite(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with factors of embeddings, scores, parts and logits."""
    return _granite("granite", config, mlp_of(config, bias=config.flag("mlp_bias")))


@FAMILIES.register("GraniteMoeForCausalLM")
def granite_moe(config: FamilyConfig) -> DecoderSpec:
    """Return Granite with experts, weighted by a softmax over the chosen ones."""
    routing = Routing(config.integer("num_local_experts"), config.integer("num_experts_per_tok"), late=True)
    experts = ExpertsSpec(
        routing,
        config.integer("intermediate_size"),
        activation_of(config),
        router="router.layer",
        fused=Fused("input_linear.weight", "output_linear.weight"),
    )
    renames = ((r"(layers\.\d+)\.mlp\.", r"\1.block_sparse_moe."),)
    return _granite("granitemoe", config, experts, renames)


def _granite(
    family: str, config: FamilyConfig, mlp: PartSpec, renames: tuple[tuple[str, str], ...] = ()
) -> DecoderSpec:
    heads, bias = heads_of(config), config.flag("attention_bias")
    attention = attention_of(
        heads,
        rope=rope_spec(config, heads.head_dim),
        scale=config.number("attention_multiplier", zero=True),
        bias=bias,
        output_bias=bias,
    )
    return decoder_of(
        family,
        config,
        [pre_norm(attention, mlp)] * config.num_layers(),
        norms=norms_of(config, factor=config.number("residual_multiplier", zero=True)),
        embedding_scale=config.number("embedding_multiplier", zero=True),
        logit_scale=1 / config.number("logits_scaling"),
        renames=renames,
    )
