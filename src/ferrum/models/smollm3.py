"""SmolLM3 (Hugging Face 2025)."""

from __future__ import annotations

from ferrum.core.errors import CheckpointError
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, GgufArchitecture
from ferrum.models.llama import FULL, SLIDING, attention_of, decoder_of, heads_of, layer_types, mlp_of, used_window
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, pre_norm

ARCHITECTURES["smollm3"] = GgufArchitecture("SmolLM3ForCausalLM", "smollm3", permuted=True)


@FAMILIES.register("SmolLM3ForCausalLM")
def smollm3(config: FamilyConfig) -> DecoderSpec:
    """Return Llama without a rope in every fourth layer."""
    heads, bias = heads_of(config), config.flag("attention_bias")
    rope, mlp = rope_spec(config, heads.head_dim), mlp_of(config, bias=config.flag("mlp_bias"))
    turned, window = rope_layers(config), used_window(config)
    kinds = layer_types(config, (FULL if each or not window else SLIDING for each in turned))
    parts = [
        attention_of(
            heads,
            rope=rope if each else None,
            window=window if kind == SLIDING else None,
            bias=bias,
            output_bias=bias,
        )
        for each, kind in zip(turned, kinds, strict=True)
    ]
    return decoder_of("smollm3", config, (pre_norm(part, mlp) for part in parts))


def rope_layers(config: FamilyConfig) -> list[bool]:
    """Return which layers have a rope: by `no_rope_layers`, whose ones have it, or all but every fourth."""
    count, interval = config.num_layers(), config.integer("no_rope_layer_interval")
    given = config.values.get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(count)]
    if not isinstance(given, list) or len(given) != count or any(each not in (0, 1) for each in given):
        raise CheckpointError(f"config.json: no_rope_layers must be {count} numbers 0 or 1, got {given!r}")
    return [bool(each) for each in given]
