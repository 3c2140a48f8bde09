"""`ChunkedPrefill`: later chunks of prompts, for a model whose `prefill` may continue sequences or only begin them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any, Protocol

import numpy as np

from ferrum.kernels.operations import F32


class Prefilling(Protocol):
    """A model that processes prompts and tokens."""

    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Any:
        """See `MinimalLLM`."""

    def decode(self, cache_id: str, token: int, pos: int) -> Any:
        """See `MinimalLLM`."""

    def release(self, cache_id: str) -> None:
        """See `MinimalLLM`."""


class ChunkedPrefill:
    """Later chunks of prompts: by one `prefill`, if the model's continues sequences, else token by token.

    A model cannot say which of the two it does. So its first later chunk is compared with `prefill` of the whole
    sequence under another name. The answer is kept once the chunk alone gives other logits.

    Args:
        model: the model.
        row: checks logits of a sequence and returns them as float32 [1, V].
    """

    def __init__(self, model: Prefilling, row: Callable[[Any, str], F32]) -> None:
        self._model = model
        self._row = row
        self._continues: bool | None = None
        self._doubtful: set[str] = set()

    def process(
        self, cache_id: str, stored: Sequence[int], tokens: list[int], refill: Callable[[], None], *, can_try: bool
    ) -> F32:
        """Process the next chunk of a sequence, and return the logits after it.

        Args:
            cache_id: the sequence.
            stored: its tokens before the chunk.
            tokens: the chunk.
            refill: begins the sequence again with the stored tokens.
            can_try: whether the model has room for the comparison, and runs it with the same weights.
        """
        if self._continues:
            return self._row(self._model.prefill(cache_id, tokens), cache_id)
        trial = self._trial([*stored], tokens) if self._continues is None and can_try else None
        if trial is not None:
            row = self._continued(cache_id, tokens, *trial)
            if row is not None:
                return row
            refill()
        decoded = [self._model.decode(cache_id, token, pos) for pos, token in enumerate(tokens, len(stored))]
        if trial is not None:
            self.refute()
        return self._row(decoded[-1], cache_id)

    def doubts(self, cache_id: str) -> bool:
        """Whether a sequence was continued by `prefill` without proof that this works."""
        return cache_id in self._doubtful

    def refute(self) -> None:
        """Remember that `prefill` does not continue sequences."""
        self._continues = False

    def forget(self, cache_id: str) -> None:
        """Forget a released sequence."""
        self._doubtful.discard(cache_id)

    def _continued(self, cache_id: str, tokens: list[int], whole: F32, alone: F32) -> F32 | None:
        """Return the logits of a chunk processed by `prefill`; None if they are not those of the whole sequence."""
        try:
            row = self._row(self._model.prefill(cache_id, tokens), cache_id)
        except Exception:  # noqa: BLE001 - a model may refuse a known sequence by any error
            return None
        if not _alike(row, whole):
            return None
        if _alike(alone, whole):
            self._doubtful.add(cache_id)
        else:
            self._continues = True
            self._doubtful.clear()
        return row

    def _trial(self, stored: list[int], tokens: list[int]) -> tuple[F32, F32] | None:
        """Return the logits after the whole sequence, and after the chunk alone; None if the model has no room."""
        name, rows = f"trial-{token_hex(8)}", list[F32]()
        for prompt in ([*stored, *tokens], tokens):
            try:
                rows.append(self._row(self._model.prefill(name, prompt), name))
            except Exception:  # noqa: BLE001 - the chunk itself is decoded then, and raises what is wrong with it
                return None
            finally:
                self._model.release(name)
        return rows[0], rows[1]


def _alike(one: F32, other: F32) -> bool:
    """Return whether two rows of logits are equal up to rounding: the work was cut in another way."""
    return bool(np.abs(one - other).max() <= 0.01 * np.abs(other).max())
