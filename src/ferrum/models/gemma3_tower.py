"""The tower of Gemma 3 (Gemma Team 2025): SigLIP, the mean of each block of patches, a norm and a projection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError
from ferrum.images.gemma3_images import BEGIN, SPACING, Gemma3Images
from ferrum.images.image_processor import ImageFamily
from ferrum.models.builder import NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.idefics_tower import patches_of, siglip
from ferrum.models.tower_spec import TOWERS, Encode, ProjectionSpec, TokenOf, TowerSpec, vision_config

_PROJECTOR: Final = "multi_modal_projector"


@TOWERS.register("Gemma3ForConditionalGeneration")
def gemma3_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return SigLIP, whose patches become `mm_tokens_per_image` rows of a square."""
    tokens = config.integer("mm_tokens_per_image", 256)
    rows = math.isqrt(tokens)
    patch, side = patches_of(config)
    merge, rest = divmod(side, rows)
    if rows**2 != tokens or rest:
        sides = f"must be the square of a divisor of {side}, the patches per side"
        raise CheckpointError(f"config.json: mm_tokens_per_image: {sides}, got {tokens}")

    def images(token_of: TokenOf, encode: Encode) -> ImageFamily:  # noqa: ARG001 - all tokens are special
        return Gemma3Images(processor, patch, side, merge, token_of)

    text = FamilyConfig(config.values["text_config"])
    eps = vision_config(config, {"layer_norm_eps": 1e-6}).number("layer_norm_eps", zero=True)
    projection = ProjectionSpec(f"{_PROJECTOR}.mm_input_projection", text.integer("hidden_size"), transposed=True)
    return siglip(
        config,
        "vision_tower",
        family="gemma3",
        merge=merge,
        pooled=True,
        connector_norm=(f"{_PROJECTOR}.mm_soft_emb_norm", NormSpec(eps, offset=1.0)),
        connector=(projection,),
        images=images,
        spaced=(BEGIN, SPACING),
        renames=((r"\.mm_input_projection\.weight$", ".mm_input_projection_weight"),),
    )
