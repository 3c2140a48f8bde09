"""OLMo 2 and 3 (OLMo Team 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from ferrum.models.attention_spec import QkNorm, RopeSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, VARIANTS, WINDOW, GgufArchitecture
from ferrum.models.llama import FULL, SLIDING, attention_of, decoder_of, heads_of, mlp_of, norms_of, sliding_but_every
from ferrum.models.rope import of_layers, rope_spec
from ferrum.models.spec import BlockSpec, DecoderSpec, post_norm

ARCHITECTURES["olmo2"] = GgufArchitecture("Olmo2ForCausalLM", "olmo2")
VARIANTS["olmo2"] = (
    lambda values, _: bool(values.get("attention.sliding_window")),
    GgufArchitecture("Olmo3ForCausalLM", "olmo3", keys=WINDOW, period=4),
)


@FAMILIES.register("Olmo2ForCausalLM")
def olmo2(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with norms after the parts only, and of all heads of q and k at once."""
    rope = rope_spec(config, heads_of(config).head_dim)
    return _olmo("olmo2", config, [FULL] * config.num_layers(), {FULL: rope})


@FAMILIES.register("Olmo3ForCausalLM")
def olmo3(config: FamilyConfig) -> DecoderSpec:
    """Return OLMo 2 with a window in three of four layers; only the others have a scaled rope."""
    kinds, dim = sliding_but_every(config, 4), heads_of(config).head_dim
    ropes = {kind: rope_spec(of_layers(config, kind), dim) for kind in (SLIDING, FULL)}
    return _olmo("olmo3", config, kinds, ropes, config.optional_integer("sliding_window"))


def _olmo(
    family: str, config: FamilyConfig, kinds: list[str], ropes: Mapping[str, RopeSpec], window: int | None = None
) -> DecoderSpec:
    heads, bias = heads_of(config), config.flag("attention_bias")

    def layer(kind: str) -> BlockSpec:
        own = window if kind == SLIDING else None
        norm = QkNorm(whole=True)
        attention = attention_of(heads, rope=ropes[kind], window=own, qk_norm=norm, bias=bias, output_bias=bias)
        return post_norm(attention, mlp_of(config))

    return decoder_of(family, config, map(layer, kinds), norms=norms_of(config))
