"""The tower of LFM2-VL in GGUF files of projectors."""

from __future__ import annotations

from typing import Final

from ferrum.models.gguf_idefics import siglip_names
from ferrum.models.gguf_projectors import PROJECTORS, Patches, Projector, TowerConfig, TowerHeader

_EPSILON: Final = "vision.attention.layer_norm_epsilon"
_FACTOR: Final = "vision.projector.scale_factor"
_BICUBIC: Final = 3
_CONNECTOR: Final = "multi_modal_projector"


def _of_gguf(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file.

    `vision.image_size` is not read: it is 256 in all files, and the tensor of positions says it. Files do not say how
    images are resized and cut: filter, tiles and numbers of tokens are those of the released models.
    """
    if header.values.get("use_gelu") is not True:
        raise header.refuse("use_gelu", "towers of lfm2 have GELU")
    vision, merge = header.vision(), header.integer(_FACTOR, 2)
    config = {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "downsample_factor": merge,
        "projector_hidden_size": header.rows("mm.1.weight"),
        "projector_bias": "mm.1.bias" in header.shapes,
        "projector_use_layernorm": "mm.input_norm.weight" in header.shapes,
        "text_config": dict(header.text),
        "vision_config": {
            **vision,
            "num_patches": header.rows("v.position_embd.weight"),
            "layer_norm_eps": header.number(_EPSILON),
            "hidden_act": "gelu_pytorch_tanh",
        },
    }
    sizes = {"downsample_factor": merge, "encoder_patch_size": vision["patch_size"], "resample": _BICUBIC}
    return TowerConfig(config, {**sizes, **header.levels()})


PROJECTORS["lfm2"] = Projector(
    names={
        **siglip_names("vision_tower"),
        **{f"mm.{place}": f"{_CONNECTOR}.linear_{place}" for place in (1, 2)},
        "mm.input_norm": f"{_CONNECTOR}.layer_norm",
    },
    keys=("use_gelu", _EPSILON, _FACTOR),
    describe=_of_gguf,
    patches={"vision_tower.embeddings.patch_embedding.weight": Patches(("v.patch_embd.weight",), by_pixel=True)},
)
