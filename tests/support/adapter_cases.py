"""The kinds of adapters that PEFT writes, on tiny models of several families."""

from __future__ import annotations

from typing import Any

from adapter_kit import LENGTH, AdapterCase
from family_twin import MODELS
from tiny import CASES, Case, tokens_of

BASES: dict[str, Case] = {**MODELS, **{case.name: case for case in CASES}}

ALL: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
ATTENTION: dict[str, Any] = {"r": 3, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}
EXPERTS: dict[str, Any] = {
    **ATTENTION, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}  # fmt: skip
DELTA = ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"]
TIED, UNTIED = "qwen2-tied-mha", "qwen3"


def _case(name: str, model: str, config: dict[str, Any], **others: Any) -> AdapterCase:
    return AdapterCase(name, BASES[model], {**config, **others})


NORM_NAMES = ["norm", "layernorm_1", "layernorm_2"]
"""Ends of the names of all norms."""


def norms_of(model: str, **others: Any) -> AdapterCase:
    """Return an adapter that replaces every norm of a model."""
    return _case(f"norms of {model}", model, ATTENTION, target_modules=["o_proj"], modules_to_save=NORM_NAMES, **others)


DENSE = (
    _case("all-linear", "qwen3", ALL),
    _case("biases of the base", "llama-linear", ALL),
    _case("float alpha", TIED, ALL, lora_alpha=2.5),
    _case("rslora", "mistral", ALL, r=9, use_rslora=True),
    _case("rank 1", "qwen3", ATTENTION, r=1),
    _case("rank above the width", "llama3", ATTENTION, r=64),
    _case("rank pattern", "llama3", ALL, rank_pattern={"q_proj": 7, "^model.layers.1.mlp.up_proj": 3}),
    _case("alpha pattern", "llama3", ALL, alpha_pattern={r"layers\.0\.mlp\..*": 3, "k_proj": 1.5}),
    _case("patterns and rslora", "llama2", ALL, rank_pattern={"o_proj": 2}, alpha_pattern={"o": 1}, use_rslora=True),
    _case("layers to transform", "llama2", ATTENTION, layers_to_transform=[1]),
    _case("regular expression", "llama2", ATTENTION, target_modules=r".*layers\.0.*(up|down)_proj"),
    _case("fan_in_fan_out", "llama2", ALL, fan_in_fan_out=True),
    _case("gemma3", "gemma3", ALL),
    _case("phi3, fused", "phi3", ALL),
    _case("phi3, partial rotation", "phi3-partial", ALL),
    _case("glm4, fused and interleaved", "glm4", ALL),
    _case("starcoder2, renamed", "starcoder2", ALL),
    _case("cohere2", "cohere2", ALL),
    _case("granite", "granite", ALL),
    _case("olmo2", "olmo2", ALL),
    _case("ernie, halves", "ernie", ALL),
    _case("gated deltanet", "qwen3.5", ALL),
    _case("gated deltanet by key head", "qwen3-next", ATTENTION, target_modules=DELTA, use_dora=True),
    _case("short convolutions", "lfm2-bias", ALL),
    _case("lora_bias", "llama-linear", ALL, lora_bias=True),
    _case("lora_bias without biases", "llama2", ALL, lora_bias=True),
    _case("bias all", "llama-linear", ATTENTION, bias="all"),
    _case("bias lora_only", "llama-linear", ATTENTION, bias="lora_only"),
    _case("bias all, fused", "starcoder2-windows", ATTENTION),
    _case("dora", "qwen3", ALL, use_dora=True),
    _case("dora with biases", "llama-linear", ALL, use_dora=True),
    _case("dora and replaced biases", "llama-linear", ATTENTION, use_dora=True, bias="all"),
    _case("dora and rslora", "phi3", ALL, use_dora=True, use_rslora=True),
    _case("gaussian initialisation", "qwen3", ALL, init_lora_weights="gaussian"),
    _case("alora", "llama2", ALL, alora_invocation_tokens=tokens_of(BASES["llama2"], LENGTH)[9:11]),
    _case("alora that is not invoked", "llama2", ALL, alora_invocation_tokens=[5, 5, 5, 5]),
)

