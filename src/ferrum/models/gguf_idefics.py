"""The tower of Idefics 3 and SmolVLM in GGUF files of projectors."""

from __future__ import annotations

from ferrum.models.gguf_projectors import PROJECTORS, Projector, TowerConfig, TowerHeader


def _of_gguf(header: TowerHeader) -> TowerConfig:
    """Return the configurations of a file. Files before August 2025 lack the longest edge: it is four tiles."""
    if header.values.get("use_gelu") is not True:
        raise header.refuse("use_gelu", "towers of idefics3 have GELU")
    tile = header.integer("vision.image_size")
    edge = header.integer("vision.preproc_image_size", 4 * tile)
    epsilon = header.number("vision.attention.layer_norm_epsilon")
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "scale_factor": header.integer("vision.projector.scale_factor"),
        "text_config": dict(header.text),
        "vision_config": {**header.vision(), "layer_norm_eps": epsilon, "hidden_act": "gelu_pytorch_tanh"},
    }
    sizes = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": tile}}
    return TowerConfig(config, {**sizes, **header.levels()})


def siglip_names(prefix: str) -> dict[str, str]:
    """Return the names of SigLIP's tensors, under a prefix in directories."""
    layer = f"{prefix}.encoder.layers.{{}}."
    return {
        "v.patch_embd": f"{prefix}.embeddings.patch_embedding",
        "v.position_embd": f"{prefix}.embeddings.position_embedding",
        "v.post_ln": f"{prefix}.post_layernorm",
        **{f"v.blk.{{}}.attn_{part}": f"{layer}self_attn.{part}_proj" for part in ("q", "k", "v", "out")},
        **{f"v.blk.{{}}.ln{place}": f"{layer}layer_norm{place}" for place in (1, 2)},
        "v.blk.{}.ffn_up": f"{layer}mlp.fc1",
        "v.blk.{}.ffn_down": f"{layer}mlp.fc2",
    }


PROJECTORS["idefics3"] = Projector(
    names={**siglip_names("vision_model"), "mm.model.fc": "connector.modality_projection.proj"},
    keys=(
        *("use_gelu", "vision.attention.layer_norm_epsilon"),
        *("vision.projector.scale_factor", "vision.preproc_image_size"),
    ),
    describe=_of_gguf,
)
