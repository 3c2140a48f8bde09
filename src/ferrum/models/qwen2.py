"""Qwen2 and Qwen2.5 (Yang et al. 2024), and Qwen1.5-MoE and Qwen2-MoE."""

from __future__ import annotations

from typing import Any

from ferrum.kernels.op_attributes import Routing
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
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
