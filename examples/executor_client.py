"""Drive a model call by call: prefill once, fork two branches, and keep the more likely one."""

from __future__ import annotations

import numpy as np

from ferrum import DecodeInput, KvCacheHandle, PrefillInput, load_executor
from ferrum.sources.open_model import open_model


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities, [V] to [V]."""
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def main() -> None:
    """Try the two most likely first tokens and follow each greedily."""
    with load_executor("ferrum-tiny") as executor:
        tokenizer = open_model("ferrum-tiny").tokenizer()
        assert tokenizer is not None
        start = executor.prefill(PrefillInput(tokenizer.encode("def add(a, b):\n    return")))
        scores = log_softmax(start.last_token_logits()[0])
        branches: list[tuple[KvCacheHandle, list[int], float]] = [
            (executor.fork(start.kv_cache), [int(token)], float(scores[token])) for token in scores.argsort()[-2:]
        ]
        executor.release_cache(start.kv_cache.cache_id)
        for _ in range(6):
            outputs = executor.batch_decode([DecodeInput([[tokens[-1]]], cache) for cache, tokens, _ in branches])
            rows = [log_softmax(output.logits[0]) for output in outputs]
            branches = [
                (output.kv_cache, [*tokens, int(row.argmax())], score + float(row.max()))
                for output, row, (_, tokens, score) in zip(outputs, rows, branches, strict=True)
            ]
        for _, tokens, score in sorted(branches, key=lambda branch: branch[2], reverse=True):
            print(f"{score:8.3f}  {tokenizer.decode(tokens)!r}")


if __name__ == "__main__":
    main()
