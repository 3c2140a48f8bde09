"""The tower of Qwen3-VL and Qwen3.5 in GGUF files of projectors."""

from __future__ import annotations

from typing import Final

from ferrum.core.errors import CheckpointError
from ferrum.models.gguf_projectors import PROJECTORS, Patches, Projector, TowerConfig, TowerHeader

_FLAGS: Final = "vision.is_deepstack_layers"
_MERGE: Final = "vision.spatial_merge_size"
_EPSILON: Final = "vision.attention.layer_norm_epsilon"
_THETA: Final = "vision.rope.freq_base"
_PIXELS: Final = ("vision.image_min_pixels", "vision.image_max_pixels")
_RELEASED_PIXELS: Final = (65536, 16777216)
"""Pixels of a resized image in `preprocessor_config.json` of all released models; most files lack them."""

_FRAMES: Final = 2
"""Frames of a video that a patch joins. The converter writes a tensor for each, and refuses other numbers."""


def _of_gguf(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file. `vision.image_size` is not read: the tensor of positions says it."""
    if header.values.get("use_gelu") is not True:
        raise header.refuse("use_gelu", "towers of qwen3vl_merger have GELU")
    for key, value in (("vision.num_channels", 3), ("vision.temporal_patch_size", _FRAMES), (_EPSILON, 1e-6)):
        header.require(key, value, f"must be {value}")
    vision, deep = header.vision(), header.flagged(_FLAGS)
    added = header.text.get("n_deepstack_layers", 0)
    if len(deep) != added:
        reason = f"{len(deep)} layers have features, and {added} of the text model take them: it is another model's"
        raise CheckpointError(f"{header.where}: GGUF metadata {header.prefix}.{_FLAGS}: {reason}")
    merge = header.integer(_MERGE, 2)
    least, most = (header.integer(key, released) for key, released in zip(_PIXELS, _RELEASED_PIXELS, strict=True))
    hybrid = any(str(name).startswith("Qwen3_5") for name in header.text.get("architectures", ()))
    config = {
        "architectures": [f"{'Qwen3_5' if hybrid else 'Qwen3VL'}ForConditionalGeneration"],
        "text_config": dict(header.text),
        "vision_config": {
            **{name: vision[name] for name in ("hidden_size", "intermediate_size", "patch_size")},
            "depth": vision["num_hidden_layers"],
            "num_heads": vision["num_attention_heads"],
            "spatial_merge_size": merge,
            "temporal_patch_size": _FRAMES,
            "num_position_embeddings": header.rows("v.position_embd.weight"),
            "rope_theta": header.number(_THETA, 10000.0),
            "hidden_act": "gelu_pytorch_tanh",
            "deepstack_visual_indexes": deep,
        },
    }
    sizes = {"size": {"shortest_edge": least, "longest_edge": most}, "merge_size": merge}
    return TowerConfig(config, {**sizes, "patch_size": vision["patch_size"], **header.levels()})


_BLOCK: Final = "visual.blocks.{}."

PROJECTORS["qwen3vl_merger"] = Projector(
    names={
        "v.patch_embd": "visual.patch_embed.proj",
        "v.position_embd": "visual.pos_embed",
        "v.post_ln": "visual.merger.norm",
        **{f"mm.{place}": f"visual.merger.linear_fc{place // 2 + 1}" for place in (0, 2)},
        **{f"v.deepstack.{{}}.fc{place}": f"visual.deepstack_merger_list.{{}}.linear_fc{place}" for place in (1, 2)},
        "v.deepstack.{}.norm": "visual.deepstack_merger_list.{}.norm",
        **{f"v.blk.{{}}.ln{place}": f"{_BLOCK}norm{place}" for place in (1, 2)},
        "v.blk.{}.attn_qkv": f"{_BLOCK}attn.qkv",
        "v.blk.{}.attn_out": f"{_BLOCK}attn.proj",
        "v.blk.{}.ffn_up": f"{_BLOCK}mlp.linear_fc1",
        "v.blk.{}.ffn_down": f"{_BLOCK}mlp.linear_fc2",
    },
    keys=(
        *("use_gelu", _FLAGS, _MERGE, _EPSILON, _THETA, *_PIXELS),
        *("vision.num_channels", "vision.temporal_patch_size"),
    ),
    describe=_of_gguf,
    patches={"visual.patch_embed.proj.weight": Patches(("v.patch_embd.weight", "v.patch_embd.weight.1"))},
    listed=("v.deepstack.", _FLAGS),
)
