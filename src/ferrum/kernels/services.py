"""What a backend does besides steps: sampling from rows of logits, quantisation, checksums.

These are the parts over many numbers. `sampling/` and `quant/` complete them, and do them in numpy for a backend
without its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

PageSums = Callable[[NDArray[np.uint8]], NDArray[np.uint64]]
"""See `kernels.reference.page_sums`."""


class Draw(NamedTuple):
    """A row to draw a token from. The rules and their order are those of `sampling/rules.py`.

    Attributes:
        logits: [V]: a row of the backend, or f32 of the host if rules have edited it.
        temperature: 0 takes the most likely token.
        top_k, top_p, min_p: as in `SamplingParams`, top_k at most V.
        seed, position, choice: the key of the draw; the seed has 64 bits without a sign.
    """

    logits: Any
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    position: int
    choice: int


class Question(NamedTuple):
    """A question about a row of logits [V]: the rank of `token`, and its `most` likely tokens, at most V."""

    logits: Any
    token: int
    most: int


class Standing(NamedTuple):
    """The answer to a `Question`, for log-probabilities.

    Attributes:
        peak: the greatest logit.
        normaliser: log(sum(exp(logits - peak))), summed as `sampling/probabilities.py` does.
        rank: of the token, 1 for the most likely.
        logit: of the token.
        best: the most likely tokens, best first.
        best_logits: their logits f32.
    """

    peak: np.float32
    normaliser: np.float32
    rank: int
    logit: np.float32
    best: NDArray[np.int64]
    best_logits: F32


class RowSampler(Protocol):
    """The part of a sampler that reads whole rows. Results equal those of numpy bit for bit; rows are independent."""

    def held_bytes(self, vocab_size: int) -> int:
        """Return the maximum scratch memory in bytes."""

    def draw(self, rows: Sequence[Draw]) -> Sequence[int]:
        """Return the token of each row; -1 if all its logits are minus infinity."""

    def standings(self, questions: Sequence[Question]) -> list[Standing]:
        """Return the answer to each question. A peak may be NaN or infinite."""


class PanelQuantizer(Protocol):
    """A quantiser of matrices directly into the panels that the backend multiplies with."""

    def __call__(
        self, values: NDArray[Any], format: str, importance: F32 | None = None, *, thorough: bool = False
    ) -> tuple[NDArray[np.uint8], int]:
        """Quantise a float matrix [N, K].

        Args:
            values: of any float format.
            format: a key of `quant.block_quantizers.QUANTIZERS`.
            importance: weights of the inputs' squared errors, f32, with zeros up to the end of the last block; or None.
            thorough: whether to try many candidates.

        Returns: the panels, and 0, `TOO_LARGE`, or another number for an infinity or a NaN.
        """


TOO_LARGE: Final = 1
"""Code for numbers that no scale can hold."""
