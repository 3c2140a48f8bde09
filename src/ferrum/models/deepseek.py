"""DeepSeek V2 and V3 (DeepSeek-AI 2024), Kimi-K2, and GLM-4.7-Flash, which share latent attention."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.kv_shape import KvShape
from ferrum.kernels.group_weights import PANEL
from ferrum.kernels.op_attributes import AttentionShape, Routing
from ferrum.models.attention_spec import RopeSpec
from ferrum.models.builder import Builder, PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES, MODEL_TYPES
from ferrum.models.gguf_architecture import (
    ARCHITECTURES,
    BOTH,
    SIGMOID,
    SOFTMAX,
    VARIANTS,
    GgufArchitecture,
    Values,
    shared_names,
)
from ferrum.models.glm import ROUTED, grouped_experts
from ferrum.models.llama import activation_of, decoder_of, mlp_of, norms_of
from ferrum.models.rank_cuts import cut_heads
from ferrum.models.rope import rope_section, rope_spec
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm
from ferrum.models.tensor_names import Runs, View
from ferrum.nn.attention import LatentAttention
from ferrum.nn.linear import Linear, NamedWeight, Norm, Starts

# ---- Multi-head latent attention (DeepSeek-V2, section 2.1) as data ----


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Latent attention: the pool keeps a normed latent vector and one rotated key per token, for all heads.

    Attributes:
        num_heads: query heads.
        nope_dim, rope_dim: numbers of a head's query without and with a rotation.
        value_dim: numbers of a head's value.
        latent_dim: numbers of the latent vector.
        rope: frequencies of `rope_dim` numbers.
        scale: factor of q . k.
        q_rank: width of a low-rank query projection (section 2.1.2); None: there is none.
        norm_eps: of the norms of the latent vector and the low-rank query.
    """

    num_heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_dim: int
    rope: RopeSpec
    scale: float
    q_rank: int | None = None
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, size in (("kv_lora_rank", self.latent_dim), ("v_head_dim", self.value_dim)):
            if size % PANEL:
                raise Unsupported(f"latent attention with {name} {size}", f"it must be a multiple of {PANEL}")

    def stored(self) -> KvShape:
        """Return what a token stores in the KV pool: a key, of which its value is a part."""
        return KvShape(1, self.latent_dim + self.rope_dim, 0)

    def build(self, make: Builder) -> LatentAttention:
        """Return the part with its parameters."""
        heads, latent = self.num_heads, self.latent_dim
        starts = None if make.ranks.count == 1 else cut_heads(make.ranks, make.prefix, heads, heads).queries
        own = slice(0, heads) if starts is None else make.ranks.own(starts)
        inputs: tuple[NamedWeight, ...] = self._latent(make)
        low_norm = queries = None
        if self.q_rank is None:
            inputs = (*self._queries(make, "q_proj", make.hidden_size, own), *inputs)
        else:
            inputs = (make.matrix("q_a_proj.weight", (self.q_rank, make.hidden_size)), *inputs)
            low_norm = Norm(make.norm_weight("q_a_layernorm.weight", self.q_rank), self.norm_eps)
            queries = Linear(self._queries(make, "q_b_proj", self.q_rank, own))
        expanded, whole = ("kv_b_proj.weight",), self.nope_dim + self.value_dim
        key_rows, value_rows = Runs(heads, whole, 0, self.nope_dim), Runs(heads, whole, self.nope_dim, self.value_dim)
        return LatentAttention(
            inputs=Linear(inputs),
            low_norm=low_norm,
            queries=queries,
            latent_norm=Norm(make.norm_weight("kv_a_layernorm.weight", latent), self.norm_eps),
            keys=make.matrix(
                "k_b_proj.weight",
                (heads * latent, self.nope_dim),
                View(expanded, key_rows, transposed=heads),
                part=self._part(make, own, latent),
            ),
            values=make.matrix(
                "v_b_proj.weight",
                (heads * self.value_dim, latent),
                View(expanded, value_rows),
                part=self._part(make, own, self.value_dim),
            ),
            output=make.linear(("o_proj",), (make.hidden_size,), heads * self.value_dim),
            shape=self._shape(make, own.stop - own.start),
            rope=make.rope(self.rope.frequencies, self.rope.scaling),
            join=self._join(starts),
        )

    def _shape(self, make: Builder, heads: int) -> AttentionShape:
        key = self.latent_dim + self.rope_dim
        return AttentionShape(*make.slot(self), heads, 1, key, self.scale, value_dim=self.latent_dim)

    def _join(self, starts: Starts | None) -> Starts | None:
        """Return where the values of the heads of each rank begin."""
        return None if starts is None else tuple(head * self.value_dim for head in starts)

    def _part(self, make: Builder, heads: slice, width: int) -> slice | None:
        """Return the rows of the own heads; None with one rank."""
        return None if make.ranks.count == 1 else slice(width * heads.start, width * heads.stop)

    def _queries(self, make: Builder, name: str, inputs: int, own: slice) -> tuple[NamedWeight, NamedWeight]:
        """Return the rows of a query projection without and with a rotation, of the own heads."""
        heads, whole, source = self.num_heads, self.nope_dim + self.rope_dim, (f"{name}.weight",)
        plain = View(source, Runs(heads, whole, 0, self.nope_dim))
        turned = View(source, self.rope.rows(heads, whole, rotated=self.rope_dim))
        return (
            make.matrix(
                f"{name}.nope.weight",
                (heads * self.nope_dim, inputs),
                plain,
                part=self._part(make, own, self.nope_dim),
            ),
            make.matrix(
                f"{name}.rope.weight",
                (heads * self.rope_dim, inputs),
                turned,
                part=self._part(make, own, self.rope_dim),
            ),
        )

    def _latent(self, make: Builder) -> tuple[NamedWeight, NamedWeight]:
        """Return the projections to the latent vector and to the rotated key."""
        source, whole = ("kv_a_proj_with_mqa.weight",), self.latent_dim + self.rope_dim
        turned = self.rope.rows(1, whole, rotated=self.rope_dim)
        plain = slice(0, self.latent_dim)
        return (
            make.matrix("kv_a_proj.latent.weight", (self.latent_dim, make.hidden_size), View(source, plain)),
            make.matrix("kv_a_proj.rope.weight", (self.rope_dim, make.hidden_size), View(source, turned)),
        )


