"""Multi-head latent attention (DeepSeek-V2, section 2.1) as data."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.errors import Unsupported
from ferrum.core.kv_shape import KvShape
from ferrum.kernels.group_weights import PANEL
from ferrum.kernels.op_attributes import AttentionShape
from ferrum.models.attention_spec import RopeSpec
from ferrum.models.builder import Builder
from ferrum.models.tensor_views import Runs, View
from ferrum.nn.latent_attention import LatentAttention
from ferrum.nn.linear import Linear
from ferrum.nn.named_weight import NamedWeight
from ferrum.nn.norm import Norm


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
        inputs: tuple[NamedWeight, ...] = self._latent(make)
        low_norm = queries = None
        if self.q_rank is None:
            inputs = (*self._queries(make, "q_proj", make.hidden_size), *inputs)
        else:
            inputs = (make.matrix("q_a_proj.weight", (self.q_rank, make.hidden_size)), *inputs)
            low_norm = Norm(make.norm_weight("q_a_layernorm.weight", self.q_rank), self.norm_eps)
            queries = Linear(self._queries(make, "q_b_proj", self.q_rank))
        expanded, whole = ("kv_b_proj.weight",), self.nope_dim + self.value_dim
        key_rows, value_rows = Runs(heads, whole, 0, self.nope_dim), Runs(heads, whole, self.nope_dim, self.value_dim)
        return LatentAttention(
            inputs=Linear(inputs),
            low_norm=low_norm,
            queries=queries,
            latent_norm=Norm(make.norm_weight("kv_a_layernorm.weight", latent), self.norm_eps),
            keys=make.matrix(
                "k_b_proj.weight", (heads * latent, self.nope_dim), View(expanded, key_rows, transposed=heads)
            ),
            values=make.matrix("v_b_proj.weight", (heads * self.value_dim, latent), View(expanded, value_rows)),
            output=make.linear(("o_proj",), (make.hidden_size,), heads * self.value_dim),
            shape=AttentionShape(*make.slot(self), heads, 1, latent + self.rope_dim, self.scale, value_dim=latent),
            rope=make.rope(self.rope.frequencies, self.rope.scaling),
        )

    def _queries(self, make: Builder, name: str, inputs: int) -> tuple[NamedWeight, NamedWeight]:
        """Return the rows of a query projection without and with a rotation."""
        heads, whole, source = self.num_heads, self.nope_dim + self.rope_dim, (f"{name}.weight",)
        plain = View(source, Runs(heads, whole, 0, self.nope_dim))
        turned = View(source, self.rope.rows(heads, whole, rotated=self.rope_dim))
        return (
            make.matrix(f"{name}.nope.weight", (heads * self.nope_dim, inputs), plain),
            make.matrix(f"{name}.rope.weight", (heads * self.rope_dim, inputs), turned),
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
