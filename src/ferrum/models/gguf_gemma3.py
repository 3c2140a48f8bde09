"""The tower of Gemma 3 in GGUF files of projectors."""

from __future__ import annotations

from typing import Final

from ferrum.models.gguf_idefics import siglip_names
from ferrum.models.gguf_projectors import PROJECTORS, Projector, TowerConfig, TowerHeader

_EPSILON: Final = "vision.attention.layer_norm_epsilon"
_FACTOR: Final = "vision.projector.scale_factor"


def _of_gguf(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file. Only files of other models than the released ones have the factor."""
    if header.values.get("use_gelu") is not True:
        raise header.refuse("use_gelu", "towers of gemma3 have GELU")
    vision, merge = header.vision(), header.integer(_FACTOR, 4)
    side = vision["image_size"] // vision["patch_size"]
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "mm_tokens_per_image": (side // merge) ** 2,
        "text_config": dict(header.text),
        "vision_config": {
            **vision,
            "model_type": "siglip_vision_model",
            "layer_norm_eps": header.number(_EPSILON),
            "hidden_act": "gelu_pytorch_tanh",
        },
    }
    size = {"height": vision["image_size"], "width": vision["image_size"]}
    return TowerConfig(config, {"size": size, **header.levels()})


PROJECTORS["gemma3"] = Projector(
    names={
        **siglip_names("vision_tower"),
        "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
        "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
    },
    keys=("use_gelu", _EPSILON, _FACTOR),
    describe=_of_gguf,
    raised=("multi_modal_projector.mm_soft_emb_norm.weight",),
)
