"""`KvShape`: what a token stores in a layer. The KV pool, the memory plan and all reports of sizes derive from it."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.json_record import JsonRecord


@dataclass(frozen=True, slots=True)
class KvShape(JsonRecord):
    """The keys and values of a token in one layer. Layers with equal shapes share a layer group of the pool.

    Attributes:
        num_heads: KV heads.
        key_dim, value_dim: numbers of a key and of a value. value_dim is 0 where values are a part of the key (the
            latent vector of DeepSeek-V2, section 2.1); the attention operation says which part.
        window: positions that read it, including its own; None: all.
        num_layers: layers that store this shape.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    num_layers: int = 1

    @property
    def latent(self) -> bool:
        """Whether keys and values are one vector."""
        return self.value_dim == 0