EMBEDDINGS = (
    _case("embedding", UNTIED, ATTENTION, target_modules=["embed_tokens", "q_proj"]),
    _case("embedding of a tied head", TIED, ATTENTION, target_modules=["embed_tokens"]),
    _case("scaled embedding", "gemma3", ATTENTION, target_modules=["embed_tokens"]),
    _case("head", UNTIED, ATTENTION, target_modules=["lm_head"]),
    _case("tied head", TIED, ATTENTION, target_modules=["lm_head", "o_proj"]),
    _case("head with a softcap", "gemma2", ATTENTION, target_modules=["lm_head"]),
    _case("scaled head", "granite", ATTENTION, target_modules=["lm_head"]),
    _case("weights tied", TIED, ATTENTION, target_modules=["embed_tokens"], ensure_weight_tying=True),
    _case("dora of an embedding", UNTIED, ATTENTION, target_modules=["embed_tokens", "q_proj"], use_dora=True),
    _case("dora of a tied embedding", TIED, ATTENTION, target_modules=["embed_tokens"], use_dora=True, use_rslora=True),
    _case("dora of a scaled embedding", "gemma3", ATTENTION, target_modules=["embed_tokens"], use_dora=True),
    _case("saved embedding", UNTIED, ATTENTION, modules_to_save=["embed_tokens"]),
    _case("saved embedding and head", UNTIED, ATTENTION, modules_to_save=["embed_tokens", "lm_head"]),
    _case("saved embedding of a tied head", TIED, ATTENTION, modules_to_save=["embed_tokens"]),
    _case("saved tied", TIED, ATTENTION, modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    _case("saved scaled embedding", "gemma3", ATTENTION, modules_to_save=["embed_tokens"]),
    _case("saved linear layer", "phi3", ATTENTION, target_modules=["o_proj"], modules_to_save=["qkv_proj"]),
    _case("token rows", UNTIED, ATTENTION, trainable_token_indices=[7, 3, 60]),
    _case("token rows of a tied head", TIED, ATTENTION, trainable_token_indices=[7, 3, 60]),
    _case("token rows, scaled", "gemma3", ATTENTION, trainable_token_indices=[1, 90]),
    _case("token rows of both", UNTIED, ATTENTION, trainable_token_indices={"embed_tokens": [7, 3], "lm_head": [9]}),
    _case("token rows of both, tied", TIED, ATTENTION, trainable_token_indices={"embed_tokens": [7], "lm_head": [9]}),
    _case("token rows and head", UNTIED, ATTENTION, target_modules=["lm_head"], trainable_token_indices=[5]),
    _case("token rows and tied head", TIED, ATTENTION, target_modules=["lm_head"], trainable_token_indices=[5]),
)

NORMS = (
    _case("bias all, norms", "starcoder2", ATTENTION, bias="all"),
    norms_of("gemma3", use_dora=True),
    *map(
        norms_of, ("qwen3", "llama2", "phi3", "glm4", "granite", "olmo2", "exaone4", "cohere2", "starcoder2", "hunyuan")
    ),
    *map(norms_of, ("gemma2", "gemma4-shared", "gemma4-experts", "minimax-m2", "deepseek-v2", "deepseek-v3", "llama4")),
)

SPARSE = (
    _case("experts of qwen3", "qwen3-moe", EXPERTS),
    _case("experts of qwen3, gate_up alone", "qwen3-moe", EXPERTS, target_parameters=["mlp.experts.gate_up_proj"]),
    _case("experts of qwen3, down alone", "qwen3-moe", EXPERTS, target_parameters=["mlp.experts.down_proj"]),
    _case("experts and their ranks", "qwen3-moe", EXPERTS, rank_pattern={"experts.gate_up_proj": 5}, use_rslora=True),
    _case("experts of mixtral", "mixtral", EXPERTS),
    _case("experts of gpt-oss", "gpt-oss", EXPERTS),
    _case("experts of llama4", "llama4", EXPERTS, target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    _case(
        "experts of granite", "granite-moe", EXPERTS, target_parameters=["input_linear.weight", "output_linear.weight"]
    ),
    _case("experts of glm4", "glm4-moe", EXPERTS),
    _case("experts of minimax", "minimax-m2", EXPERTS),
    _case("experts of ernie", "ernie-moe", EXPERTS),
    _case("experts of deepseek", "deepseek-v2", {**EXPERTS, "target_modules": ["o_proj"]}),
    _case("experts of gemma4", "gemma4-experts", EXPERTS, target_parameters=["experts.gate_up_proj"]),
    _case("gemma4 with inputs of layers", "gemma4-shared", ALL),
    _case("shared expert", "qwen2-moe", ATTENTION, target_modules=["up_proj", "down_proj"]),
    _case("router", "qwen3-moe", EXPERTS, target_parameters=["gate.weight"]),
    _case("latent attention", "deepseek-v3", ALL),
    _case("latent attention, halves", "deepseek-v3-halves", ALL),
)
