"""Gemma 4 (Gemma Team 2026)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.op_attributes import Activation, Routing
from ferrum.models.attention_spec import AttentionSpec, QkNorm
from ferrum.models.builder import Builder, Place
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec, Fused
from ferrum.models.families import FAMILIES, LAYER_CONFIGS, MODEL_TYPES
from ferrum.models.gemma import POST_NORMS, embedding_scale
from ferrum.models.gguf_architecture import ARCHITECTURES, INNER, WINDOW, GgufArchitecture, Values
from ferrum.models.llama import (
    FULL,
    SLIDING,
    Heads,
    activation_of,
    attention_of,
    decoder_of,
    heads_of,
    mlp_of,
    sliding_but_every,
)
from ferrum.models.rope import of_layers, rope_spec
from ferrum.models.spec import BlockSpec, BranchSpec, DecoderSpec, NormedSpec, sandwich
from ferrum.models.tensor_names import EMBEDDING, View
from ferrum.nn.block import LayerInput
from ferrum.nn.linear import Norm

# ---- Specification of per-layer embeddings as data ----

_TABLE: Final = "model.embed_tokens_per_layer.weight"


@dataclass(frozen=True, slots=True)
class LayerInputSpec:
    """What a layer adds for the token alone and for its embedding.

    Attributes:
        layers, layer: of the decoder, and which one this is.
        width: numbers of a token in a layer.
        vocab_size: tokens of the table.
        embedding_scale: of the decoder.
    """

    layers: int
    layer: int
    width: int
    vocab_size: int
    embedding_scale: float
    activation: Activation

    def build(self, make: Builder) -> LayerInput:
        """Return the part with its parameters."""
        hidden, width = make.hidden_size, self.width
        rows = slice(self.layer * width, (self.layer + 1) * width)
        places = {"per_layer_model_projection": Place("model.per_layer_model_projection", rows)}
        # The projection has a factor hidden^-0.5, which changes nothing in a norm but its epsilon.
        weight = make.norm_weight("model.per_layer_projection_norm.weight", width)
        return LayerInput(
            embedding=make.weights[EMBEDDING],
            embedding_scale=self.embedding_scale,
            table=make.shared(_TABLE, (self.vocab_size * self.layers, width), View((_TABLE,), width=width)),
            table_scale=width**0.5,
            layers=self.layers,
            layer=self.layer,
            projection=make.linear(("per_layer_model_projection",), (width,), hidden, places=places),
            norm=Norm(weight, make.norms.eps * hidden),
            gate=make.linear(("per_layer_input_gate",), (width,), hidden, activation=self.activation),
            output=make.linear(("per_layer_projection",), (hidden,), width),
        )


_OWN: Final = ("k_proj", "v_proj", "k_norm", "v_norm")
"""Parts of attention that layers have in files although they read the keys and values of others."""

LAYER_CONFIGS.add("Gemma4ForCausalLM")
MODEL_TYPES["gemma4_unified"] = "Gemma4ForCausalLM"

_STILL: Final = 1e29
"""Least divisor of the frequency of a pair that is not rotated."""


@FAMILIES.register("Gemma4ForCausalLM")
def gemma4(config: FamilyConfig) -> DecoderSpec:
    """Return sandwich norms with other heads in full layers, and perhaps experts with a dense feed-forward."""
    if config.section("rope_scaling") is not None:
        raise Unsupported("config.json: rope_scaling", "this family has a rope per kind of layer in rope_parameters")
    if config.values.get("use_bidirectional_attention") != "vision":  # of the tokens of images
        config.require("use_bidirectional_attention", None)
    count = config.num_layers()
    kinds = [*sliding_but_every(config, 6)[:-1], FULL]  # the last one is full, whatever `layer_types` says
    width = config.integer("hidden_size_per_layer_input", minimum=0)
    shared = config.integer("num_kv_shared_layers", 0, minimum=0, maximum=count - 1)
    own, first_reader = _own_heads(config, kinds), count - shared

    def layer(index: int) -> BlockSpec:
        reads = index >= first_reader
        attention = _attention(config, kinds[index], own[index], reads=reads)
        wide = 2 if reads and config.flag("use_double_wide_mlp") else 1
        activation = activation_of(config, "hidden_activation")
        mlp = mlp_of(config, intermediate_size=wide * config.integer("intermediate_size"), activation=activation)
        inputs: tuple[BranchSpec, ...] = ()
        if width:
            vocabulary = config.integer("vocab_size_per_layer_input")
            part = LayerInputSpec(count, index, width, vocabulary, embedding_scale(config), activation)
            inputs = (BranchSpec((("", part),), None, "post_per_layer_input_norm"),)
        if not config.flag("enable_moe_block"):
            return BlockSpec((*sandwich(attention, mlp).branches, *inputs), "layer_scalar")
        sides = (
            ("", NormedSpec("mlp", mlp, "pre_feedforward_layernorm", "post_feedforward_layernorm_1")),
            ("", NormedSpec("", _experts(config), None, "post_feedforward_layernorm_2")),
        )
        first = BranchSpec((("self_attn", attention),), "input_layernorm", "post_attention_layernorm")
        both = BranchSpec(sides, None, "post_feedforward_layernorm")
        return BlockSpec((first, both, *inputs), "layer_scalar")

    return decoder_of(
        "gemma4",
        config,
        map(layer, range(count)),
        embedding_scale=embedding_scale(config),
        softcap=config.optional_number("final_logit_softcapping"),
        given_token=config.integer("pad_token_id", 0, minimum=0) if width else None,
        ignored_names=tuple(
            f"model.layers.{i}.self_attn.{name}.*" for i in range(first_reader, count) for name in _OWN
        ),
    )


def _own_heads(config: FamilyConfig, kinds: list[str]) -> list[Heads]:
    """Return the heads of each layer: those of the model, or a full layer's own."""
    heads = heads_of(config)
    per_layer = config.values.get("per_layer_config")
    if per_layer is None:
        full: dict[str, Any] = {"head_dim": config.integer("global_head_dim")}
        if config.flag("attention_k_eq_v") and config.values.get("num_global_key_value_heads") is not None:
            full["num_key_value_heads"] = config.integer("num_global_key_value_heads")
        per_layer = {str(i): full for i, kind in enumerate(kinds) if kind == FULL}
    if not isinstance(per_layer, Mapping) or any(not str(key).isdecimal() for key in per_layer):
        raise CheckpointError("config.json: per_layer_config must have numbers of layers as keys")
    changes = {int(key): value for key, value in per_layer.items()}
    for value in changes.values():
        if unknown := set(value) - {"head_dim", "num_key_value_heads"}:
            raise Unsupported(f"config.json: per_layer_config with {min(unknown)}", "only heads may differ")
    layers = (FamilyConfig({**config.values, **changes.get(i, {})}) for i in range(len(kinds)))
    return [heads if i not in changes else heads_of(own) for i, own in enumerate(layers)]


