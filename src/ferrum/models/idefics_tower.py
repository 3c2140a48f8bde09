"""The tower of Idefics 3 (Laurençon et al. 2024) and SmolVLM: SigLIP, and blocks of patches joined to rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ferrum.images.idefics_images import IdeficsImages
from ferrum.models.builder import NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.encoder_spec import EncoderAttentionSpec
from ferrum.models.llama import activation_of
from ferrum.models.spec import BlockSpec, BranchSpec, MlpSpec
from ferrum.models.tower_spec import (
    TOWERS,
    ProjectionSpec,
    TowerSpec,
    heads_of_tower,
    vision_config,
)

_DEFAULTS: Final = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
"""Of the configuration classes of `transformers`."""

_NAMES: Final = ((r"\.mlp\.up_proj\.", ".mlp.fc1."), (r"\.mlp\.down_proj\.", ".mlp.fc2."))


@TOWERS.register("Idefics3ForConditionalGeneration")
@TOWERS.register("SmolVLMForConditionalGeneration")
def idefics_tower(config: FamilyConfig, processor: Mapping[str, Any]) -> TowerSpec:
    """Return SigLIP with learned positions, and one projection."""
    merge, size = config.integer("scale_factor", 2), FamilyConfig(config.values["text_config"]).integer("hidden_size")
    return siglip(
        config,
        "vision_model",
        family="idefics3",
        merge=merge,
        connector=(ProjectionSpec("connector.modality_projection.proj", size),),
        images=partial(IdeficsImages, processor, *patches_of(config), merge),
    )


def patches_of(config: FamilyConfig) -> tuple[int, int]:
    """Return the edge of a patch of SigLIP in pixels, and the patches per side."""
    vision = vision_config(config, _DEFAULTS)
    patch = vision.integer("patch_size")
    return patch, vision.integer("image_size") // patch


def siglip(config: FamilyConfig, prefix: str, renames: tuple[tuple[str, str], ...] = (), **fields: Any) -> TowerSpec:
    """Return SigLIP (Zhai et al. 2023) with learned positions, the names of a checkpoint, and other fields."""
    vision, (patch, side) = vision_config(config, _DEFAULTS), patches_of(config)
    attention = EncoderAttentionSpec(*heads_of_tower(vision), "out_proj", bias=True)
    mlp = MlpSpec(vision.integer("intermediate_size"), activation_of(vision), gated=False, bias=True)
    layer = BlockSpec(
        (BranchSpec((("self_attn", attention),), "layer_norm1"), BranchSpec((("mlp", mlp),), "layer_norm2"))
    )
    return TowerSpec(
        hidden_size=vision.integer("hidden_size"),
        norms=NormSpec(vision.number("layer_norm_eps", zero=True), centred=True, bias=True),
        patch=patch,
        side=side,
        projection=f"{prefix}.embeddings.patch_embedding",
        projection_bias=True,
        positions=f"{prefix}.embeddings.position_embedding",
        layers_name=f"{prefix}.encoder.layers",
        layers=(layer,) * vision.num_layers(),
        last_norm=f"{prefix}.post_layernorm",
        renames=(*_NAMES, *renames),
        **fields,
    )
