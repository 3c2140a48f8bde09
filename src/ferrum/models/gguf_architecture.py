"""`GgufArchitecture`: what the GGUF files of an architecture hold, as data, and what files have in common.

Each entry is in the file of its family, which adds it to `ARCHITECTURES` on import. Sources: the key and tensor lists
of the format's library, and the converters of llama.cpp for what they change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.models.tensor_names import LAYERS

Values = Mapping[str, Any]
"""Metadata of a file, by keys without the architecture before them."""

Derive = Callable[[Values, Collection[str], Values], dict[str, Any]]
"""Returns fields from the metadata, the names of the tensors, and the fields of `config.json` so far."""

KEYS: Final = {
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
"""Metadata keys of all architectures, without the architecture before them, and their fields of `config.json`."""

REQUIRED: Final = ("context_length", "embedding_length", "block_count", "attention.head_count")
"""Metadata keys that no file lacks."""

EPSILON: Final = "attention.layer_norm_epsilon"
RMS_EPSILON: Final = "attention.layer_norm_rms_epsilon"
"""Keys of the epsilon of norms; a file has the one of its architecture."""

ABSENT: Final = {"rope.freq_base": 10000.0}
"""Values of keys that a file of any architecture may lack."""

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping"), (0,)),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale", "expert_weights_scale"), (0, 1)),
    **dict.fromkeys(("expert_group_count", "expert_group_used_count"), (0, 1)),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale"), (0,)),
    **dict.fromkeys(("attention.temperature_scale", "attention.temperature_length"), (0,)),
    **dict.fromkeys(("attention.shared_kv_layers", "embedding_length_per_layer_input"), (0,)),
    **dict.fromkeys(("leading_dense_block_count", "moe_every_n_layers", "n_deepstack_layers"), (0,)),
    **dict.fromkeys(("rope.scaling.alpha", "rope.scaling.yarn_log_multiplier"), (0,)),
    **dict.fromkeys(("use_parallel_residual", "swin_norm"), (False,)),
    "expert_shared_feed_forward_length": (0,),
    "attention.causal": (True,),
}
"""Values with which a key has no effect, in architectures that do not read it."""

WITHOUT_EFFECT: Final = ("rope.scaling.finetuned", "vocab_size", "tensor_data_layout", "pooling_type")
"""Keys that change no logits in any architecture that does not name them."""

TOWER_KEYS: Final = ("vision.", "audio.", "mm.")
"""Beginnings of the keys of parts that see or hear, which ollama keeps in the file of the text model."""

TOWER_TENSORS: Final = ("v.", "a.", "mm.")
"""Beginnings of the names of their tensors."""

WINDOW: Final = {"attention.sliding_window": "sliding_window"}
"""The key of an architecture whose windows are read."""

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""Expert gating functions by their numbers in files."""

WIDTH, INNER = "feed_forward_length", "expert_feed_forward_length"
COUNTED: Final = ("expert_count", "expert_used_count")
BOTH: Final = (*COUNTED, INNER, WIDTH)
"""Keys that files with experts have; the last one is of layers without experts."""

LOCAL: Final = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
"""The keys of experts of several families."""

LAYER: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
}
"""Tensors of a layer and their names in the Hugging Face layout; those of all experts are one matrix."""

BARE: Final = {f"exp_probs_b.{kind}": "mlp.selection_bias" for kind in ("bias", "weight")}
"""Tensors of a layer by their whole names, and the names of their parameters. Files spell the bias in two ways."""

