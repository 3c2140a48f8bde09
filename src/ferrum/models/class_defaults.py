"""Values of fields that a `config.json` does not have, by architecture.

They are those of the configuration classes of `transformers`, which leave out of a file what equals them. The rows are
in `assets/class_defaults.json`, a line for each architecture. `tests/numeric/test_class_defaults.py` compares every row
with its class. False is left out, and null where no other family refuses the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import ferrum

Values = dict[str, Any]

_COMMON: Final[Values] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
"""Values that most classes have, and those of an architecture without a row."""

_TABLE: Final = Path(ferrum.__file__).parent / "assets" / "class_defaults.json"

CLASS_DEFAULTS: Final[Mapping[str, Values]] = {
    architecture: {**_COMMON, **row} for architecture, row in json.loads(_TABLE.read_text("utf-8")).items()
}
"""All values of an architecture's class that change results."""

_NULL: Final = frozenset(
    (
        *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "q_lora_rank", "n_shared_experts"),
        *("sliding_window", "attention_chunk_size", "attn_logit_softcapping", "final_logit_softcapping"),
        *("use_bias", "norm_topk_prob", "rope_interleave"),
    )
)
"""Fields whose null does not mean the class's value: it means none, no or a derived number, or it is refused."""

_QWEN3_VL: Final[Values] = {
    "max_position_embeddings": 128000,
    "rope_theta": 500000.0,
    "mrope_section": [24, 20, 20],
    "n_deepstack_layers": 3,
}

TYPE_DEFAULTS: Final[Mapping[str, Values]] = {
    "gemma4unified": {
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
    "qwen3vl": _QWEN3_VL,
    "qwen3vlmoe": {
        **_QWEN3_VL,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "experts_transposed": True,
        "tie_word_embeddings": True,
        "head_dim": None,
    },
}
"""What another class of an architecture has instead, by their `model_type` without underscores."""

ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "DeepseekV2ForCausalLM": {"num_experts": "n_routed_experts"},
    "DeepseekV3ForCausalLM": {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    "Ernie4_5_MoeForCausalLM": {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    "Glm4MoeForCausalLM": {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    "Glm4MoeLiteForCausalLM": {"num_local_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    "Gemma3ForCausalLM": {"_sliding_window_pattern": "sliding_window_pattern"},
    "GptOssForCausalLM": {"num_experts": "num_local_experts"},
    "MiniMaxM2ForCausalLM": {"num_experts": "num_local_experts"},
    "MixtralForCausalLM": {"num_experts": "num_local_experts"},
    "Qwen3MoeForCausalLM": {"num_local_experts": "num_experts"},
}
"""Other names of fields, and those that families read."""


def with_defaults(architecture: str, kind: str, values: Mapping[str, Any]) -> Values:
    """Return a configuration with the class's values of absent fields.

    Args:
        architecture: of the text model; an architecture without a row has what most have.
        kind: the `model_type`, without underscores and the ending of a text model's.
        values: the text model's `config.json`. Null counts as absent, except where the class lets it mean something.
    """
    present = {name: value for name, value in values.items() if value is not None or name in _NULL}
    for alias, name in ALIASES.get(architecture, {}).items():
        if alias in present:
            present.setdefault(name, present[alias])
    return {**CLASS_DEFAULTS.get(architecture, _COMMON), **TYPE_DEFAULTS.get(kind, {}), **present}
