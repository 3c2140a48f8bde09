"""ferrum-tiny in PyTorch: the Qwen3 architecture, with the parameter names of its Hugging Face implementation.

It has only what training needs: no cache, and no mask except the causal one. `state_dict()` of `Qwen3` has the names of
the checkpoint that `transformers.Qwen3ForCausalLM` loads.

Shapes: B sequences, T tokens, D hidden size, H query heads, K key/value heads, E head dimension, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the network. `max_position` is the longest training sequence in tokens."""

    vocab_size: int = 4096
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    max_position: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Root mean square normalisation over the last axis (Zhang and Sennrich 2019), computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).to(x.dtype)


def rope_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin [T, E] of the rotary angles (Su et al. 2021), repeated in halves, not interleaved."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), config.rope_theta**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, N, T, E] by the tables [T, E]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Attention(nn.Module):  # type: ignore[misc]
    """Causal grouped-query attention with RMS-normalised queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        """Reshape [B, T, N * E] to [B, T, N, E]."""
        return x.unflatten(-1, (-1, self.head_dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotate(self.q_norm(self.heads(self.q_proj(x))).transpose(1, 2), cos, sin)  # [B, H, T, E]
        k = rotate(self.k_norm(self.heads(self.k_proj(x))).transpose(1, 2), cos, sin)  # [B, K, T, E]
        v = self.heads(self.v_proj(x)).transpose(1, 2)  # [B, K, T, E]
        group = q.shape[1] // k.shape[1]
        k, v = k.to(v.dtype).repeat_interleave(group, 1), v.repeat_interleave(group, 1)  # [B, H, T, E]
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # [B, T, D]


class MLP(nn.Module):  # type: ignore[misc]
    """SwiGLU feed-forward (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):  # type: ignore[misc]
    """Residual block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):  # type: ignore[misc]
    """The model without its head: token ids [B, T] to hidden states [B, T, D]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Qwen3(nn.Module):  # type: ignore[misc]
    """The whole model; the head is the transposed embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        cos, sin = rope_tables(config, config.max_position)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise: embedding std 0.02, matrices uniform with std 1/sqrt(fan in), residual outputs zero."""
        nn.init.normal_(self.model.embed_tokens.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)
            elif name.endswith("proj.weight"):
                bound = (3 / weight.shape[1]) ** 0.5
                nn.init.uniform_(weight, -bound, bound)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, T, V] for token ids [B, T] (int64), T at most `max_position`."""
        length = tokens.shape[1]
        hidden = self.model(tokens, self.cos[:length], self.sin[:length])
        return F.linear(hidden, self.model.embed_tokens.weight)