MODEL_TYPES["kimi_k2"] = "DeepseekV3ForCausalLM"

_GROUPED: Final = (160, 256)
"""Numbers of experts of the models that have them in groups: DeepSeek-V2 and V3."""


@FAMILIES.register("DeepseekV2ForCausalLM")
def deepseek_v2(config: FamilyConfig) -> DecoderSpec:
    """Return latent attention, and experts chosen by a softmax, perhaps within the groups of the best ones."""
    inner, shared = config.integer("moe_intermediate_size"), config.integer("n_shared_experts", 0, minimum=0)
    config.require("norm_topk_prob", False, False)
    config.require("scoring_func", "softmax", "softmax")
    config.require("mlp_bias", False, False)
    grouped = config.values.get("topk_method") == "group_limited_greedy"
    if not grouped:
        config.require("topk_method", "greedy", "greedy")
    routing = Routing(
        config.integer("n_routed_experts"),
        config.integer("num_experts_per_tok"),
        groups=config.integer("n_group") if grouped else 1,
        kept_groups=config.integer("topk_group") if grouped else 1,
        factor=config.number("routed_scaling_factor", zero=True),
    )
    activation = activation_of(config)
    both = MlpSpec(inner * shared, activation) if shared else None
    experts = ExpertsSpec(routing, inner, activation, shared=both)
    return _deepseek("deepseek-v2", config, experts, _first_dense(config))


@FAMILIES.register("DeepseekV3ForCausalLM")
def deepseek_v3(config: FamilyConfig) -> DecoderSpec:
    """Return latent attention, and experts chosen by a sigmoid and a bias within the best groups."""
    return _deepseek("deepseek-v3", config, grouped_experts(config), _first_dense(config))


@FAMILIES.register("Glm4MoeLiteForCausalLM")
def glm4_moe_lite(config: FamilyConfig) -> DecoderSpec:
    """Return DeepSeek-V3 with other sizes (GLM-4.7-Flash)."""
    kinds = config.values.get("mlp_layer_types")
    dense = _first_dense(config)
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != config.num_layers() or set(kinds) - {"dense", "sparse"}:
            raise CheckpointError("config.json: mlp_layer_types must name dense or sparse for each layer")
        dense = [kind == "dense" for kind in kinds]
    return _deepseek("glm4-moe-lite", config, grouped_experts(config), dense)


def _first_dense(config: FamilyConfig) -> list[bool]:
    """Return which layers have no experts: the first ones."""
    config.require("moe_layer_freq", 1, 1)
    first = config.integer("first_k_dense_replace", minimum=0)
    return [i < first for i in range(config.num_layers())]


