"""The tower of Qwen3-VL (Bai et al. 2025) and Qwen3.5: images of any shape, with rotations by row and column."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, Final

from ferrum.core.errors import CheckpointError
from ferrum.images.image_processor import ImageFamily
from ferrum.images.qwen_images import QwenImages, pixels_of
from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.reference.double_math import power
from ferrum.models.builder import NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.encoder_spec import EncoderAttentionSpec, PlaceRope
from ferrum.models.llama import activation_of
from ferrum.models.spec import BlockSpec, BranchSpec, MlpSpec
from ferrum.models.tower_spec import (
    TOWERS,
    DeepSpec,
    Encode,
    ProjectionSpec,
    TokenOf,
    TowerSpec,
    axial_theta,
    vision_config,
)

_DEFAULTS: Final = {
    "depth": 27,
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "rope_theta": 10000.0,
}
"""Of the configuration classes of `transformers`."""

_DEEP_LAYERS: Final = (8, 16, 24)
_EPS: Final = 1e-6
_GELU: Final = Activation("gelu")
_NAMES: Final = (
    (r"\.mlp\.up_proj\.", ".mlp.linear_fc1."),
    (r"\.mlp\.down_proj\.", ".mlp.linear_fc2."),
)


@TOWERS.register("Qwen3VLForConditionalGeneration")
@TOWERS.register("Qwen3VLMoeForConditionalGeneration")
def qwen3_vl_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return the tower with features of some layers for the first layers of the text model."""
    layers = (config.values.get("vision_config") or {}).get("deepstack_visual_indexes", _DEEP_LAYERS)
    return _tower("qwen3-vl", config, processor, tuple(layers))


@TOWERS.register("Qwen3_5ForConditionalGeneration")
@TOWERS.register("Qwen3_5MoeForConditionalGeneration")
def qwen3_5_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return the tower without features of layers."""
    return _tower("qwen3.5", config, processor, ())


def _tower(family: str, config: FamilyConfig, processor: Mapping[str, Any], deep: tuple[int, ...]) -> TowerSpec:
    vision = vision_config(config, _DEFAULTS)
    vision.require("in_channels", 3, 3)
    size, heads, patch = (vision.integer(name) for name in ("hidden_size", "num_heads", "patch_size"))
    merge, repeats, places = (
        vision.integer(name) for name in ("spatial_merge_size", "temporal_patch_size", "num_position_embeddings")
    )
    dim, text = vision.integer("head_dim", size // heads), FamilyConfig(config.values["text_config"])
    if dim % 4 or isqrt(places) ** 2 != places:
        reason = f"head_dim={dim} must be a multiple of 4, and num_position_embeddings={places} a square"
        raise CheckpointError(f"config.json: vision_config: {reason}")
    depth = vision.integer("depth")
    if any(type(layer) is not int or not 0 <= layer < depth for layer in deep) or len(set(deep)) < len(deep):
        raise CheckpointError(f"config.json: deepstack_visual_indexes must be some of {depth} layers, got {list(deep)}")
    most = pixels_of(processor, patch * merge)[1] // patch**2
    attention = EncoderAttentionSpec(heads, dim, "proj", bias=True, fused="qkv", rope=_rope(vision, dim, most // merge))
    mlp = MlpSpec(vision.integer("intermediate_size"), activation_of(vision), gated=False, bias=True)

    def images(token_of: TokenOf, encode: Encode) -> ImageFamily:  # noqa: ARG001 - all tokens are special
        return QwenImages(processor, patch, merge, repeats, token_of)

    def merger(name: str) -> tuple[ProjectionSpec, ...]:
        inner, outputs = size * merge**2, text.integer("hidden_size")
        return (
            ProjectionSpec(f"{name}.linear_fc1", inner, bias=True, activation=_GELU),
            ProjectionSpec(f"{name}.linear_fc2", outputs, bias=True),
        )

    lists = [f"visual.deepstack_merger_list.{index}" for index in range(len(deep))]
    return TowerSpec(
        family=family,
        hidden_size=size,
        norms=NormSpec(_EPS, centred=True, bias=True),
        patch=patch,
        side=isqrt(places),
        merge=merge,
        projection="visual.patch_embed.proj",
        projection_bias=True,
        positions="visual.pos_embed",
        fitted="interpolated",
        images_per_patch=repeats,
        most_patches=most,
        layers_name="visual.blocks",
        layers=(BlockSpec((BranchSpec((("attn", attention),), "norm1"), BranchSpec((("mlp", mlp),), "norm2"))),)
        * depth,
        last_norm="visual.merger.norm",
        connector=merger("visual.merger"),
        # A list names the layers in any order, and the features follow that of the layers.
        deep=tuple(
            DeepSpec(layer, f"{name}.norm", merger(name)) for layer, name in sorted(zip(deep, lists, strict=True))
        ),
        images=images,
        renames=_NAMES,
    )


def _rope(vision: FamilyConfig, dim: int, longest: int) -> PlaceRope:
    """Return the rotations: the first half of the pairs turns by row, the other by column, at equal frequencies."""
    theta = axial_theta(vision)
    each = tuple(power(theta, -(4 * index / dim)) for index in range(dim // 4))
    return PlaceRope(each, each, longest)
