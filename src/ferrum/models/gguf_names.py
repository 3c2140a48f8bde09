"""GGUF metadata and tensor names as those of the Hugging Face layout, one entry for each architecture.

A GGUF model thus gives the same `config.json` and the same parameters as its checkpoint. A key that changes arithmetic
and that no entry understands is refused. Sources: the key list of the format's specification, and the converter of
llama.cpp for what it changes in tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.tensor_names import LAYERS

_LAYER: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

ROPE_FACTORS: Final = "rope_freqs.weight"
"""Divisors of the rope's frequencies, as Llama 3.1 scales them."""

_KEYS: Final = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""Metadata keys, without the architecture before them, and their fields of `config.json`."""

_READ_HERE: Final = {
    "attention.value_length",
    "rope.dimension_count",
    "vocab_size",
    "attention.sliding_window",
    "rope.scaling.type",
}
_SCALING: Final = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
"""Metadata keys of rope scaling, and their names in `config.json`."""

_WITHOUT_EFFECT: Final = {"rope.scaling.finetuned"}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What GGUF files of an architecture hold.

    Attributes:
        name: of the Hugging Face architecture.
        model_type: its `model_type`.
        permuted: the converter has ordered the rows of q and k for rotation of adjacent pairs.
    """

    name: str
    model_type: str
    permuted: bool = False


ARCHITECTURES: Final = {
    "llama": GgufArchitecture("LlamaForCausalLM", "llama", permuted=True),
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM", "qwen3"),
}
"""Architectures by GGUF's name. Mistral's files call themselves llama."""


def architecture_of(metadata: Mapping[str, Any]) -> tuple[str, GgufArchitecture]:
    """Return GGUF's name of the architecture and its entry. Raises CheckpointError or Unsupported."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"general.architecture must be a name, not {name!r}")
    if name not in ARCHITECTURES:
        raise Unsupported(f"GGUF architecture {name!r}", f"known: {', '.join(sorted(ARCHITECTURES))}")
    return name, ARCHITECTURES[name]


def hf_config(metadata: Mapping[str, Any], tensors: Collection[str], vocab_size: int) -> dict[str, Any]:
    """Return the `config.json` of a GGUF model.

    Args:
        metadata: of the file.
        tensors: names of its tensors.
        vocab_size: rows of the embedding.

    Raises:
        CheckpointError: a key is missing.
        Unsupported: the architecture, or a key that changes arithmetic.
    """
    prefix, known = architecture_of(metadata)
    values = {key.removeprefix(f"{prefix}."): value for key, value in metadata.items() if key.startswith(f"{prefix}.")}
    understood = {*_KEYS, *_READ_HERE, *_SCALING, *_WITHOUT_EFFECT}
    for key, value in values.items():
        if key not in understood:
            raise Unsupported(
                f"GGUF metadata {prefix}.{key}={value!r}", "this key is not understood and may change results"
            )
    config: dict[str, Any] = {theirs: values[ours] for ours, theirs in _KEYS.items() if ours in values}
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        raise CheckpointError(f"{prefix}.attention.head_count and {prefix}.embedding_length must be numbers")
    head_dim = config.setdefault("head_dim", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if values.get(key, head_dim) != head_dim:
            raise Unsupported(f"GGUF metadata {prefix}.{key}={values[key]}", f"heads have {head_dim} numbers")
    if values.get("attention.sliding_window"):
        raise Unsupported(
            f"GGUF metadata {prefix}.attention.sliding_window", "windows are not read from GGUF files yet"
        )
    scaling = _rope_scaling(prefix, values)
    return {
        "architectures": [known.name],
        "model_type": known.model_type,
        "vocab_size": vocab_size,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        **config,
        **({"rope_scaling": scaling} if scaling else {}),
    }


def _rope_scaling(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope scaling as `config.json` spells it; empty without any."""
    kind = values.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise Unsupported(f"GGUF metadata {prefix}.rope.scaling.type={kind!r}", "linear and yarn are read")
    return {"rope_type": kind, **{theirs: values[ours] for ours, theirs in _SCALING.items() if ours in values}}


def hf_name(name: str) -> str | None:
    """Return a tensor's name in the Hugging Face layout, or None if it has none."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    block, _, part = stem.removeprefix("blk.").partition(".")
    if not stem.startswith("blk.") or not block.isdecimal() or part not in _LAYER:
        return None
    return f"{LAYERS}.{int(block)}.{_LAYER[part]}.{kind}"


def is_permuted(name: str) -> bool:
    """Return whether a tensor of the Hugging Face layout has rows that a permuting converter reorders."""
    return ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
