"""MiniMax-M2 (MiniMax 2025)."""

from __future__ import annotations

from typing import Any, Final

from ferrum.core.errors import Unsupported
from ferrum.kernels.op_attributes import Routing
from ferrum.models.attention_spec import QkNorm
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, COUNTED, INNER, LOCAL, SIGMOID, GgufArchitecture
from ferrum.models.llama import activation_of, attention_of, decoder_of, heads_of
from ferrum.models.mistral import MIXTRAL_NAMES
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, pre_norm

_ONLY: Final[dict[str, Any]] = {
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "shared_intermediate_size": 0,
}
"""The values that fields of released files may have."""

ARCHITECTURES["minimax-m2"] = GgufArchitecture(
    "MiniMaxM2ForCausalLM",
    "minimax_m2",
    keys={**LOCAL, INNER: "intermediate_size"},
    required=(*COUNTED, INNER),
    partial="rotary_dim",
    gating=SIGMOID,
)


@FAMILIES.register("MiniMaxM2ForCausalLM")
def minimax_m2(config: FamilyConfig) -> DecoderSpec:
    """Return sigmoid routing with a selection bias, norms of all heads at once, and partial rotation."""
    for name, only in _ONLY.items():
        config.require(name, only, only)
    if any(kind != 1 for kind in config.integers("attn_type_list") or ()):
        raise Unsupported(
            "config.json: attn_type_list with other kinds than 1", "only softmax attention is implemented"
        )
    heads = heads_of(config)
    if "rotary_dim" in config.values and "partial_rotary_factor" not in config.values:  # as released files spell it
        config = config.with_values(partial_rotary_factor=config.integer("rotary_dim") / heads.head_dim)
    rope = rope_spec(config, heads.head_dim, partial=True)
    attention = attention_of(heads, rope=rope, qk_norm=QkNorm(whole=True))
    experts = ExpertsSpec(
        Routing(
            config.integer("num_local_experts"),
            config.integer("num_experts_per_tok"),
            "sigmoid",
            renormalise=True,
        ),
        config.integer("intermediate_size"),
        activation_of(config),
        selection_bias="e_score_correction_bias",
    )
    layers = [pre_norm(attention, experts)] * config.num_layers()
    return decoder_of("minimax-m2", config, layers, renames=MIXTRAL_NAMES)
