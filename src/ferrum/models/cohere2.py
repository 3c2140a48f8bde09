"""Cohere 2: Command R7B and Command A (Cohere 2025)."""

from __future__ import annotations

from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, WINDOW, GgufArchitecture
from ferrum.models.llama import SLIDING, attention_of, by_pattern, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.spec import BlockSpec, BranchSpec, DecoderSpec

ARCHITECTURES["cohere2"] = GgufArchitecture(
    "Cohere2ForCausalLM",
    "cohere2",
    keys={**WINDOW, "attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
    required=("attention.sliding_window", "logit_scale"),
    period=4,
)


@FAMILIES.register("Cohere2ForCausalLM")
def cohere2(config: FamilyConfig) -> DecoderSpec:
    """Return parallel parts after one LayerNorm; only layers with a window have a rope."""
    config.require("use_qk_norm", False, False)
    for name in ("use_parallel_block", "use_gated_activation", "rotary_pct"):
        config.require(name, 1, 1)
    heads, bias = heads_of(config), config.flag("attention_bias")
    kinds = by_pattern(config)
    window, rope = config.optional_integer("sliding_window"), rope_spec(config, heads.head_dim, interleaved=True)

    def layer(kind: str) -> BlockSpec:
        placed = {"rope": rope, "window": window} if kind == SLIDING else {"rope": None}
        attention = attention_of(heads, bias=bias, output_bias=bias, **placed)
        return BlockSpec((BranchSpec((("self_attn", attention), ("mlp", mlp_of(config))), "input_layernorm"),))

    return decoder_of(
        "cohere2",
        config,
        map(layer, kinds),
        norms=norms_of(config, "layer_norm_eps", centred=True),
        logit_scale=config.number("logit_scale", zero=True),
    )
