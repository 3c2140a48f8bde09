"""From the rows of a span to its result: the part of a step between the network and the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import NonFiniteLogits, StepError
from ferrum.core.step import Hidden, Rows, Span, SpanResult, TokenLogprobs, Want
from ferrum.kernels.operations import F32, Array
from ferrum.kernels.reference.reference_math import tree_sum
from ferrum.sampling.sampler import REFERENCE, Accepted, Sampler, Verification, accept, score


class SpanRows:
    """A collector of one span's rows, piece by piece, and of its result.

    Scores are computed from each piece at once, so that a prompt's log-probabilities never hold [S, V].

    Args:
        span: the span.
        sampler: of the backend.
        host: see `Kernels.host`. Rows that a token is sampled from stay where they are.

    Attributes:
        carried: the token that CARRY stands for, if it is the span's first token.
    """

    def __init__(
        self, span: Span, sampler: Sampler = REFERENCE, host: Callable[[Array], NDArray[Any]] = np.asarray
    ) -> None:
        self.span = span
        self.carried: Sequence[int] = ()
        self._sampler, self._host = sampler, host
        self._logits: list[Array] = []
        self._best: list[int] = []
        self._hidden: list[F32] = []
        self._scores: list[TokenLogprobs] = []
        self._attention: list[Sequence[F32]] = []
        self._layers: list[F32] = []

    def logit_rows(self) -> range:
        """Return the rows of the span whose logits are needed."""
        count = len(self.span.tokens)
        wanted = self._wanted_rows()
        if self.span.score is None:
            return wanted
        return range(max(len(self.span.score.targets), count if len(wanted) else 0))

    def _wanted_rows(self) -> range:
        """Return the rows that `want` is about."""
        count = len(self.span.tokens)
        if self.span.want is Want.NONE:
            return range(0)
        return range(0 if self.span.rows is Rows.ALL else count - 1, count)

    def hidden_rows(self) -> range:
        """Return the rows of the span whose final hidden states are needed."""
        count = len(self.span.tokens)
        if self.span.hidden is Hidden.NONE:
            return range(0)
        return range(count - 1 if self.span.hidden is Hidden.LAST else 0, count)

    def take(self, first: int, logits: Array, best: Sequence[int], hidden: Array | None = None) -> None:
        """Add rows of one forward pass. The arrays are valid only until the next pass.

        The rows of the span's last piece that a token is sampled from are not copied: call `verification` and use its
        result before the next pass.

        Args:
            first: row of the span that logits[0] belongs to.
            logits: [rows, V].
            best: the most likely token of each; -1 if a logit is not finite.
            hidden: [rows, H], if some are wanted.

        Raises:
            NonFiniteLogits: a NaN or an infinity among them.
        """
        states = None if hidden is None else self._host(hidden)
        if -1 in best or (states is not None and not np.isfinite(states).all()):
            raise NonFiniteLogits(f"the logits or hidden states of {self.span.cache_id!r} are not finite")
        if self.span.score is not None:
            targets = self.span.score.targets[first : first + len(logits)]
            self._scores += score(logits, type(self.span.score)(targets, self.span.score.top), self._sampler)
        wanted = self._wanted_rows()
        kept = slice(max(0, wanted.start - first), max(0, wanted.stop - first))
        if len(best[kept]):
            rows = logits[kept]
            if self.span.want is not Want.TOKEN:
                rows = self._host(rows).copy()
            elif first + len(logits) < len(self.span.tokens):
                rows = rows.copy()
            self._logits.append(rows)
            self._best += best[kept]
        if states is not None:
            self._hidden.append(states.copy())

    def take_attention(self, layers: Sequence[Array]) -> None:
        """Add one forward pass's softmax weights, per layer [heads, rows, tokens so far], if the span wants them."""
        if self.span.attention_weights:
            self._attention.append([self._host(layer) for layer in layers])

    def take_layers(self, states: Sequence[Array]) -> None:
        """Add one forward pass's states, L + 1 of [rows, H], if the span wants them."""
        if self.span.hidden is Hidden.LAYERS:
            self._layers.append(np.stack([self._host(each) for each in states]))

    def _attention_weights(self) -> tuple[F32, ...]:
        """Return per layer [heads, tokens, end], with zeros where a row sees nothing."""
        end = self.span.end
        return tuple(
            np.concatenate([np.pad(p, ((0, 0), (0, 0), (0, end - p.shape[2]))) for p in pieces], axis=1)
            for pieces in zip(*self._attention, strict=True)
        )

    def verification(self) -> Verification | None:
        """Return what the span's tokens are sampled from, once its last rows are added; None if it wants none."""
        span, pieces = self.span, self._logits
        if span.want is not Want.TOKEN:
            return None
        assert span.sampling is not None and pieces, "checked before the step"
        logits = pieces[0] if len(pieces) == 1 else [row for piece in pieces for row in piece]
        first = len(span.tokens) - span.drafts
        return Verification(
            logits[-1 - span.drafts :],
            self._best[-1 - span.drafts :],
            span.tokens[first:],
            span.sampling,
            span.masks,
            start=span.start + first,
            carried=self.carried,
        )

    def result(self, chosen: Accepted | None = None, watch: Callable[[Span, F32], None] | None = None) -> SpanResult:
        """Return the span's result.

        Args:
            chosen: the sampled tokens, if the span wants some.
            watch: called with the last row of logits, if there is one.
        """
        span = self.span
        hidden = _joined(self._hidden)
        if watch is not None and self._logits:
            watch(span, self._host(self._logits[-1][-1]))
        if hidden is not None and span.hidden is Hidden.MEAN:
            hidden = (tree_sum(hidden.T) / np.float32(len(hidden)))[None]
        elif self._layers:
            hidden = np.concatenate(self._layers, axis=1)
        scores, attention = tuple(self._scores), self._attention_weights() if self._attention else None
        if chosen is not None:
            length = span.end - span.drafts + chosen.accepted
            return SpanResult(length, chosen.tokens, chosen.logprobs, chosen.accepted, None, hidden, scores, attention)
        logits = _joined(self._logits)
        return SpanResult(span.end, logits=logits, hidden=hidden, scores=scores, attention_weights=attention)


def result_alone(rows: SpanRows) -> SpanResult:
    """Return the result of one span, sampled by the reference sampler. Raises StepError if nothing can be sampled."""
    verification = rows.verification()
    if verification is None:
        return rows.result()
    (chosen,) = accept([verification])
    if isinstance(chosen, StepError):
        raise chosen
    return rows.result(chosen)


def _joined(pieces: Sequence[F32]) -> F32 | None:
    """Return the pieces as one array, without a copy in the usual case of one piece."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else None
