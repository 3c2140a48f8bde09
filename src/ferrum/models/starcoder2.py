"""StarCoder 2 (Lozhkov et al. 2024)."""

from __future__ import annotations

from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, GgufArchitecture
from ferrum.models.llama import attention_of, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, pre_norm

ARCHITECTURES["starcoder2"] = GgufArchitecture(
    "Starcoder2ForCausalLM",
    "starcoder2",
    keys={"attention.layer_norm_epsilon": "norm_epsilon"},
    fixed={"sliding_window": 4096},  # of all sizes; files do not say
    flags={"use_bias": "blk.0.attn_q.bias"},
)


@FAMILIES.register("Starcoder2ForCausalLM")
def starcoder2(config: FamilyConfig) -> DecoderSpec:
    """Return LayerNorms, biases everywhere and a feed-forward without a gate."""
    config.require("norm_type", "layer_norm", "layer_norm")
    config.require("mlp_type", "default", "default")
    heads, bias = heads_of(config), config.flag("use_bias")
    attention = attention_of(
        heads,
        rope=rope_spec(config, heads.head_dim),
        window=config.optional_integer("sliding_window"),
        bias=bias,
        output_bias=bias,
    )
    mlp = mlp_of(config, gated=False, bias=bias)
    return decoder_of(
        "starcoder2",
        config,
        [pre_norm(attention, mlp)] * config.num_layers(),
        norms=norms_of(config, "norm_epsilon", centred=True, bias=True),
        renames=((r"\.mlp\.up_proj\.", ".mlp.c_fc."), (r"\.mlp\.down_proj\.", ".mlp.c_proj.")),
    )
