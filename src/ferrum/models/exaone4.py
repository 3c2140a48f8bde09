"""EXAONE 4 (LG AI Research 2025)."""

from __future__ import annotations

from ferrum.models.attention_spec import QkNorm
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.llama import SLIDING, attention_of, decoder_of, heads_of, mlp_of, norms_of, sliding_but_every
from ferrum.models.rope import rope_spec
from ferrum.models.spec import BlockSpec, DecoderSpec, post_norm


@FAMILIES.register("Exaone4ForCausalLM")
def exaone4(config: FamilyConfig) -> DecoderSpec:
    """Return norms after the parts, norms of heads, and with windows a rope in sliding layers only."""
    heads = heads_of(config)
    off = config.values.get("sliding_window", 4096) is None
    period = 1 if off else config.integer("sliding_window_pattern", 4)
    kinds = sliding_but_every(config, period)
    rope = rope_spec(config, heads.head_dim)

    def layer(kind: str) -> BlockSpec:
        slides = kind == SLIDING and not off
        attention = attention_of(
            heads,
            rope=rope if slides or off else None,
            window=config.integer("sliding_window", 4096) if slides else None,
            qk_norm=QkNorm(),
        )
        return post_norm(attention, mlp_of(config))

    return decoder_of("exaone4", config, map(layer, kinds), norms=norms_of(config, default=1e-5))
