"""gpt-oss (OpenAI 2025)."""

from __future__ import annotations

from ferrum.kernels.op_attributes import Activation, Routing
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec, Fused
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import (
    ARCHITECTURES,
    COUNTED,
    INNER,
    LOCAL,
    SOFTMAX_OF_CHOSEN,
    WINDOW,
    GgufArchitecture,
)
from ferrum.models.llama import SLIDING, attention_of, decoder_of, heads_of, norms_of, sliding_but_every
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, pre_norm

ARCHITECTURES["gpt-oss"] = GgufArchitecture(
    "GptOssForCausalLM",
    "gpt_oss",
    parts={"ffn_gate_inp": "mlp.router"},
    bare={"attn_sinks.weight": "self_attn.sinks"},
    keys={**WINDOW, **LOCAL, INNER: "intermediate_size"},
    required=(*COUNTED, INNER, "attention.sliding_window"),
    period=2,
    gating=SOFTMAX_OF_CHOSEN,
    fixed={"rope_parameters": {"rope_type": "default"}},  # files name a scaling if there is one
    rope_fixed={"truncate": False},
)


@FAMILIES.register("GptOssForCausalLM")
def gpt_oss(config: FamilyConfig) -> DecoderSpec:
    """Return attention with sinks, a window in every other layer, and experts with biases and limits."""
    config.require("hidden_act", "silu", "silu")
    heads, bias = heads_of(config), config.flag("attention_bias")
    kinds = sliding_but_every(config, 2)
    window, rope = config.optional_integer("sliding_window"), rope_spec(config, heads.head_dim)
    quantised = config.section("quantization_config") is not None
    experts = ExpertsSpec(
        Routing(config.integer("num_local_experts"), config.integer("num_experts_per_tok"), late=True),
        config.integer("intermediate_size"),
        Activation("silu", config.number("swiglu_alpha"), config.number("swiglu_limit")),
        router="router",
        router_bias=True,
        bias=True,
        fused=Fused(transposed=not quantised, interleaved=True),
    )
    layers = (
        pre_norm(
            attention_of(
                heads,
                rope=rope,
                window=window if kind == SLIDING else None,
                sinks=True,
                bias=bias,
                output_bias=bias,
            ),
            experts,
        )
        for kind in kinds
    )
    return decoder_of("gpt-oss", config, layers, norms=norms_of(config))
