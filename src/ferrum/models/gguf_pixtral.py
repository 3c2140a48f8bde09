"""Towers of Pixtral and Mistral 3 in GGUF files: llama.cpp's files of projectors, and the single files of ollama."""

from __future__ import annotations

import math
from typing import Any, Final

from ferrum.models.gguf_projectors import EMBEDDED, PROJECTORS, Projector, TowerConfig, TowerHeader

_THETA: Final = 10000.0
_EPS: Final = 1e-5
"""The epsilon of all norms of the tower."""

_CONNECTOR: Final = "multi_modal_projector"
_LAYER: Final = "vision_tower.transformer.layers.{}."
_EPSILON: Final = "vision.attention.layer_norm_epsilon"


def _of_projector(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file of llama.cpp's converter."""
    activation = next((name for name in ("silu", "gelu") if header.values.get(f"use_{name}") is True), None)
    if activation is None:
        raise header.refuse("use_silu", "towers of pixtral have SiLU or GELU")
    merge = header.integer("vision.spatial_merge_size", 1)
    theta = header.number("rope.freq_base", _THETA)
    return _configs(header, merge, {"hidden_act": activation, "rope_theta": theta}, "mm.1.bias", "mm.input_norm.weight")


def _of_whole(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file of ollama, whose towers have SiLU."""
    if header.values.get("vision.num_channels", 3) != 3:
        raise header.refuse("vision.num_channels", "must be 3")
    theta = header.number("vision.rope.freq_base", _THETA)
    if header.values.get("mm.projector_hidden_act", "gelu") != "gelu":
        raise header.refuse("mm.projector_hidden_act", "must be gelu")
    changes: dict[str, Any] = {"hidden_act": "silu", "rope_theta": theta}
    if "vision.attention.key_length" in header.values:
        changes["head_dim"] = header.integer("vision.attention.key_length")
    merge = header.integer("spatial_merge_size")
    return _configs(header, merge, changes, "mm.linear_1.bias", "mm.norm.weight")


def _configs(header: TowerHeader, merge: int, changes: dict[str, Any], bias: str, norm: str) -> TowerConfig:
    """Return the configurations of a tower; `bias` and `norm` are the names of two tensors of its connector."""
    if not math.isclose(header.number(_EPSILON, _EPS), _EPS, rel_tol=1e-6):
        raise header.refuse(_EPSILON, f"must be {_EPS}")
    vision = {**header.vision(), "model_type": "pixtral", **changes}
    own = (
        {"architectures": ["Mistral3ForConditionalGeneration"], "spatial_merge_size": merge}
        if norm in header.shapes or merge > 1
        else {"architectures": ["LlavaForConditionalGeneration"], "vision_feature_select_strategy": "full"}
    )
    config = {
        **own,
        "multimodal_projector_bias": bias in header.shapes,
        "text_config": dict(header.text),
        "vision_config": vision,
    }
    return TowerConfig(config, {"size": {"longest_edge": vision["image_size"]}, **header.levels()})


_PROJECTIONS: Final = {
    **{f"v.blk.{{}}.attn_{part}": f"{_LAYER}attention.{part}_proj" for part in ("q", "k", "v")},
    **{f"v.blk.{{}}.ffn_{part}": f"{_LAYER}feed_forward.{part}_proj" for part in ("gate", "up", "down")},
}
"""Names that both kinds of files share."""

PROJECTORS["pixtral"] = Projector(
    names={
        "v.patch_embd": "vision_tower.patch_conv",
        "v.pre_ln": "vision_tower.ln_pre",
        **{f"mm.{place}": f"{_CONNECTOR}.linear_{place}" for place in (1, 2)},
        "mm.input_norm": f"{_CONNECTOR}.norm",
        "mm.patch_merger": f"{_CONNECTOR}.patch_merger.merging_layer",
        "v.blk.{}.attn_out": f"{_LAYER}attention.o_proj",
        "v.blk.{}.ln1": f"{_LAYER}attention_norm",
        "v.blk.{}.ln2": f"{_LAYER}ffn_norm",
        **_PROJECTIONS,
    },
    keys=("use_silu", "use_gelu", _EPSILON, "vision.spatial_merge_size", "rope.freq_base"),
    describe=_of_projector,
    permuted=True,
    ignored=("v.token_embd.img_break",),  # a row of the text model's embedding
)
EMBEDDED["mistral3"] = Projector(
    names={
        "v.patch_conv": "vision_tower.patch_conv",
        "v.encoder_norm": "vision_tower.ln_pre",
        **{f"mm.linear_{place}": f"{_CONNECTOR}.linear_{place}" for place in (1, 2)},
        "mm.norm": f"{_CONNECTOR}.norm",
        "mm.patch_merger.merging_layer": f"{_CONNECTOR}.patch_merger.merging_layer",
        "v.blk.{}.attn_output": f"{_LAYER}attention.o_proj",
        "v.blk.{}.attn_norm": f"{_LAYER}attention_norm",
        "v.blk.{}.ffn_norm": f"{_LAYER}ffn_norm",
        **_PROJECTIONS,
    },
    keys=(
        *("vision.attention.key_length", "vision.num_channels", "vision.rope.freq_base", _EPSILON),
        *("mm.projector_bias", "mm.projector_hidden_act"),
    ),
    describe=_of_whole,
)
