"""Qwen3 and Qwen3-MoE (Yang et al. 2025), also as the text models of Qwen3-VL."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from ferrum.core.errors import CheckpointError
from ferrum.models.attention_spec import QkNorm
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import Fused
from ferrum.models.families import FAMILIES, MODEL_TYPES
from ferrum.models.gguf_architecture import ARCHITECTURES, GgufArchitecture, Values
from ferrum.models.gguf_rope import SECTIONS
from ferrum.models.llama import heads_of, llama_like, mixed_windows, used_window
from ferrum.models.qwen2 import EXPERTS_ENTRY, expert_widths, sparse_layers
from ferrum.models.rope import rope_spec, with_axes
from ferrum.models.spec import DecoderSpec

ARCHITECTURES["qwen3"] = GgufArchitecture("Qwen3ForCausalLM", "qwen3")
ARCHITECTURES["qwen3moe"] = replace(
    EXPERTS_ENTRY,
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    parts={},
    ignored=(),
    fixed={"norm_topk_prob": True},
    derive=expert_widths,
)

_DEEP: Final = "n_deepstack_layers"


def _sees(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the widths of experts, if a file of Qwen3-VL has any. Raises CheckpointError without sections."""
    if "mrope_section" not in config:
        raise CheckpointError(f"GGUF metadata has no {' or '.join(SECTIONS)}, which says how images turn the rope")
    return expert_widths(values, tensors, config) if "num_experts" in config else {}


for _kind in ("qwen3", "qwen3moe"):
    _entry = ARCHITECTURES[_kind]
    ARCHITECTURES[f"qwen3vl{_kind.removeprefix('qwen3')}"] = replace(
        _entry, keys={**_entry.keys, _DEEP: _DEEP}, absent={_DEEP: 0}, ignored=SECTIONS, derive=_sees
    )

MODEL_TYPES["qwen3_vl_text"] = "Qwen3ForCausalLM"
MODEL_TYPES["qwen3_vl_moe_text"] = "Qwen3MoeForCausalLM"


@FAMILIES.register("Qwen3ForCausalLM")
def qwen3(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with a norm on each head of q and k."""
    return _qwen3("qwen3", config, mixed_windows(config))


@FAMILIES.register("Qwen3MoeForCausalLM")
def qwen3_moe(config: FamilyConfig) -> DecoderSpec:
    """Return Qwen3 with experts; a window is that of all layers. Files of Qwen3-VL have experts transposed."""
    windows = (used_window(config),) * config.num_layers()
    fused = Fused(transposed=True) if config.flag("experts_transposed") else None
    return _qwen3("qwen3-moe", config, windows, mlps=sparse_layers(config, fused=fused))


def _qwen3(family: str, config: FamilyConfig, windows: tuple[int | None, ...], **fields: Any) -> DecoderSpec:
    bias, rope = config.flag("attention_bias"), with_axes(rope_spec(config, heads_of(config).head_dim), config)
    common: dict[str, Any] = {"windows": windows, "qk_norm": QkNorm(), "bias": bias, "output_bias": bias, "rope": rope}
    spec = llama_like(family, config, **common, **fields)
    deep = config.integer(_DEEP, 0, minimum=0)
    return replace(spec, deep_features=deep, rotates_by_grid=bool(rope.axes))
