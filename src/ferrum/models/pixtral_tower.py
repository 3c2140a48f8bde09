"""The tower of Pixtral (Agrawal et al. 2024) and Mistral 3: images of any size, with rotations by row and column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.images.image_processor import ImageFamily
from ferrum.images.pixtral_images import PixtralImages
from ferrum.kernels.reference.double_math import power
from ferrum.models.builder import NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.encoder_spec import EncoderAttentionSpec, GridRope
from ferrum.models.llama import activation_of
from ferrum.models.spec import BlockSpec, BranchSpec, MlpSpec
from ferrum.models.tensor_names import Runs
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
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
    "rope_theta": 10000.0,
}
"""Of the configuration class of `transformers`."""

_EPS: Final = 1e-5


@TOWERS.register("Mistral3ForConditionalGeneration")
def mistral3_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return Pixtral's tower, whose patches are normed and joined by a layer before the two of the connector."""
    merge = config.integer("spatial_merge_size", 2)
    size = vision_config(config, _DEFAULTS).integer("hidden_size")
    # A checkpoint has the patches of a block next to each other for each number; here they follow one another.
    columns = tuple(Runs(size, merge**2, place, 1) for place in range(merge**2))
    joined = ProjectionSpec("multi_modal_projector.patch_merger.merging_layer", size, columns=columns)
    eps = FamilyConfig(config.values["text_config"]).number("rms_norm_eps", 1e-6, zero=True)
    bias = config.flag("multimodal_projector_bias")
    return _tower(
        "mistral3",
        config,
        processor,
        merge,
        (joined, *_connector(config, bias=bias)),
        "multi_modal_projector.norm",
        eps,
    )


@TOWERS.register("LlavaForConditionalGeneration")
def pixtral_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return the tower of Pixtral, as `transformers` saves it: each patch is a row."""
    kind = (config.values.get("vision_config") or {}).get("model_type")
    if kind != "pixtral":
        raise Unsupported(f"images with a tower of type {kind!r}", "known: pixtral")
    if config.values.get("vision_feature_select_strategy", "default") != "full":
        raise Unsupported("config.json: vision_feature_select_strategy", "must be full for a tower of type pixtral")
    bias = config.flag("multimodal_projector_bias", True)
    return _tower("pixtral", config, processor, 1, _connector(config, bias=bias))


def _connector(config: FamilyConfig, *, bias: bool) -> tuple[ProjectionSpec, ...]:
    size = FamilyConfig(config.values["text_config"]).integer("hidden_size")
    activation = activation_of(
        config.with_values(projector_hidden_act=config.values.get("projector_hidden_act", "gelu")),
        "projector_hidden_act",
    )
    return (
        ProjectionSpec("multi_modal_projector.linear_1", size, bias, activation),
        ProjectionSpec("multi_modal_projector.linear_2", size, bias),
    )


def _tower(
    family: str,
    config: FamilyConfig,
    processor: Mapping[str, Any],
    merge: int,
    connector: tuple[ProjectionSpec, ...],
    last_norm: str | None = None,
    last_eps: float | None = None,
) -> TowerSpec:
    if config.values.get("vision_feature_layer", -1) != -1:
        layer = config.values["vision_feature_layer"]
        raise Unsupported(f"config.json: vision_feature_layer={layer!r}", "only the last layer (-1) is implemented")
    vision = vision_config(config, _DEFAULTS)
    patch = vision.integer("patch_size")
    side = vision.integer("image_size") // patch
    heads, dim = heads_of_tower(vision)
    if dim % 4:
        raise CheckpointError(f"config.json: vision_config.head_dim must be a multiple of 4, got {dim}")
    attention = EncoderAttentionSpec(heads, dim, "o_proj", rope=_rope(vision, dim, side))
    mlp = MlpSpec(vision.integer("intermediate_size"), activation_of(vision))
    layer = BlockSpec(
        (BranchSpec((("attention", attention),), "attention_norm"), BranchSpec((("feed_forward", mlp),), "ffn_norm"))
    )

    def images(token_of: TokenOf, encode: Encode) -> ImageFamily:  # noqa: ARG001 - all tokens are special
        return PixtralImages(processor, patch, side, merge, token_of)

    return TowerSpec(
        family=family,
        hidden_size=vision.integer("hidden_size"),
        norms=NormSpec(_EPS),
        patch=patch,
        side=side,
        merge=merge,
        projection="vision_tower.patch_conv",
        first_norm="vision_tower.ln_pre",
        layers_name="vision_tower.transformer.layers",
        layers=(layer,) * vision.num_layers(),
        last_norm=last_norm,
        last_eps=last_eps,
        connector=connector,
        images=images,
    )


def _rope(vision: FamilyConfig, dim: int, side: int) -> GridRope:
    """Return the rotations: of all frequencies of a head, even ones turn by row and odd ones by column."""
    theta = axial_theta(vision)
    all_of_them = [power(theta, -(2 * index / dim)) for index in range(dim // 2)]
    return GridRope(tuple(all_of_them[::2]), tuple(all_of_them[1::2]), side)
