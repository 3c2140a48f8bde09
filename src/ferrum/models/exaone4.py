"""EXAONE 4 (LG AI Research 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ferrum.models.attention_spec import QkNorm
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, VARIANTS, WINDOW, GgufArchitecture
from ferrum.models.llama import FULL, SLIDING, attention_of, by_pattern, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.spec import BlockSpec, DecoderSpec, post_norm

_ENTRY: Final = GgufArchitecture("Exaone4ForCausalLM", "exaone4", keys=WINDOW, fixed={"sliding_window": None}, period=4)
ARCHITECTURES["exaone4"] = _ENTRY
VARIANTS["exaone4"] = (
    lambda values, _: values.get("block_count") == 64,
    replace(_ENTRY, absent={"attention.sliding_window": 4096}),
)


@FAMILIES.register("Exaone4ForCausalLM")
def exaone4(config: FamilyConfig) -> DecoderSpec:
    """Return norms after the parts, norms of heads, and with windows a rope in sliding layers only."""
    heads = heads_of(config)
    window, rope = config.optional_integer("sliding_window"), rope_spec(config, heads.head_dim)
    kinds = [FULL] * config.num_layers() if window is None else by_pattern(config)

    def layer(kind: str) -> BlockSpec:
        slides = kind == SLIDING
        attention = attention_of(
            heads,
            rope=rope if slides or window is None else None,
            window=window if slides else None,
            qk_norm=QkNorm(),
        )
        return post_norm(attention, mlp_of(config))

    return decoder_of("exaone4", config, map(layer, kinds), norms=norms_of(config))
