"""Choices by the native library: numpy's results, bit for bit, in a fraction of its time."""

from __future__ import annotations

import numpy as np

from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.kernels.cpu.library import chosen_tier, load
from ferrum.sampling.logprobs import report
from ferrum.sampling.math import F32, greatest
from ferrum.sampling.rules import Row, edited, nothing_allowed


class NativeChooser:
    """`Chooser` whose work over the vocabulary is native; the rules that edit a few logits are the reference's.

    Args:
        isa: instruction tier, "auto" for the best.

    Raises:
        Unsupported: the library is missing.
        ConfigError: this machine has no such tier.
    """

    def __init__(self, isa: str = "auto") -> None:
        self._sampler = load().Sampler(chosen_tier(isa))

    def finite(self, logits: F32) -> bool:
        """See `Chooser.finite`."""
        return bool(self._sampler.finite(np.ascontiguousarray(logits)))

    def greedy(self, logits: F32, row: Row) -> int:
        """See `Chooser.greedy`."""
        return _permitted(self._sampler.greedy(edited(logits, row)), row)

    def draw(self, logits: F32, row: Row) -> int:
        """See `Chooser.draw`."""
        params, sampling = row.params, row.sampling
        rules = (params.temperature, params.top_k, params.top_p, params.min_p)
        key = (sampling.seed & 0xFFFFFFFFFFFFFFFF, row.position, sampling.choice)
        return _permitted(self._sampler.draw(edited(logits, row), *rules, *key), row)

    def logprobs(self, logits: F32, token: int, count: int) -> TokenLogprobs:
        """See `Chooser.logprobs`."""
        greatest(logits)
        row = np.ascontiguousarray(logits)
        best = self._sampler.top(row, logits.size if count == ALL_TOKENS else count)
        return report(logits, token, np.array(best, np.int64), np.float32(self._sampler.log_total(row)))


def _permitted(token: int, row: Row) -> int:
    if token < 0:
        raise nothing_allowed(row)
    return token
