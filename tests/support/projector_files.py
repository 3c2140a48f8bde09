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
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file

from gguf_converter import converted
from gguf_twin import add_sizes, permuted
from hybrid_gguf import TYPES as VALUE_TYPES
from hybrid_gguf import hybrid_metadata
from image_models import CASES, TEMPLATE, seeing_directory, tokenizer_of
from shared_models import folder
from text_samples import BOS, EOS

Tensors = dict[str, np.ndarray]
TYPES = {
    **dict.fromkeys(("smolvlm", "idefics3"), "idefics3"),
    **dict.fromkeys(("mistral3", "mistral3-merge3", "pixtral"), "pixtral"),
    **dict.fromkeys(("gemma3", "gemma3-narrow"), "gemma3"),
    **dict.fromkeys(("qwen3-vl", "qwen3-vl-moe", "qwen3.5"), "qwen3vl_merger"),
    "lfm2-vl": "lfm2",
}
"""Types of the projectors of cases."""

_ARCHITECTURES = {
    "qwen3-vl": "qwen3vl",
    "qwen3-vl-moe": "qwen3vlmoe",
    "qwen3.5": "qwen35",
    "lfm2-vl": "lfm2",
}
"""Those of the text models of cases that are not `llama`."""

_KEPT = re.compile(r"patch_embd|patch_merger|position_embd|patch_conv")
"""Tensors that the converter never quantises."""


def write_projector(name: str, path: Path, kind: str = "F32", *, turned: bool = False, **changes: Any) -> Path:
    """Write the projector of a case.

    Args:
        kind: type of the matrices.
        turned: up and down have each other's names, as the first converters wrote them.
        changes: metadata in place of the converter's, `.` as `__`; None leaves a key out. A name with `.` is a tensor
            and its shape.
    """
    config, values, whole = _parts(name)
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
    writer.add_vision_block_count(vision.get("depth", vision.get("num_hidden_layers")))
    writer.add_vision_head_count(vision.get("num_heads", vision.get("num_attention_heads")))
    _add_settings(writer, name, config, values)
    tensors = _projector_tensors(name)
    for key, value in changes.items():
        if "." in key:
            numbers = tensors.pop(key)
            tensors |= {} if value is None else {key: numbers.reshape(value)}
            continue
        full = f"clip.{key.replace('__', '.')}"
        writer.kv_data[0].pop(full, None)
        if value is not None:
            writer.add_key_value(full, value, {**VALUE_TYPES, str: GGUFValueType.STRING}[type(value)])
    for own, stored in tensors.items():
        if turned:
            own = re.sub("ffn_(up|down)", lambda found: f"ffn_{'down' if found[1] == 'up' else 'up'}", own)
        _add(writer, own, stored, kind)
    if TYPES[name] == "pixtral":
        embedding = next(each for full, each in whole.items() if full.endswith("embed_tokens.weight"))
        token = tokenizer_of(CASES[name]).token_to_id("[IMG_BREAK]")
        writer.add_tensor("v.token_embd.img_break", np.ascontiguousarray(embedding[token], np.float32))
    return _written(writer, path)


def _projector_tensors(name: str) -> Tensors:
    """Return the tensors of the tower of a case as the converter writes them."""
    config, _, tensors = _parts(name)
    vision, known, found = config["vision_config"], get_tensor_name_map(MODEL_ARCH.MMPROJ, 128), Tensors()
    for full, numbers in tensors.items():
        if "text_model" in full or "language_model" in full or full.startswith("lm_head"):
            continue
        library = full if full.startswith("model.vision_model") or "connector" in full else full.removeprefix("model.")
        if TYPES[name] in ("gemma3", "lfm2"):  # published checkpoints have SigLIP under one more name
            library = re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", library)
            library = library.replace("projection_weight", "projection.weight")
        stored = np.ascontiguousarray(numbers, np.float32)
        if TYPES[name] == "qwen3vl_merger":
            found |= _of_qwen(library, stored, vision, known)
            continue
        own = known.get_name(library, (".weight", ".bias"))
        assert own is not None, full
        if TYPES[name] == "pixtral" and re.search(r"\.[qk]_proj\.", full):
            stored = permuted(stored, vision["num_attention_heads"])
        if "soft_emb_norm" in full:
            stored = stored + 1
        if TYPES[name] == "lfm2" and full.endswith("patch_embedding.weight"):
            edge = vision["patch_size"]
            stored = np.ascontiguousarray(stored.reshape(-1, edge, edge, 3).transpose(0, 3, 1, 2))
        found[own] = stored
    return found


