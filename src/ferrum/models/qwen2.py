"""Qwen2 and Qwen2.5 (Yang et al. 2024), and Qwen1.5-MoE and Qwen2-MoE."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from ferrum.kernels.op_attributes import Routing
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import (
    ARCHITECTURES,
    COUNTED,
    INNER,
    SOFTMAX,
    GgufArchitecture,
    Values,
    shared_names,
)
from ferrum.models.llama import (
    FULL,
    SLIDING,
    activation_of,
    layer_types,
    llama_like,
    mixed_windows,
    mlp_of,
    used_window,
)
from ferrum.models.spec import DecoderSpec, MlpSpec


@FAMILIES.register("Qwen2ForCausalLM")
def qwen2(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with biases on q, k and v."""
    return llama_like("qwen2", config, windows=mixed_windows(config), bias=True)


@FAMILIES.register("Qwen2MoeForCausalLM")
def qwen2_moe(config: FamilyConfig) -> DecoderSpec:
    """Return Qwen2 with experts, and a shared feed-forward that has a gate."""
    window, last = used_window(config), config.integer("max_window_layers", minimum=0)
    default = (SLIDING if i % 2 == 0 and i < last and window else FULL for i in range(config.num_layers()))
    windows = tuple(window if kind == SLIDING else None for kind in layer_types(config, default))
    mlps = sparse_layers(
        config,
        shared_gate="shared_expert_gate",
        shared_name="shared_expert",
        shared=MlpSpec(config.integer("shared_expert_intermediate_size"), activation_of(config)),
    )
    return llama_like("qwen2-moe", config, windows=windows, bias=config.flag("qkv_bias"), mlps=mlps)


def sparse_layers(config: FamilyConfig, **fields: Any) -> list[PartSpec]:
    """Return the feed-forward of each layer, by `decoder_sparse_step` and `mlp_only_layers`.

    A softmax over all experts chooses, renormalised with `norm_topk_prob`; `fields` are others of `ExpertsSpec`.
    """
    dense, count = mlp_of(config), config.integer("num_experts", minimum=0)
    if not count:
        return [dense] * config.num_layers()
    routing = Routing(count, config.integer("num_experts_per_tok"), renormalise=config.flag("norm_topk_prob"))
    experts = ExpertsSpec(routing, config.integer("moe_intermediate_size"), activation_of(config), **fields)
    step, only = config.integer("decoder_sparse_step"), config.integers("mlp_only_layers") or ()
    return [dense if i in only or (i + 1) % step else experts for i in range(config.num_layers())]


def expert_widths(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the width of Qwen's experts, which older files lack: a share of the model's."""
    inner = config.get("intermediate_size")
    width = values.get(INNER) or inner // config["num_experts_per_tok"]
    return {"intermediate_size": inner or width, "moe_intermediate_size": width}


def _widths(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the widths of Qwen2-MoE, whose shared feed-forward has the model's width in older files."""
    shared = values.get("expert_shared_feed_forward_length") or config["intermediate_size"]
    return {**expert_widths(values, tensors, config), "shared_expert_intermediate_size": shared}


ARCHITECTURES["qwen2"] = GgufArchitecture("Qwen2ForCausalLM", "qwen2")
EXPERTS_ENTRY: Final = GgufArchitecture(
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    parts={**shared_names("shared_expert"), "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
    keys={
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        INNER: "moe_intermediate_size",
    },
    ignored=("expert_shared_feed_forward_length",),
    fixed={"norm_topk_prob": False},
    required=COUNTED,
    gating=SOFTMAX,
    derive=_widths,
)
ARCHITECTURES["qwen2moe"] = EXPERTS_ENTRY
