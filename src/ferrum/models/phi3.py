"""Phi-3, 3.5, 4 and 4-mini (Abdin et al. 2024)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, WINDOW, GgufArchitecture, Values
from ferrum.models.llama import attention_of, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_section, rope_spec
from ferrum.models.spec import DecoderSpec, pre_norm


@FAMILIES.register("Phi3ForCausalLM")
def phi3(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with fused projections, partial rotation and longrope."""
    section, kind = rope_section(config)
    if kind == "yarn":  # as the first files spell it
        config = config.with_values(rope_scaling={**section.values, "rope_type": "longrope"})
    heads = heads_of(config)
    attention = attention_of(
        heads,
        rope=rope_spec(config, heads.head_dim, partial=True),
        window=config.optional_integer("sliding_window"),
        fused="qkv_proj",
    )
    layer = pre_norm(attention, mlp_of(config, fused="gate_up_proj"))
    return decoder_of("phi3", config, [layer] * config.num_layers(), norms=norms_of(config))


def _phi3_window(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the window of the first Phi-3 files, which lack it: llama.cpp knows their models by layers and context."""
    first = config["num_hidden_layers"] in (32, 40) and config["max_position_embeddings"] == 4096
    return {"sliding_window": 2047} if first and config.get("sliding_window") is None else {}


ARCHITECTURES["phi3"] = GgufArchitecture(
    "Phi3ForCausalLM",
    "phi3",
    parts={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    keys={**WINDOW, "rope.scaling.original_context_length": "original_max_position_embeddings"},
    partial="partial_rotary_factor",
    derive=_phi3_window,
)