def _of_qwen(full: str, numbers: np.ndarray, vision: dict[str, Any], known: Any) -> Tensors:
    """Return what becomes of a tensor of Qwen3-VL: features of layers by the layer, patches by the frame."""
    merged = re.fullmatch(r"visual\.merger\.(?:norm|linear_fc(\d))\.(\w+)", full)
    if merged is not None:
        return {f"{'v.post_ln' if merged[1] is None else f'mm.{2 * int(merged[1]) - 2}'}.{merged[2]}": numbers}
    if full == "visual.patch_embed.proj.weight":
        frames = (np.ascontiguousarray(numbers[:, :, frame]) for frame in range(2))
        return dict(zip(("v.patch_embd.weight", "v.patch_embd.weight.1"), frames, strict=True))
    deep = re.fullmatch(r"visual\.deepstack_merger_list\.(\d+)(\..*)", full)
    if deep is not None:
        full = f"model.visual.deepstack_merger_list.{vision['deepstack_visual_indexes'][int(deep[1])]}{deep[2]}"
    own = known.get_name(full, (".weight", ".bias"))
    assert own is not None, full
    return {own: numbers}


_CLIP = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def _add_settings(writer: GGUFWriter, name: str, config: dict[str, Any], values: dict[str, Any]) -> None:
    """Add the metadata of a type of projector, and of its image processor."""
    vision, type = config["vision_config"], TYPES[name]
    usual = _CLIP if type in ("pixtral", "qwen3vl_merger") else ([0.5] * 3,) * 2
    writer.add_vision_image_mean(values.get("image_mean", usual[0]))
    deviation = values.get("image_std", usual[1])
    writer.add_vision_image_std(deviation if isinstance(deviation, list) else [deviation] * 3)
    if type == "pixtral":
        writer.add_vision_attention_layernorm_eps(1e-5)
        getattr(writer, f"add_vision_use_{vision.get('hidden_act', 'gelu')}")(True)
        if "spatial_merge_size" in config:
            writer.add_vision_spatial_merge_size(config["spatial_merge_size"])
        return
    writer.add_vision_attention_layernorm_eps(vision.get("layer_norm_eps", 1e-6))
    writer.add_vision_use_gelu(True)
    if type == "gemma3":
        side = vision["image_size"] // vision["patch_size"]
        writer.add_vision_projector_scale_factor(side // math.isqrt(config["mm_tokens_per_image"]))
    elif type == "lfm2":
        writer.add_vision_projector_scale_factor(config["downsample_factor"])
    elif type == "qwen3vl_merger":
        writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
        deep = vision.get("deepstack_visual_indexes", [])
        writer.add_vision_is_deepstack_layers([layer in deep for layer in range(vision["depth"])])
        for key, edge in (("min", "shortest_edge"), ("max", "longest_edge")):  # as ollama and some converters do
            writer.add_uint32(f"clip.vision.image_{key}_pixels", values["size"][edge])
    else:
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_vision_preproc_image_size(values["size"]["longest_edge"])


def text_of(name: str) -> dict[str, Any]:
    """Return the configuration of the text model of a case."""
    config = _parts(name)[0]
    deep = config["vision_config"].get("deepstack_visual_indexes", ())
    return {**config["text_config"], "n_deepstack_layers": len(deep)}


def write_text(name: str, path: Path) -> Path:
    """Write the text model of a case in float32, with its tokenizer."""
    kind = _ARCHITECTURES.get(name, "llama")
    writer = GGUFWriter(path, kind)
    _add_tokenizer(writer, name)
    if kind not in ("lfm2", "qwen35"):
        add_sizes(writer, text_of(name))
    tensors = _text_tensors(name, kind)
    for key, value in _text_settings(name, kind, tensors).items():
        writer.add_key_value(f"{kind}.{key}", value, VALUE_TYPES[type(value)])
    for full, numbers in tensors.items():
        writer.add_tensor(full, numbers)
    return _written(writer, path)


def _text_settings(name: str, kind: str, tensors: Tensors) -> dict[str, Any]:
    """Return the metadata of a text model that is not `llama`."""
    text = text_of(name)
    if kind in ("lfm2", "qwen35"):
        return hybrid_metadata(kind, text, tensors)
    if not kind.startswith("qwen3vl"):
        return {}
    rope = text["rope_parameters"]
    sections = {"rope.dimension_sections": [*rope["mrope_section"], 0], "rope.freq_base": rope["rope_theta"]}
    deep = {"n_deepstack_layers": text["n_deepstack_layers"]}
    if kind == "qwen3vl":
        return sections | deep
    counts = {"expert_count": text["num_local_experts"], "expert_used_count": text["num_experts_per_tok"]}
    return sections | deep | counts | {"expert_feed_forward_length": text["moe_intermediate_size"]}


def write_whole(name: str, path: Path) -> Path:
    """Write text model and tower of a case in one file, as ollama does."""
    return _write_gemma3(name, path) if TYPES[name] == "gemma3" else _write_mistral3(name, path)


def _write_gemma3(name: str, path: Path) -> Path:
    config, _, tensors = _parts(name)
    vision, text = config["vision_config"], config["text_config"]
    writer = GGUFWriter(path, "gemma3")
    _add_tokenizer(writer, name)
    for key, value in {
        "block_count": text["num_hidden_layers"],
        "attention.head_count": text["num_attention_heads"],
        "attention.head_count_kv": text["num_key_value_heads"],
        "attention.key_length": text["head_dim"],
        "attention.value_length": text["head_dim"],
        "attention.sliding_window": text["sliding_window"],
        "context_length": text["max_position_embeddings"],
        "embedding_length": text["hidden_size"],
        "feed_forward_length": text["intermediate_size"],
        "mm.tokens_per_image": config["mm_tokens_per_image"],
        "vision.block_count": vision["num_hidden_layers"],
        "vision.embedding_length": vision["hidden_size"],
        "vision.feed_forward_length": vision["intermediate_size"],
        "vision.attention.head_count": vision["num_attention_heads"],
        "vision.image_size": vision["image_size"],
        "vision.patch_size": vision["patch_size"],
        "vision.num_channels": 3,
    }.items():
        writer.add_uint32(f"gemma3.{key}", value)
    writer.add_float32("gemma3.vision.attention.layer_norm_epsilon", vision["layer_norm_eps"])
    for full, numbers in tensors.items():
        own, stored = full, np.ascontiguousarray(numbers, np.float32)
        for theirs, ours in _OLLAMA_GEMMA3:
            own = re.sub(theirs, ours, own)
        if not own.startswith("v.") and own.endswith("_norm.weight"):
            stored = stored + 1
        writer.add_tensor(own, stored)
    return _written(writer, path)


_OLLAMA_GEMMA3 = (
    *(("^(language_model.)?(model.)?lm_head", "output"), (r"^language_model\.model\.", "model.")),
    *((r"^model\.embed_tokens", "token_embd"), (r"^model\.norm", "output_norm"), (r"^model\.layers", "blk")),
    *((r"^vision_tower\.(embeddings\.)?", "v."), (r"encoder\.layers", "blk"), ("^multi_modal_projector", "mm")),
    *((r"self_attn\.([qkv])_(proj|norm)", r"attn_\1_\2"), (r"(attn_[qkv])_proj", r"\1")),
    *((r"self_attn\.(o|out)_proj", "attn_output"), (r"mlp\.(gate|up|down)_proj", r"ffn_\1")),
    *(("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm")),
    *(("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "post_ffw_norm")),
    ("input_projection_weight", "input_projection.weight"),
)


def _write_mistral3(name: str, path: Path) -> Path:
    config, _, tensors = _parts(name)
    vision = config["vision_config"]
    writer = GGUFWriter(path, "mistral3")
    add_sizes(writer, config["text_config"])
    _add_tokenizer(writer, name)
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


def _add_tokenizer(writer: GGUFWriter, name: str) -> None:
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


def _text_tensors(name: str, kind: str = "llama") -> Tensors:
    """Return the tensors of the text model of a case, as the converter writes them for an architecture."""
    tensors = {
        f"model.{own}".replace("model.lm_head", "lm_head"): numbers
        for full, numbers in _parts(name)[2].items()
        if not re.search("vision|connector|multi_modal|visual", full)
        for own in (re.sub(r"^(language_model\.)?(model\.)?(language_model\.|text_model\.)?(model\.)?", "", full),)
    }
    return converted(kind, text_of(name), tensors)


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