def _attention(config: FamilyConfig, kind: str, heads: Heads, *, reads: bool) -> AttentionSpec:
    bias = config.flag("attention_bias")
    return attention_of(
        heads,
        rope=rope_spec(of_layers(config, kind), heads.head_dim, partial=True),
        window=config.optional_integer("sliding_window") if kind == SLIDING else None,
        qk_norm=QkNorm(),
        v_norm=True,
        scale=1.0,
        causal=kind == FULL,  # the rows of an image see each other in sliding layers alone
        keys_as_values=kind == FULL and config.flag("attention_k_eq_v"),
        reuses=reads,
        bias=bias,
        output_bias=bias,
    )


def _experts(config: FamilyConfig) -> ExpertsSpec:
    return ExpertsSpec(
        Routing(config.integer("num_experts"), config.integer("top_k_experts"), renormalise=True),
        config.integer("moe_intermediate_size"),
        activation_of(config, "hidden_activation"),
        router="router.proj",
        expert_scale="router.per_expert_scale",
        fused=Fused(),
        norm="pre_feedforward_layernorm_2",
        router_norm="router.scale",
    )


def _derived(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the fields of Gemma 4: other heads in full layers, which have a proportional rope, and wider layers."""
    kinds, count = config["layer_types"], config["num_hidden_layers"]
    full = [kind == "full_attention" for kind in kinds]
    heads = _per_layer(values, "attention.head_count_kv", count)
    widths = _per_layer(values, "feed_forward_length", count)
    shared = count - config.get("num_kv_shared_layers", 0)
    for key in ("expert_used_count", INNER) if values.get("expert_count") else ():
        if not values.get(key):
            raise CheckpointError(f"GGUF metadata has no gemma4.{key}")
    for suffix in ("", "_swa"):
        width, value = (values.get(f"attention.{part}_length{suffix}") for part in ("key", "value"))
        if value not in (None, width):
            reason = f"keys have {width!r} numbers, and values must have the same"
            raise Unsupported(f"GGUF metadata gemma4.attention.value_length{suffix}={value!r}", reason)
    own = {each for each, whole in zip(heads, full, strict=True) if not whole}
    whole_heads = {each for each, whole in zip(heads, full, strict=True) if whole}
    wide = [width != widths[0] for width in widths]
    doubled = wide == [i >= shared for i in range(count)] and set(widths) == {widths[0], 2 * widths[0]}
    if len(own) != 1 or len(whole_heads) != 1 or (any(wide) and not doubled):
        raise Unsupported("GGUF metadata gemma4.feed_forward_length or head_count_kv", "layers differ in another way")
    factors = (config.get("rope_scaling") or {}).get("factors") or [1.0]
    turned = sum(factor == 1 for factor in factors)
    rest = factors[turned:]
    if any(factor != 1 for factor in factors[:turned]) or any(factor < _STILL for factor in rest):
        raise Unsupported("GGUF tensor rope_freqs.weight", "only a rope of the first pairs is read for this model")
    theta = config["rope_theta"]
    values_of_full = [f"blk.{i}.attn_v.weight" in tensors for i in range(min(shared, count)) if full[i]]
    return {
        "head_dim": values["attention.key_length_swa"],
        "global_head_dim": values["attention.key_length"],
        "num_key_value_heads": own.pop(),
        "num_global_key_value_heads": whole_heads.pop(),
        "attention_k_eq_v": not any(values_of_full),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": doubled,
        "enable_moe_block": bool(values.get("expert_count")),
        "rope_scaling": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": values.get("rope.freq_base_swa", 10000.0)},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": theta,
                "partial_rotary_factor": turned / len(factors),
            },
        },
    }


def _per_layer(values: Values, key: str, count: int) -> list[int]:
    """Return a key's number of each layer; files have one for all or a list."""
    found = values.get(key)
    numbers = found[:count] if isinstance(found, list) else [found] * count
    integers = [each for each in numbers if isinstance(each, int)]
    if len(integers) != count or len(numbers) != count:
        raise Unsupported(f"GGUF metadata {key}={found!r}", f"block_count needs {count} numbers")
    return integers


ARCHITECTURES["gemma4"] = GgufArchitecture(
    "Gemma4ForCausalLM",
    "gemma4_text",
    parts={
        **POST_NORMS,
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "ffn_gate_inp": "router.proj",
        **{f"ffn_{part}_exps": f"experts.{part}_proj" for part in ("gate", "up", "down", "gate_up")},
    },
    bare={
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
    },
    whole={
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
    },
    keys={
        **WINDOW,
        "final_logit_softcapping": "final_logit_softcapping",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        INNER: "moe_intermediate_size",
    },
    ignored=(
        *("attention.key_length_swa", "attention.value_length_swa", "rope.freq_base_swa"),
        *("rope.dimension_count", "rope.dimension_count_swa"),
    ),
    required=(
        *("attention.sliding_window", "attention.sliding_window_pattern", "embedding_length_per_layer_input"),
        *("attention.key_length_swa", "attention.value_length_swa"),
    ),
    absent={"final_logit_softcapping": 30.0},
    period=6,
    heads=False,
    derive=_derived,
)
