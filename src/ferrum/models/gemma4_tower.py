"""The tower of Gemma 4 (Gemma Team 2026): images of any shape, and the scaled mean of each block of patches.

Checkpoints of the small models have a tower for sounds as well. Its tensors are left out, and sounds are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.images.gemma4_images import Gemma4Images, most_tokens
from ferrum.images.image_processor import ImageFamily
from ferrum.kernels.reference.double_math import power
from ferrum.models.builder import NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.encoder_spec import ClippedMlpSpec, EncoderAttentionSpec, PlaceRope
from ferrum.models.llama import activation_of
from ferrum.models.spec import BlockSpec, MlpSpec, sandwich
from ferrum.models.tower_spec import (
    TOWERS,
    Encode,
    ProjectionSpec,
    TokenOf,
    TowerSpec,
    axial_theta,
    heads_of_tower,
    vision_config,
)

_DEFAULTS: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10240,
    "rope_theta": 100.0,
}
"""Of the configuration class of `transformers`."""

_TOWER: Final = "vision_tower"
_CLIPPED: Final = (r"\.((?:q|k|v|o|gate|up|down)_proj)\.weight$", r".\1.linear.weight")
_TABLE: Final = (r"\.position_embedding_table\.weight$", ".position_embedding_table")
_SOUND: Final = ("audio_tower.*", "embed_audio.*")


@TOWERS.register("Gemma4ForConditionalGeneration")
def gemma4_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return the tower. The rows of an image see each other in the models whose text configuration says so."""
    vision, text = vision_config(config, _DEFAULTS), FamilyConfig(config.values["text_config"])
    vision.require("attention_bias", False, False)
    size, merge, patch = (vision.integer(name) for name in ("hidden_size", "pooling_kernel_size", "patch_size"))
    heads, dim = heads_of_tower(vision)
    if vision.integer("num_key_value_heads") != heads or dim % 4:
        reason = f"num_key_value_heads must be num_attention_heads={heads}, and head_dim={dim} a multiple of 4"
        raise Unsupported("config.json: vision_config", reason)
    longest, places = most_tokens(processor) * merge, vision.integer("position_embedding_size")
    if longest > places:
        reason = f"must be at least {longest}, the patches of the longest side of an image, got {places}"
        raise CheckpointError(f"config.json: vision_config.position_embedding_size: {reason}")
    eps = vision.number("rms_norm_eps", zero=True)

    def images(token_of: TokenOf, encode: Encode) -> ImageFamily:  # noqa: ARG001 - all tokens are special
        return Gemma4Images(processor, patch, merge, token_of, bidirectional=_sees_all(text))

    return TowerSpec(
        family="gemma4",
        hidden_size=size,
        norms=NormSpec(eps),
        patch=patch,
        side=longest,
        merge=merge,
        projection=f"{_TOWER}.patch_embedder.input_proj",
        positions=f"{_TOWER}.patch_embedder.position_embedding_table",
        fitted="summed",
        all_positions=places,
        most_patches=most_tokens(processor) * merge**2,
        layers_name=f"{_TOWER}.encoder.layers",
        layers=(_layer(vision, heads, dim, longest),) * vision.num_layers(),
        pooled=True,
        pooled_scale=math.sqrt(size),
        standard=(f"{_TOWER}.std_bias", f"{_TOWER}.std_scale") if vision.flag("standardize") else None,
        connector_norm=(None, NormSpec(eps)),
        connector=(ProjectionSpec("embed_vision.embedding_projection", text.integer("hidden_size")),),
        images=images,
        renames=(_CLIPPED, _TABLE),
        ignored_names=_SOUND,
    )


def _layer(vision: FamilyConfig, heads: int, dim: int, longest: int) -> BlockSpec:
    clipped, theta = vision.flag("use_clipped_linears"), axial_theta(vision)
    each = tuple(power(theta, -(4 * index / dim)) for index in range(dim // 4))
    attention = EncoderAttentionSpec(
        heads,
        dim,
        "o_proj",
        rope=PlaceRope(each, each, longest),
        scale=1.0,
        normed=True,
        by_axis=True,
        clipped=clipped,
    )
    inner, activation = vision.integer("intermediate_size"), activation_of(vision, "hidden_activation")
    return sandwich(attention, ClippedMlpSpec(inner, activation) if clipped else MlpSpec(inner, activation))


def _sees_all(text: FamilyConfig) -> bool:
    return bool(text.values.get("use_bidirectional_attention") == "vision")
