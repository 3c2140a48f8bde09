"""The tower of LFM2-VL (Liquid AI 2025): SigLIP 2 for any shape (Tschannen et al. 2025), and blocks joined to rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, Final

from ferrum.core.errors import CheckpointError
from ferrum.images.image_processor import ImageFamily
from ferrum.images.lfm2_images import Lfm2Images, most_patches
from ferrum.models.builder import NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.encoder_spec import EncoderAttentionSpec
from ferrum.models.llama import activation_of
from ferrum.models.spec import BlockSpec, BranchSpec, MlpSpec
from ferrum.models.tower_spec import (
    TOWERS,
    Encode,
    ProjectionSpec,
    TokenOf,
    TowerSpec,
    heads_of_tower,
    vision_config,
)

_DEFAULTS: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_patches": 256,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
"""Of the configuration class of `transformers`."""

_NAMES: Final = ((r"\.mlp\.up_proj\.", ".mlp.fc1."), (r"\.mlp\.down_proj\.", ".mlp.fc2."))
_CONNECTOR_EPS: Final = 1e-5
_PROJECTOR: Final = "multi_modal_projector"


@TOWERS.register("Lfm2VlForConditionalGeneration")
def lfm2_vl_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return SigLIP 2, whose learned positions are resized to each frame."""
    vision = vision_config(config, _DEFAULTS)
    patch, merge, places = (
        vision.integer("patch_size"),
        config.integer("downsample_factor", 2),
        vision.integer("num_patches"),
    )
    side = isqrt(places)
    if side**2 != places:
        raise CheckpointError(f"config.json: vision_config.num_patches must be a square, got {places}")
    attention = EncoderAttentionSpec(*heads_of_tower(vision), "out_proj", bias=True)
    mlp = MlpSpec(vision.integer("intermediate_size"), activation_of(vision), gated=False, bias=True)
    layer = BlockSpec(
        (BranchSpec((("self_attn", attention),), "layer_norm1"), BranchSpec((("mlp", mlp),), "layer_norm2"))
    )

    def images(token_of: TokenOf, encode: Encode) -> ImageFamily:  # noqa: ARG001 - all tokens are special
        return Lfm2Images(processor, patch, merge, token_of)

    has_norm = config.flag("projector_use_layernorm", True)
    return TowerSpec(
        family="lfm2-vl",
        hidden_size=vision.integer("hidden_size"),
        norms=NormSpec(vision.number("layer_norm_eps", zero=True), centred=True, bias=True),
        patch=patch,
        side=side,
        merge=merge,
        projection="vision_tower.embeddings.patch_embedding",
        projection_bias=True,
        positions="vision_tower.embeddings.position_embedding",
        fitted="resized",
        most_patches=most_patches(processor),
        layers_name="vision_tower.encoder.layers",
        layers=(layer,) * vision.num_layers(),
        last_norm="vision_tower.post_layernorm",
        connector_norm=(f"{_PROJECTOR}.layer_norm", _CONNECTOR_NORM) if has_norm else None,
        connector=_connector(config),
        images=images,
        renames=_NAMES,
    )


_CONNECTOR_NORM: Final = NormSpec(_CONNECTOR_EPS, centred=True, bias=True)


def _connector(config: FamilyConfig) -> tuple[ProjectionSpec, ...]:
    bias, outputs = (
        config.flag("projector_bias", True),
        FamilyConfig(config.values["text_config"]).integer("hidden_size"),
    )
    activation = activation_of(
        config.with_values(projector_hidden_act=config.values.get("projector_hidden_act", "gelu")),
        "projector_hidden_act",
    )
    return (
        ProjectionSpec(f"{_PROJECTOR}.linear_1", config.integer("projector_hidden_size", 2560), bias, activation),
        ProjectionSpec(f"{_PROJECTOR}.linear_2", outputs, bias),
    )
