"""Mistral (Jiang et al. 2023), Ministral, Ministral 3 and Mixtral (Jiang et al. 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ferrum.kernels.op_attributes import Routing
from ferrum.models.attention_spec import Temperature
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, COUNTED, LOCAL, VARIANTS, GgufArchitecture
from ferrum.models.llama import activation_of, layer_windows, llama_like
from ferrum.models.rope import rope_section
from ferrum.models.spec import DecoderSpec

MIXTRAL_NAMES: Final = (
    (r"(layers\.\d+)\.mlp\.", r"\1.block_sparse_moe."),
    (r"(experts\.\d+)\.gate_proj\.", r"\1.w1."),
    (r"(experts\.\d+)\.up_proj\.", r"\1.w3."),
    (r"(experts\.\d+)\.down_proj\.", r"\1.w2."),
)
"""What Mixtral's checkpoints call the tensors of experts."""

_TOWERS_KEYS: Final = "image_token_index", "spatial_merge_size"
"""Keys of the tower in files of ollama, which it reads itself (`gguf_pixtral.py`)."""

ARCHITECTURES["mistral3"] = GgufArchitecture(
    "MistralForCausalLM", "mistral", permuted=True, fixed={"sliding_window": None}, ignored=_TOWERS_KEYS
)
VARIANTS["mistral3"] = (
    lambda values, _: bool(values.get("attention.temperature_scale")),
    GgufArchitecture("Ministral3ForCausalLM", "ministral3", permuted=True, log_multiplier=1.0, rope="rope_parameters"),
)
VARIANTS["llama"] = (  # what Mistral's files call themselves, too
    lambda values, _: bool(values.get("expert_count")),
    GgufArchitecture(
        "MixtralForCausalLM", "mixtral", permuted=True, keys=LOCAL, fixed={"sliding_window": None}, required=COUNTED
    ),
)


@FAMILIES.register("MistralForCausalLM")
@FAMILIES.register("MinistralForCausalLM")
def mistral(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with a sliding window in all layers, or in those of `layer_types` (Ministral)."""
    return llama_like("mistral", config, windows=layer_windows(config, config.optional_integer("sliding_window"), 0))


@FAMILIES.register("Ministral3ForCausalLM")
def ministral3(config: FamilyConfig) -> DecoderSpec:
    """Return Llama whose queries have a factor that grows with their position."""
    rope, _ = rope_section(config)
    beta, temperature = rope.optional_number("llama_4_scaling_beta"), None
    if beta is not None:
        temperature = Temperature(beta, rope.integer("original_max_position_embeddings"))
    windows = (config.optional_integer("sliding_window"),) * config.num_layers()
    return llama_like("ministral3", config, windows=windows, temperature=temperature)


@FAMILIES.register("MixtralForCausalLM")
def mixtral(config: FamilyConfig) -> DecoderSpec:
    """Return Mistral with experts whose two weights are renormalised."""
    routing = Routing(config.integer("num_local_experts"), config.integer("num_experts_per_tok"), renormalise=True)
    experts = ExpertsSpec(routing, config.integer("intermediate_size"), activation_of(config))
    windows = (config.optional_integer("sliding_window"),) * config.num_layers()
    mlps = [experts] * config.num_layers()
    spec = llama_like("mixtral", config, windows=windows, mlps=mlps)
    return replace(spec, renames=MIXTRAL_NAMES)
