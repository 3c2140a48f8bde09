"""The tower of Gemma 3 in GGUF files: llama.cpp's files of projectors, and the single files of ollama."""

from __future__ import annotations

from typing import Final

from ferrum.models.gguf_idefics import siglip_names
from ferrum.models.gguf_projectors import EMBEDDED, PROJECTORS, Projector, TowerConfig, TowerHeader

_EPSILON: Final = "vision.attention.layer_norm_epsilon"
_FACTOR: Final = "vision.projector.scale_factor"
_TOKENS: Final = "mm.tokens_per_image"
_CHANNELS: Final = "vision.num_channels"
_NORM: Final = "multi_modal_projector.mm_soft_emb_norm"
_PROJECTION: Final = "multi_modal_projector.mm_input_projection_weight"


def _of_projector(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file of a projector. Of the released models, none has the factor."""
    if header.values.get("use_gelu") is not True:
        raise header.refuse("use_gelu", "towers of gemma3 have GELU")
    side = header.integer("vision.image_size") // header.integer("vision.patch_size")
    return _configs(header, (side // header.integer(_FACTOR, 4)) ** 2)


def _of_whole(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file of ollama."""
    header.require(_CHANNELS, 3, "must be 3")
    return _configs(header, header.integer(_TOKENS, 256))


def _configs(header: TowerHeader, tokens: int) -> TowerConfig:
    vision = header.vision()
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "mm_tokens_per_image": tokens,
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
        "mm.soft_emb_norm": _NORM,
        "mm.input_projection.weight": _PROJECTION,
    },
    keys=("use_gelu", _EPSILON, _FACTOR),
    describe=_of_projector,
    raised=(f"{_NORM}.weight",),
)
_LAYER: Final = "vision_tower.encoder.layers.{}."
_OUTPUTS: Final = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": "out_proj"}

EMBEDDED["gemma3"] = Projector(
    names={
        **{f"v.{part}_embedding": f"vision_tower.embeddings.{part}_embedding" for part in ("patch", "position")},
        "v.post_layernorm": "vision_tower.post_layernorm",
        **{f"v.blk.{{}}.attn_{own}": f"{_LAYER}self_attn.{full}" for own, full in _OUTPUTS.items()},
        **{f"v.blk.{{}}.{part}": f"{_LAYER}{part}" for part in ("layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2")},
        "mm.mm_soft_emb_norm": _NORM,
        "mm.mm_input_projection.weight": _PROJECTION,
    },
    keys=(_EPSILON, _TOKENS, _CHANNELS),
    describe=_of_whole,
    raised=(f"{_NORM}.weight",),
)
