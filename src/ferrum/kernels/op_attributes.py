"""Attributes of operations: constants of a layer that are more than a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function.

        silu       x sigmoid(sharpness x)
        gelu       x (1 + erf(x / sqrt(2))) / 2
        gelu_tanh  x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which is gelu with its tanh
        relu2      max(x, 0)^2
        sigmoid    1 / (1 + e^-x)
        clip       min(max(x, least), most); NaN stays NaN

    Attributes:
        kind: one of these.
        sharpness: of silu.
        limit: in a gated product, the largest gate, and the largest magnitude of the other factor, to which 1 is then
            added (gpt-oss); None: no limit, and nothing is added.
        least, most: of clip.
    """

    kind: Literal["silu", "gelu", "gelu_tanh", "relu2", "sigmoid", "clip"]
    sharpness: float = 1.0
    limit: float | None = None
    least: float = 0.0
    most: float = 0.0


SILU: Final = Activation("silu")
SIGMOID: Final = Activation("sigmoid")


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention parameters of a layer.

    Attributes:
        group, layer: layer group of the pool, and index within the group.
        num_heads, num_kv_heads, head_dim: runs of num_heads / num_kv_heads query heads share a KV head.
        scale: factor of q . k.
        window: a query at position p sees keys at positions > p - window; None: all keys.
        value_dim: width of a value; None: head_dim.
        softcap: a score s becomes softcap x tanh(s / softcap) before the softmax (Gemma 2); None: it stays.
        chunk: a query sees only the keys of its chunk, each of this number of positions (Llama 4); None: all keys.
        causal: a query sees no key after its own, whatever `StepTables.last_seen` says (Gemma 4).
    """

    group: int
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    value_dim: int | None = None
    softcap: float | None = None
    chunk: int | None = None
    causal: bool = False

    @property
    def output_columns(self) -> int:
        """Columns of the result: a value of each query head."""
        return self.num_heads * (self.head_dim if self.value_dim is None else self.value_dim)


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Attention parameters of a layer that sees all rows of a span, as encoders of images do.

    Attributes:
        num_heads, head_dim: of queries, keys and values.
        scale: factor of q . k.
        format: of the numbers that are multiplied: they are rounded to it as those of a KV pool are.
    """

    num_heads: int
    head_dim: int
    scale: float
    format: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Parameters of a layer with the gated delta rule.

    Attributes:
        group, layer: state group, and index within the group.
        num_heads: value heads. Each has a state [key_dim, value_dim].
        num_key_heads: heads of queries and keys; runs of num_heads / num_key_heads value heads share one.
        key_dim, value_dim: widths of a head.
        interleaved: value head h uses key head h mod num_key_heads instead, as in GGUF files.
    """

    group: int
    layer: int
    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    interleaved: bool = False

    @property
    def state_numbers(self) -> int:
        """Numbers of a state: those of all heads."""
        return self.num_heads * self.key_dim * self.value_dim

    @property
    def input_columns(self) -> int:
        """Columns of queries, keys and values together."""
        return 2 * self.num_key_heads * self.key_dim + self.output_columns

    @property
    def output_columns(self) -> int:
        """Columns of the result: a value of each head."""
        return self.num_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Routing:
    """How a row chooses experts, and the weights of their results.

    1. s = score(scores), unless `late`. The selection bias is added to a copy of s, which only selects.
    2. With `groups` above 1, the experts form groups of adjacent ones. Only those in the `kept_groups` best groups can
       be chosen. A group's score is the sum of its best `group_best` experts.
    3. The `top_k` best experts are chosen, among equals those of lower number. Weights are their s without the bias;
       with `late`, score(scores of the chosen).
    4. With `renormalise`, weights are divided by max(their sum + eps, least), added in ascending order of experts.
    5. Weights are multiplied by `factor`, and by the expert's scale if there is one.

    A row adds weight x result of its experts in ascending order of experts, by fused sums from 0. With `on_input`, an
    expert gets weight x input instead, and results are added unweighted. A row with a score that is not finite gets
    the experts of the lowest numbers, and weights that are NaN.

    Attributes:
        num_experts, top_k: experts of the layer, and of a row.
        score: softmax over the experts, or sigmoid or sqrt(softplus) of each.
    """

    num_experts: int
    top_k: int
    score: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax"
    late: bool = False
    groups: int = 1
    kept_groups: int = 1
    group_best: int = 1
    renormalise: bool = False
    eps: float = 0.0
    least: float = 0.0
    factor: float = 1.0
    on_input: bool = False
