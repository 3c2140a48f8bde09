"""Tiny random models that see images, with tokenizers and image processors, and their twins in `transformers`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import lfm2_vl_twin
from ferrum.images.decoded_image import DecodedImage
from shared_models import folder
from text_samples import BOS, EOS, write

TEXT = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
VISION = {
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    "image_size": 32,
}
TEMPLATE = (
    "{% for m in messages %}{{ bos_token }}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ bos_token }}assistant:{% endif %}"
)


@dataclass(frozen=True)
class ImageCase:
    """A tiny model that sees.

    Attributes:
        config: configuration class of `transformers`.
        processor: class of its image processor.
        changes: fields of the configuration; those of its parts under `text_config` and `vision_config`.
        values: of `preprocessor_config.json`.
        tokens: special tokens. The first one stands for an image in a prompt.
        row_token: which of them gets rows.
    """

    name: str
    config: str
    processor: str
    changes: Mapping[str, Any] = field(hash=False)
    values: Mapping[str, Any] = field(hash=False)
    tokens: tuple[str, ...] = ()
    row_token: int = 0


_TILED = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row, column in product(range(1, 4), repeat=2)),
)
_ROWED = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
_MARKED = (
    *("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    *(f"<|img_row_{row}_col_{column}|>" for row, column in product(range(1, 7), repeat=2)),
)
_GRIDDED = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"
_QWEN_VISION: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 36,
}
_HYBRID: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 2,
    "head_dim": 32,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
    },
}
_WHOLE = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
_GEMMA3 = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "query_pre_attn_scalar": 20,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

_BUDGETED = "<|image|>", "<|image>", "<image|>"
_GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "head_dim": 16,
    "global_head_dim": 24,
    "vocab_size_per_layer_input": 160,
    "pad_token_id": 7,
    "sliding_window": 40,
}
_GEMMA4_VISION = {"head_dim": 20, "num_key_value_heads": 2, "position_embedding_size": 250}

CASES = {
    case.name: case
    for case in (
        ImageCase(
            "smolvlm",
            "SmolVLMConfig",
            "SmolVLMImageProcessorPil",
            {"scale_factor": 2, "text_config": {"model_type": "llama"}},
            {"size": {"longest_edge": 80}, "max_image_size": {"longest_edge": 32}},
            _TILED,
        ),
        ImageCase(
            "idefics3",
            "Idefics3Config",
            "Idefics3ImageProcessorPil",
            {
                "scale_factor": 3,
                "text_config": {"model_type": "llama", "head_dim": 16},
                "vision_config": {"num_attention_heads": 4, "image_size": 32, "patch_size": 5, "num_hidden_layers": 3},
            },
            {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}, "resample": 3},
            _TILED,
        ),
        ImageCase(
            "mistral3",
            "Mistral3Config",
            "PixtralImageProcessorPil",
            {"spatial_merge_size": 2, "text_config": {"model_type": "mistral"}},
            {"size": {"longest_edge": 32}, "patch_size": 8},
            _ROWED,
        ),
        ImageCase(
            "mistral3-merge3",
            "Mistral3Config",
            "PixtralImageProcessorPil",
            {
                "spatial_merge_size": 3,
                "multimodal_projector_bias": True,
                "text_config": {"model_type": "mistral", "rms_norm_eps": 1e-3, "sliding_window": None},
                "vision_config": {"num_attention_heads": 5, "image_size": 60, "hidden_act": "silu"},
            },
            {"size": {"longest_edge": 50}, "patch_size": 12, "image_mean": [0.5, 0.4, 0.3]},
            _ROWED,
        ),
        ImageCase(
            "pixtral",
            "LlavaConfig",
            "PixtralImageProcessorPil",
            {
                "text_config": {"model_type": "mistral"},
                "vision_config": {"model_type": "pixtral"},
                "vision_feature_layer": -1,
                "vision_feature_select_strategy": "full",
            },
            {"size": {"longest_edge": 30}, "patch_size": 4},
            _ROWED,
        ),
        ImageCase(
            "lfm2-vl",
            "Lfm2VlConfig",
            "Lfm2VlImageProcessor",
            {
                "projector_hidden_size": 56,
                "text_config": {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
                "vision_config": {"model_type": "siglip2_vision_model", "num_patches": 36, "vision_use_head": False},
            },
            {"encoder_patch_size": 4, "tile_size": 32, "min_image_tokens": 4, "max_image_tokens": 30},
            _MARKED,
        ),
        ImageCase(
            "lfm2-vl-merge3",
            "Lfm2VlConfig",
            "Lfm2VlImageProcessor",
            {
                "downsample_factor": 3,
                "projector_bias": False,
                "projector_hidden_size": 40,
                "projector_use_layernorm": False,
                "text_config": {"model_type": "lfm2", "layer_types": ["full_attention", "conv"], "conv_bias": True},
                "vision_config": {
                    "model_type": "siglip2_vision_model",
                    "num_patches": 121,
                    "vision_use_head": False,
                    "patch_size": 3,
                    "num_attention_heads": 4,
                    "layer_norm_eps": 1e-3,
                    "hidden_act": "gelu",
                },
            },
            {
                "encoder_patch_size": 3,
                "downsample_factor": 3,
                "tile_size": 27,
                "max_tiles": 6,
                "resample": 3,
                "min_image_tokens": 2,
                "max_image_tokens": 20,
                "use_thumbnail": False,
                "do_resize": False,
            },
            _MARKED,
        ),
        ImageCase(
            "qwen3-vl",
            "Qwen3VLConfig",
            "Qwen2VLImageProcessorPil",
            {
                "text_config": {
                    "model_type": "qwen3_vl_text",
                    "num_hidden_layers": 3,
                    "head_dim": 16,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [4, 2, 2]},
                },
                "vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0, 1]},
            },
            {"size": {"shortest_edge": 300, "longest_edge": 3000}, "patch_size": 4},
            _GRIDDED,
        ),
        ImageCase(
            "qwen3-vl-merge3",
            "Qwen3VLConfig",
            "Qwen2VLImageProcessorPil",
            {
                "text_config": {
                    "model_type": "qwen3_vl_text",
                    "num_hidden_layers": 2,
                    "head_dim": 20,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 9000.0, "mrope_section": [3, 4, 3]},
                },
                "vision_config": {
                    **_QWEN_VISION,
                    "spatial_merge_size": 3,
                    "temporal_patch_size": 1,
                    "patch_size": 5,
                    "hidden_act": "silu",
                    "num_position_embeddings": 16,
                    "deepstack_visual_indexes": [1],
                },
            },
            {
                "size": {"shortest_edge": 200, "longest_edge": 5000},
                "patch_size": 5,
                "merge_size": 3,
                "temporal_patch_size": 1,
                "image_std": [0.5, 0.4, 0.3],
            },
            _GRIDDED,
        ),
        ImageCase(
            "qwen3-vl-moe",
            "Qwen3VLMoeConfig",
            "Qwen2VLImageProcessorPil",
            {
                "text_config": {
                    "model_type": "qwen3_vl_moe_text",
                    "hidden_size": 64,
                    "head_dim": 16,
                    "moe_intermediate_size": 64,
                    "num_experts": 5,
                    "num_experts_per_tok": 2,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [4, 2, 2]},
                },
                "vision_config": {**_QWEN_VISION, "out_hidden_size": 64, "deepstack_visual_indexes": [1, 0]},
            },
            {"size": {"shortest_edge": 300, "longest_edge": 3000}, "patch_size": 4},
            _GRIDDED,
        ),
        ImageCase(
            "qwen3.5",
            "Qwen3_5Config",
            "Qwen2VLImageProcessorPil",
            {"text_config": {**_HYBRID, "num_hidden_layers": 3}, "vision_config": _QWEN_VISION},
            {"size": {"shortest_edge": 300, "longest_edge": 3000}, "patch_size": 4},
            _GRIDDED,
        ),
        ImageCase(
            "qwen3.5-moe",
            "Qwen3_5MoeConfig",
            "Qwen2VLImageProcessorPil",
            {
                "text_config": {
                    **_HYBRID,
                    "model_type": "qwen3_5_moe_text",
                    "hidden_size": 64,
                    "moe_intermediate_size": 32,
                    "shared_expert_intermediate_size": 32,
                    "num_experts": 5,
                    "num_experts_per_tok": 2,
                },
                "vision_config": {
                    **_QWEN_VISION,
                    "out_hidden_size": 64,
                    "num_attention_heads": 5,
                    "num_hidden_layers": 2,
                },
            },
            {"size": {"shortest_edge": 300, "longest_edge": 3000}, "patch_size": 4, "resample": 2},
            _GRIDDED,
        ),
        ImageCase(
            "gemma3",
            "Gemma3Config",
            "Gemma3ImageProcessorPil",
            {
                "mm_tokens_per_image": 16,
                "text_config": {**_GEMMA3, "sliding_window": 64},
                "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False},
            },
            {"size": {"height": 32, "width": 32}, "do_pan_and_scan": None, "resample": 2},
            _WHOLE,
            row_token=1,
        ),
        ImageCase(
            "gemma3-narrow",  # a window that is shorter than an image
            "Gemma3Config",
            "Gemma3ImageProcessorPil",
            {
                "mm_tokens_per_image": 36,
                "text_config": {**_GEMMA3, "sliding_window": 12},
                "vision_config": {
                    "model_type": "siglip_vision_model",
                    "vision_use_head": False,
                    "image_size": 90,
                    "patch_size": 5,
                    "layer_norm_eps": 1e-3,
                    "num_attention_heads": 4,
                },
            },
            {"size": {"height": 90, "width": 90}, "image_mean": [0.4, 0.5, 0.6], "image_std": 0.4},
            _WHOLE,
            row_token=1,
        ),
        ImageCase(
            "gemma4",  # rows see each other in sliding layers alone, beyond a window that is shorter than an image
            "Gemma4Config",
            "Gemma4ImageProcessorPil",
            {
                "text_config": {
                    **_GEMMA4,
                    "num_hidden_layers": 3,
                    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                    "hidden_size_per_layer_input": 0,
                    "attention_k_eq_v": True,
                    "num_global_key_value_heads": 2,
                    "use_bidirectional_attention": "vision",
                },
                "vision_config": {**_GEMMA4_VISION, "pooling_kernel_size": 2, "standardize": True},
            },
            {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70, "do_normalize": False},
            _BUDGETED,
        ),
        ImageCase(
            "gemma4-layered",  # embeddings of layers, which the tokens of images have from another token
            "Gemma4Config",
            "Gemma4ImageProcessorPil",
            {
                "text_config": {
                    **_GEMMA4,
                    "num_hidden_layers": 4,
                    "layer_types": ["sliding_attention", "full_attention"] * 2,
                    "hidden_size_per_layer_input": 8,
                    "num_kv_shared_layers": 2,
                },
                "vision_config": {
                    **_GEMMA4_VISION,
                    "pooling_kernel_size": 3,
                    "patch_size": 2,
                    "rms_norm_eps": 1e-3,
                    "use_clipped_linears": True,
                    "rope_parameters": {"rope_type": "axial", "rope_theta": 30.0},
                },
            },
            {
                "patch_size": 2,
                "pooling_kernel_size": 3,
                "max_soft_tokens": 70,
                "do_normalize": True,
                "image_mean": [0.1, 0.2, 0.3],
                "image_std": [0.9, 0.8, 0.7],
                "resample": 2,
            },
            _BUDGETED,
        ),
    )
}


@cache
def seeing_model(name: str) -> Any:
    """Return the twin, with the weights of `seeing_directory`."""
    case = CASES[name]
    token = tokenizer_of(case).token_to_id(case.tokens[case.row_token])
    changes = {**case.changes, "image_token_id": token, "image_token_index": token}
    text = {**TEXT, **changes.pop("text_config")}
    vision = {**VISION, "model_type": "pixtral", **changes.pop("vision_config", {})}
    if not case.config.startswith(("Mistral3", "Llava")):
        del vision["model_type"]
    if case.config == "Gemma3Config":
        del changes["image_token_id"]
    config = getattr(transformers, case.config)(
        text_config=text, vision_config=vision, tie_word_embeddings=False, **changes
    )
    torch.manual_seed(7)
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
        for place, (key, buffer) in enumerate(model.named_buffers()):
            if key.endswith(("put_min", "put_max", "std_bias", "std_scale")):  # of layer 0 alike, of others not
                side, rest = -1 if key.endswith("min") else 1, 0 if ".layers.0." in key else place % 7 / 10
                buffer.copy_(torch.linspace(0.7, 1.4, max(buffer.numel(), 1)).reshape(buffer.shape) * side + rest)
    return model


@cache
def seeing_directory(name: str) -> Path:
    """Return the checkpoint of a case."""
    case, directory = CASES[name], folder(f"seeing-{name}")
    seeing_model(name).save_pretrained(directory)
    if name == "qwen3-vl-moe":
        transpose_experts(directory / "model.safetensors")
    (directory / "generation_config.json").unlink(missing_ok=True)
    write(directory, tokenizer_of(case), chat_template=TEMPLATE.replace("IMAGE", case.tokens[0]))
    (directory / "preprocessor_config.json").write_text(json.dumps(case.values))
    return directory


def transpose_experts(file: Path) -> None:
    """Transpose the matrices of experts, as released files of Qwen3-VL have them; `transformers` reads both forms."""
    tensors = load_file(file)
    experts = {name: each.transpose(1, 2).contiguous() for name, each in tensors.items() if ".experts." in name}
    save_file({**tensors, **experts}, file, {"format": "pt"})


def tokenizer_of(case: ImageCase) -> Tokenizer:
    """Return a tokenizer of printable ASCII and line ends, two of which are one token, with the special tokens."""
    characters = ["Ġ" if letter == " " else letter for letter in map(chr, range(32, 127))]
    pieces = [BOS, EOS, *characters, "Ċ", "ĊĊ"]
    tokenizer = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, [("Ċ", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, *(AddedToken(each, special=True) for each in case.tokens)])
    return tokenizer


def twin_processor(name: str) -> Any:
    """Return the image processor of `transformers`."""
    case = CASES[name]
    if case.config == "Lfm2VlConfig":
        return lfm2_vl_twin.processor_class()(**case.values)
    return getattr(transformers, case.processor)(**case.values)


def random_image(width: int, height: int, seed: int = 0) -> DecodedImage:
    """Return an image of noise over a gradient."""
    rng = np.random.default_rng((seed, width, height))
    slope = np.add.outer(np.linspace(0, 120, height), np.linspace(0, 80, width))[..., None]
    return decoded((slope + rng.integers(0, 56, (height, width, 3))).astype(np.uint8))


def decoded(pixels: np.ndarray) -> DecodedImage:
    """Return pixels as a decoded image."""
    return DecodedImage(pixels, hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).digest())


def picture(image: DecodedImage) -> Image.Image:
    """Return an image as Pillow has it."""
    return Image.fromarray(image.pixels)


def twin_pixels(name: str, image: DecodedImage) -> dict[str, torch.Tensor]:
    """Return the arguments that the twin gets for an image."""
    found = twin_processor(name)([[picture(image)]], return_tensors="np")
    wanted = (
        "pixel_values",
        "pixel_attention_mask",
        "image_sizes",
        "spatial_shapes",
        "image_grid_thw",
        "image_position_ids",
    )
    return {key: torch.tensor(np.asarray(found[key])) for key in wanted if key in found}


def twin_rows(name: str, image: DecodedImage) -> np.ndarray:
    """Return the rows of an image by the twin."""
    with torch.no_grad():
        found = seeing_model(name).get_image_features(**twin_pixels(name, image), return_dict=True)
    deep = getattr(found, "deepstack_features", None) or ()
    return torch.cat([torch.cat(list(each)) for each in (found.pooler_output, *deep)], dim=1).numpy()
