"""Models written by hand that count what they compute, each with some of the methods that a model may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ferrum import DataType, KvExhausted, LlmRuntimeConfig, ModelInfo

SIZE = 10
CONFIG = LlmRuntimeConfig(hidden_size=1, num_layers=2, num_kv_heads=1, head_dim=4, vocab_size=SIZE, max_seq_len=400)
INFO = ModelInfo(
    model_id="counted",
    family="Counted",
    num_parameters=1,
    vocab_size=SIZE,
    max_sequence_length=400,
    hidden_size=1,
    num_layers=2,
    num_heads=1,
    num_kv_heads=1,
    head_dim=4,
    dtype=DataType.FLOAT32,
)


def logits_after(tokens: Sequence[int]) -> np.ndarray:
    """Return logits that depend on all tokens and on their order."""
    return np.random.default_rng([len(tokens), *tokens]).standard_normal(SIZE, np.float32)


class Counted:
    """A model of four methods that counts the tokens it computes, and whose cache is full at some length."""

    config = CONFIG
    shape: Callable[[np.ndarray], Any] = staticmethod(lambda row: row)

    def __init__(self, capacity: int = 400) -> None:
        self.capacity = capacity
        self.computed = 0
        self.calls: list[str] = []
        self.cache: dict[str, list[int]] = {}

    def kv_capacity(self) -> int:
        return self.capacity

    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Any:
        self.calls.append("prefill")
        return self.shape(self.take(cache_id, tokens)[-1])

    def decode(self, cache_id: str, token: int, pos: int) -> Any:
        self.calls.append("decode")
        assert pos == len(self.cache[cache_id])
        return self.shape(self.take(cache_id, [token])[-1])

    def release(self, cache_id: str) -> None:
        self.cache.pop(cache_id, None)

    def take(self, cache_id: str, tokens: Sequence[int]) -> list[np.ndarray]:
        if sum(map(len, self.cache.values())) + len(tokens) > self.capacity:
            raise KvExhausted("full")
        stored = self.cache.setdefault(cache_id, [])
        self.computed += len(tokens)
        stored += tokens
        rows = [logits_after(stored[: len(stored) - len(tokens) + count]) for count in range(1, len(tokens) + 1)]
        return [row * np.nan if 9 in tokens else row for row in rows]


class Able(Counted):
    """A model with the optional methods of the Rust trait; it verifies with flat logits, as models do there."""

    def decode_batch(self, steps: Sequence[tuple[str, int, int]]) -> Any:
        self.calls.append("decode_batch")
        return [self.take(cache_id, [token])[-1] for cache_id, token, _ in steps]

    def forward_verify(self, cache_id: str, tokens: Sequence[int]) -> Any:
        self.calls.append("forward_verify")
        return np.concatenate(self.take(cache_id, tokens))

    def truncate_kv(self, cache_id: str, length: int) -> None:
        self.calls.append("truncate_kv")
        assert length < len(self.cache[cache_id]), "the model refuses to keep all"
        del self.cache[cache_id][length:]


class Beginning(Counted):
    """A model whose `prefill` only begins sequences: it forgets what was stored."""

    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Any:
        self.cache.pop(cache_id, None)
        return super().prefill(cache_id, tokens)


class LastToken(Beginning):
    """The same with logits that depend on the last token alone."""

    def take(self, cache_id: str, tokens: Sequence[int]) -> list[np.ndarray]:
        super().take(cache_id, tokens)
        return [logits_after([token]) for token in tokens]


class Whole(Counted):
    """A model with `unified_forward`, which returns what a test wants."""

    def unified_forward(self, items: Sequence[Any]) -> Any:
        rows = [np.stack(self.take(item.cache_id, item.tokens)) for item in items]
        return self.returned(
            [row[-1:] if item.policy == "last" else row for row, item in zip(rows, items, strict=True)]
        )

    returned: Callable[[list[np.ndarray]], Any] = staticmethod(lambda rows: rows)