def _deepseek(family: str, config: FamilyConfig, experts: PartSpec, dense: list[bool]) -> DecoderSpec:
    attention, mlp = _attention(config), mlp_of(config)
    return decoder_of(
        family,
        config,
        (pre_norm(attention, mlp if plain else experts) for plain in dense),
        norms=norms_of(config),
        extra_layers=1,
    )


def _attention(config: FamilyConfig) -> LatentAttentionSpec:
    config.require("attention_bias", False, False)
    nope, turned = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    heads = config.integer("num_attention_heads")
    config.require("num_key_value_heads", heads, heads)
    config.require("head_dim", turned, turned)
    config.require("qk_head_dim", nope + turned, nope + turned)
    return LatentAttentionSpec(
        num_heads=heads,
        nope_dim=nope,
        rope_dim=turned,
        value_dim=config.integer("v_head_dim"),
        latent_dim=config.integer("kv_lora_rank"),
        rope=rope_spec(config, turned, interleaved=config.flag("rope_interleave")),
        scale=(nope + turned) ** -0.5 * _temperature(config),
        q_rank=config.optional_integer("q_lora_rank"),
    )


def _temperature(config: FamilyConfig) -> float:
    """Return the square of YaRN's scale for all dimensions, a factor of scores."""
    section, kind = rope_section(config)
    weight = section.optional_number("mscale_all_dim")
    if kind == "default" or weight is None:
        return 1.0
    factor = section.number("factor")
    mscale = 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
    return mscale * mscale


def _latent(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the fields of latent attention (DeepSeek-V2), whose newer files count the latent as one KV head."""
    mla = values.get("attention.key_length_mla")
    key = values.get("attention.key_length") if mla is None else mla
    value = values.get("attention.value_length" if mla is None else "attention.value_length_mla")
    rope = values.get("rope.dimension_count")
    if not all(isinstance(each, int) for each in (key, value, rope)):
        form = "" if mla is None else "_mla"
        lengths = f"deepseek2.attention.key_length{form}, attention.value_length{form}"
        raise CheckpointError(f"GGUF metadata must have {lengths} and rope.dimension_count")
    assert isinstance(key, int) and isinstance(rope, int)
    groups, experts = config.get("n_group"), config.get("n_routed_experts", 0)
    if groups is None and experts in _GROUPED:
        reason = "older files of this model do not say how its experts are grouped: convert it again"
        raise Unsupported("GGUF metadata without deepseek2.expert_group_count", reason)
    return {
        "qk_nope_head_dim": key - rope,
        "qk_rope_head_dim": rope,
        "head_dim": rope,
        "v_head_dim": value,
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": values.get("attention.q_lora_rank"),
        "kv_lora_rank": values.get("attention.kv_lora_rank"),
        "n_group": groups or 1,
        "topk_group": config.get("topk_group") or 1,
        "norm_topk_prob": bool(config.get("norm_topk_prob", False)),
        "topk_method": _method(values, tensors, groups or 1),
        "routed_scaling_factor": config.get("routed_scaling_factor", 1.0),
    }


def _by_sigmoid(values: Values, tensors: Collection[str]) -> bool:
    """Whether experts are scored by a sigmoid, as in DeepSeek-V3; older files only have its bias."""
    return values.get("expert_gating_func") == SIGMOID or any(".exp_probs_b." in name for name in tensors)


def _method(values: Values, tensors: Collection[str], groups: int) -> str:
    """Return how experts are chosen."""
    if _by_sigmoid(values, tensors):
        return "noaux_tc"
    return "group_limited_greedy" if groups > 1 else "greedy"


_ENTRY: Final = GgufArchitecture(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    parts={
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        **shared_names("shared_experts"),
    },
    keys=ROUTED,
    ignored=(
        *("attention.key_length_mla", "attention.value_length_mla", "attention.value_length", "rope.dimension_count"),
        *("attention.q_lora_rank", "attention.kv_lora_rank"),
    ),
    required=(
        *(*BOTH, "attention.kv_lora_rank", "leading_dense_block_count"),
        *("expert_shared_count", "expert_weights_scale"),
    ),
    gating=SOFTMAX,
    log_multiplier=0.1,
    heads=False,
    derive=_latent,
)
ARCHITECTURES["deepseek2"] = _ENTRY
VARIANTS["deepseek2"] = (
    _by_sigmoid,
    replace(_ENTRY, name="DeepseekV3ForCausalLM", model_type="deepseek_v3", gating=SIGMOID),
)