WHOLE: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Tensors outside of the layers."""


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What the files of an architecture hold.

    Attributes:
        name: of the Hugging Face architecture.
        model_type: its `model_type`.
        permuted: the converter has ordered the rows of q and k for rotation of adjacent pairs.
        parts: tensors of a layer whose names differ from `LAYER`.
        bare: further tensors as in `BARE`.
        whole: tensors outside of the layers, in addition to `WHOLE`.
        keys: further metadata keys, and their fields of `config.json`.
        ignored: metadata keys without effect.
        fixed: fields of `config.json` that files lack.
        flags: fields that say whether the file has a tensor, and its name.
        period: distance of layers without a window, in files without a list; None: files say nothing of layers.
        partial: field of the rotated numbers of a head as a share of it, or as a count; None: all are rotated.
        gating: the expert gating function, by number, if a file names one.
        log_multiplier: factor of YaRN's mscale in a file; None: files have none.
        required: metadata keys without which llama.cpp reads no file either, in addition to those of all architectures.
        absent: values of metadata keys that a file lacks, as llama.cpp assumes them.
        only: keys that are read with these values only.
        rope: field that holds the scaling of the rope.
        rope_fixed: fields of YaRN's scaling that files lack.
        recurrent: kind of the layers without attention, of which a list says that they have no KV heads; None: none is.
        decays: tensors of a layer whose numbers are -exp(x), so that none is positive.
        shifted: field of `config.json` that holds what the model adds to the weights of norms: 0 in files whose norms
            have it, 1 in others. Their mean decides, which is near 1 or near 0.
        heads: whether heads have one width, which keys and values share.
        derive: other fields.
    """

    name: str
    model_type: str
    permuted: bool = False
    parts: Mapping[str, str] = field(default_factory=dict)
    bare: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    period: int | None = None
    partial: str | None = None
    gating: int | None = None
    log_multiplier: float | None = None
    required: tuple[str, ...] = ()
    absent: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rope: str = "rope_scaling"
    rope_fixed: Mapping[str, Any] = field(default_factory=dict)
    recurrent: str | None = None
    decays: tuple[str, ...] = ()
    shifted: str | None = None
    heads: bool = True
    derive: Derive | None = None


ARCHITECTURES: Final[dict[str, GgufArchitecture]] = {}
"""Entries by GGUF's name of the architecture."""

VARIANTS: Final[dict[str, tuple[Callable[[Values, Collection[str]], bool], GgufArchitecture]]] = {}
"""By the same name another entry that a file may mean, after the test of its metadata and tensors that says so."""


def shared_names(name: str) -> dict[str, str]:
    """Return the names of a shared feed-forward's tensors."""
    return {f"ffn_{part}_shexp": f"mlp.{name}.{part}_proj" for part in ("gate", "up", "down")}


# ---- The names of GGUF tensors as those of the Hugging Face layout, by the entry of their architecture ----

ROPE_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Divisors of the rope's frequencies, as Llama 3.1 and longrope scale them."""


def hf_name(name: str, entry: GgufArchitecture) -> str | None:
    """Return a tensor's name in the Hugging Face layout, or None if it has none."""
    stem, _, kind = name.rpartition(".")
    whole = entry.whole.get(stem, WHOLE.get(stem))
    if whole is not None:
        return f"{whole}.{kind}" if kind in ("weight", "bias") else None
    block, part = layer_of(name), stem.removeprefix("blk.").partition(".")[2]
    if block is None:
        return None
    bare = {**BARE, **entry.bare}.get(f"{part}.{kind}")
    if bare is not None:
        return f"{LAYERS}.{block}.{bare}"
    named = entry.parts.get(part, LAYER.get(part))
    return f"{LAYERS}.{block}.{named}.{kind}" if named and kind in ("weight", "bias") else None


def layer_of(name: str) -> int | None:
    """Return the layer of a GGUF tensor, or None if it is in none."""
    block = name.removeprefix("blk.").partition(".")[0]
    return int(block) if name.startswith("blk.") and block.isascii() and block.isdecimal() else None


def hf_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor of the Hugging Face layout: matrices of experts are one, as their biases are."""
    if name.endswith(".shared_expert_gate.weight") and len(shape) == 1:
        return 1, *shape
    if name.endswith(".bias"):
        return (math.prod(shape),)
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape


def is_permuted(name: str) -> bool:
    """Return whether a tensor of the Hugging Face layout has rows that a permuting converter reorders."""
    return ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
