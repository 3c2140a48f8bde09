"""Put a hand-written model behind ferrum's executor: a bigram model that counts which token follows which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrum import (
    DataType,
    DecodeInput,
    DecoderOnlyLLM,
    LlmExecutor,
    LlmRuntimeConfig,
    LogitsPolicy,
    ModelInfo,
    PrefillInput,
    UnifiedItem,
)

VOCABULARY = 256
CONTEXT = 1024
TEXT = b"to be or not to be that is the question "


class BigramModel(DecoderOnlyLLM):
    """A model over bytes whose cache is the list of tokens of each sequence."""

    config = LlmRuntimeConfig(
        hidden_size=1, num_layers=1, num_kv_heads=1, head_dim=1, vocab_size=VOCABULARY, max_seq_len=CONTEXT
    )

    def __init__(self, text: bytes) -> None:
        counts = np.full((VOCABULARY, VOCABULARY), 0.01)
        np.add.at(counts, (list(text[:-1]), list(text[1:])), 1.0)
        self._logits = np.log(counts / counts.sum(1, keepdims=True)).astype(np.float32)
        self._cache: dict[str, list[int]] = {}

    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[np.ndarray | None]:
        """Return the rows of logits that each item asks for. The executor has checked the items."""
        outputs: list[np.ndarray | None] = []
        for item in items:
            self._cache.setdefault(item.cache_id, []).extend(item.tokens)
            rows = self._logits[list(item.tokens)]  # [tokens, V]
            outputs.append({LogitsPolicy.NONE: None, LogitsPolicy.LAST: rows[-1:], LogitsPolicy.ALL: rows}[item.policy])
        return outputs

    def length(self, cache_id: str) -> int:
        """Return the number of stored tokens."""
        return len(self._cache.get(cache_id, ()))

    def truncate_kv(self, cache_id: str, length: int) -> None:
        """Forget the tokens from `length` on."""
        del self._cache[cache_id][length:]

    def fork(self, source: str, target: str) -> None:
        """Copy a sequence."""
        self._cache[target] = list(self._cache[source])

    def release(self, cache_id: str) -> None:
        """Forget a sequence."""
        self._cache.pop(cache_id, None)

    def reset(self) -> None:
        """Forget every sequence."""
        self._cache.clear()

    def kv_capacity(self) -> int:
        """Return how many tokens fit."""
        return 64 * CONTEXT


def main() -> None:
    """Decode greedily through the executor's verbs."""
    info = ModelInfo(
        model_id="bigram", family="Bigram", num_parameters=VOCABULARY**2, vocab_size=VOCABULARY,
        max_sequence_length=CONTEXT, hidden_size=1, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1,
        dtype=DataType.FLOAT32,
    )  # fmt: skip
    with LlmExecutor(BigramModel(TEXT), info) as executor:
        output = executor.prefill(PrefillInput(list(b"qu")))
        tokens, cache = [int(output.last_token_logits().argmax())], output.kv_cache
        while len(tokens) < 12:
            step = executor.decode(DecodeInput([[tokens[-1]]], cache))
            tokens.append(int(step.logits[0].argmax()))
            cache = step.kv_cache
        print("qu" + bytes(tokens).decode())


if __name__ == "__main__":
    main()
