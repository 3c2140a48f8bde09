"""GGUF files of tiny models that see: text model and projector, as the converters of llama.cpp and ollama write them.

Names of keys and tensors are those of the `gguf` library.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file

from gguf_twin import add_sizes, permuted
from image_models import CASES, TEMPLATE, seeing_directory, tokenizer_of
from shared_models import folder
from text_samples import BOS, EOS

Tensors = dict[str, np.ndarray]
TYPES = {
    **dict.fromkeys(("smolvlm", "idefics3"), "idefics3"),
    **dict.fromkeys(("mistral3", "mistral3-merge3", "pixtral"), "pixtral"),
    **dict.fromkeys(("gemma3", "gemma3-narrow"), "gemma3"),
}
"""Types of the projectors of cases."""

_KEPT = re.compile(r"patch_embd|patch_merger|position_embd|patch_conv")
"""Tensors that the converter never quantises."""


def write_projector(name: str, path: Path, kind: str = "F32", *, turned: bool = False, **changes: Any) -> Path:
    """Write the projector of a case.

    Args:
        kind: type of the matrices.
        turned: up and down have each other's names, as the first converters wrote them.
        changes: metadata in place of the converter's, `.` as `__`; None leaves a key out.
    """
    config, values, tensors = _parts(name)
    vision, text = config["vision_config"], config["text_config"]
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(TYPES[name])
    writer.add_vision_projection_dim(text["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    pixtral, gemma = TYPES[name] == "pixtral", TYPES[name] == "gemma3"
    _add_settings(writer, name, config, values)
    for key, value in changes.items():
        full = f"clip.{key.replace('__', '.')}"
        writer.kv_data[0].pop(full, None)
        if value is not None:
            getattr(writer, {bool: "add_bool", int: "add_uint32", str: "add_string"}[type(value)])(full, value)
    known = get_tensor_name_map(MODEL_ARCH.MMPROJ, 128)
    for full, numbers in tensors.items():
        if "text_model" in full or "language_model" in full or full.startswith("lm_head"):
            continue
        library = full if full.startswith("model.vision_model") or "connector" in full else full.removeprefix("model.")
        if gemma:  # published checkpoints have SigLIP under one more name
            library = re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", library)
            library = library.replace("projection_weight", "projection.weight")
        own = known.get_name(library, (".weight", ".bias"))
        assert own is not None, full
        stored = np.ascontiguousarray(numbers, np.float32)
        if pixtral and re.search(r"\.[qk]_proj\.", full):
            stored = permuted(stored, vision["num_attention_heads"])
        if "soft_emb_norm" in full:
            stored = stored + 1
        if turned:
            own = re.sub("ffn_(up|down)", lambda found: f"ffn_{'down' if found[1] == 'up' else 'up'}", own)
        _add(writer, own, stored, kind)
    if pixtral:
        embedding = next(each for full, each in tensors.items() if full.endswith("embed_tokens.weight"))
        token = tokenizer_of(CASES[name]).token_to_id("[IMG_BREAK]")
        writer.add_tensor("v.token_embd.img_break", np.ascontiguousarray(embedding[token], np.float32))
    return _written(writer, path)


def _add_settings(writer: GGUFWriter, name: str, config: dict[str, Any], values: dict[str, Any]) -> None:
    """Add the metadata of a type of projector, and of its image processor."""
    vision = config["vision_config"]
    pixtral, gemma = TYPES[name] == "pixtral", TYPES[name] == "gemma3"
    usual = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]) if pixtral else ([0.5] * 3,) * 2
    writer.add_vision_image_mean(values.get("image_mean", usual[0]))
    deviation = values.get("image_std", usual[1])
    writer.add_vision_image_std(deviation if isinstance(deviation, list) else [deviation] * 3)
    if pixtral:
        writer.add_vision_attention_layernorm_eps(1e-5)
        getattr(writer, f"add_vision_use_{vision.get('hidden_act', 'gelu')}")(True)
        if "spatial_merge_size" in config:
            writer.add_vision_spatial_merge_size(config["spatial_merge_size"])
    else:
        writer.add_vision_attention_layernorm_eps(vision["layer_norm_eps"])
        writer.add_vision_use_gelu(True)
        if gemma:
            side = vision["image_size"] // vision["patch_size"]
            writer.add_vision_projector_scale_factor(side // math.isqrt(config["mm_tokens_per_image"]))
        else:
            writer.add_vision_projector_scale_factor(config["scale_factor"])
            writer.add_vision_preproc_image_size(values["size"]["longest_edge"])


def text_of(name: str) -> dict[str, Any]:
    """Return the configuration of the text model of a case."""
    text: dict[str, Any] = _parts(name)[0]["text_config"]
    return text


def write_text(name: str, path: Path) -> Path:
    """Write the text model of a case, of architecture `llama`, in float32, with its tokenizer."""
    writer = GGUFWriter(path, "llama")
    _add_text(writer, name, "llama")
    for full, numbers in _text_tensors(name).items():
        writer.add_tensor(full, numbers)
    return _written(writer, path)


def write_whole(name: str, path: Path) -> Path:
    """Write text model and tower of a case of Mistral 3 in one file, as ollama does."""
    config, _, tensors = _parts(name)
    vision = config["vision_config"]
    writer = GGUFWriter(path, "mistral3")
    _add_text(writer, name, "mistral3")
    for key, value in {
        "vision.block_count": vision["num_hidden_layers"],
        "vision.embedding_length": vision["hidden_size"],
        "vision.feed_forward_length": vision["intermediate_size"],
        "vision.attention.head_count": vision["num_attention_heads"],
        "vision.attention.key_length": vision["hidden_size"] // vision["num_attention_heads"],
        "vision.image_size": vision["image_size"],
        "vision.patch_size": vision["patch_size"],
        "vision.num_channels": 3,
        "image_token_index": 97,
        "spatial_merge_size": config["spatial_merge_size"],
    }.items():
        writer.add_uint32(f"mistral3.{key}", value)
    writer.add_float32("mistral3.vision.rope.freq_base", 10000.0)
    writer.add_bool("mistral3.mm.projector_bias", bool(config.get("multimodal_projector_bias")))
    for full, numbers in _text_tensors(name).items():
        writer.add_tensor(full, numbers)
    for full, numbers in tensors.items():
        own = full.removeprefix("model.")
        if own.startswith(("vision_tower", "multi_modal_projector")):
            for theirs, ours in _OLLAMA:
                own = re.sub(theirs, ours, own)
            writer.add_tensor(own, np.ascontiguousarray(numbers, np.float32))
    return _written(writer, path)


_OLLAMA = (
    *(("^vision_tower", "v"), ("^multi_modal_projector", "mm"), (r"transformer\.layers", "blk")),
    *(("ln_pre", "encoder_norm"), ("attention_norm", "attn_norm")),
    *((r"attention\.([qkv])_proj", r"attn_\1"), (r"attention\.o_proj", "attn_output")),
    (r"feed_forward\.(\w+)_proj", r"ffn_\1"),
)


@cache
def seeing_gguf(name: str) -> Path:
    """Return the text model of a case in a folder with its projector, both in float32."""
    place = folder(f"seeing-gguf-{name}")
    write_projector(name, place / "mmproj-model-f32.gguf")
    return write_text(name, place / "model-f32.gguf")


def _parts(name: str) -> tuple[dict[str, Any], dict[str, Any], Tensors]:
    directory = seeing_directory(name)
    config = json.loads((directory / "config.json").read_text())
    values = json.loads((directory / "preprocessor_config.json").read_text())
    return config, values, load_file(directory / "model.safetensors")


def _add_text(writer: GGUFWriter, name: str, architecture: str) -> None:
    config = _parts(name)[0]["text_config"]
    add_sizes(writer, config)
    tokenizer = json.loads(tokenizer_of(CASES[name]).to_str())
    added = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    texts = {place: text for text, place in tokenizer["model"]["vocab"].items()} | added
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts[place] for place in range(len(texts))])
    writer.add_token_types([3 if place in added else 1 for place in range(len(texts))])
    writer.add_token_merges([" ".join(each) for each in tokenizer["model"]["merges"]])
    writer.add_add_bos_token(False)
    places = {text: place for place, text in added.items()}
    writer.add_bos_token_id(places[BOS])
    writer.add_eos_token_id(places[EOS])
    writer.add_chat_template(TEMPLATE.replace("IMAGE", CASES[name].tokens[0]))


def _text_tensors(name: str) -> Tensors:
    config, _, tensors = _parts(name)
    text = config["text_config"]
    known, found = get_tensor_name_map(MODEL_ARCH.LLAMA, text["num_hidden_layers"]), Tensors()
    for full, numbers in tensors.items():
        if "vision" in full or "connector" in full or "multi_modal" in full:
            continue
        own = re.sub(r"^(language_model\.)?(model\.)?(language_model\.|text_model\.)?(model\.)?", "", full)
        stored = np.ascontiguousarray(numbers, np.float32)
        if re.search(r"\.[qk]_proj\.", own):
            stored = permuted(stored, text["num_attention_heads" if ".q_" in own else "num_key_value_heads"])
        target = known.get_name(own if own.startswith("lm_head") else f"model.{own}", (".weight", ".bias"))
        assert target is not None, full
        found[target] = stored
    return found


def _add(writer: GGUFWriter, name: str, numbers: np.ndarray, kind: str) -> None:
    type = GGMLQuantizationType[kind]
    if kind == "F32" or numbers.ndim == 1 or _KEPT.search(name) or (kind == "Q8_0" and numbers.shape[-1] % 32):
        writer.add_tensor(name, numbers)
    else:
        writer.add_tensor(name, quantize(numbers, type), raw_dtype=type)


def _written(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
