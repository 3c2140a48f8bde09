"""What a span gets out of its rows: the part of a step between the network and the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ferrum.core.errors import NonFiniteLogits, StepError
from ferrum.core.step import Hidden, Rows, Span, SpanResult, TokenLogprobs, Want
from ferrum.kernels.interface import F32
from ferrum.kernels.reference.reference_math import tree_sum
from ferrum.sampling.sampler import REFERENCE, Chooser, score
from ferrum.sampling.verify import Accepted, Verification, accept


class SpanRows:
    """Collects one span's rows, piece by piece, and turns them into its result.

    Scores are taken as rows come by and the rows let go, so that a prompt's log-probabilities never hold [S, V].
    """

    def __init__(self, span: Span, chooser: Chooser = REFERENCE) -> None:
        self.span = span
        self._chooser = chooser
        self._logits: list[F32] = []
        self._best: list[int] = []
        self._hidden: list[F32] = []
        self._scores: list[TokenLogprobs] = []
        self._attention: list[Sequence[F32]] = []

    def logit_rows(self) -> range:
        """Rows of the span whose logits are needed."""
        count = len(self.span.tokens)
        wanted = self._wanted_rows()
        if self.span.score is None:
            return wanted
        return range(max(len(self.span.score.targets), count if len(wanted) else 0))

    def _wanted_rows(self) -> range:
        """Rows that the span's wish itself is about."""
        count = len(self.span.tokens)
        if self.span.want is Want.NONE:
            return range(0)
        return range(0 if self.span.rows is Rows.ALL else count - 1, count)

    def hidden_rows(self) -> range:
        """Rows of the span whose final hidden states are needed."""
        count = len(self.span.tokens)
        if self.span.hidden is Hidden.NONE:
            return range(0)
        return range(count - 1 if self.span.hidden is Hidden.LAST else 0, count)

    def take(self, first: int, logits: F32, best: Sequence[int], hidden: F32 | None = None) -> None:
        """Rows of one forward pass; the arrays are only lent, until the next pass.

        What a token is sampled from is not copied when it is the span's last: call `verification` before the next pass,
        and use it.

        Args:
            first: row of the span that logits[0] belongs to.
            logits: f32 [rows, V].
            best: the most likely token of each; -1 where a logit is not finite.
            hidden: f32 [rows, H], where some are wanted.

        Raises:
            NonFiniteLogits: a NaN or an infinity among them.
        """
        if -1 in best or (hidden is not None and not np.isfinite(hidden).all()):
            raise NonFiniteLogits(f"the logits or hidden states of {self.span.cache_id!r} are not finite")
        if self.span.score is not None:
            rest = self.span.score.targets[first : first + len(logits)]
            self._scores += score(logits, type(self.span.score)(rest, self.span.score.top), self._chooser)
        wanted = self._wanted_rows()
        kept = slice(max(0, wanted.start - first), max(0, wanted.stop - first))
        if len(best[kept]):
            last = first + len(logits) == len(self.span.tokens)
            self._logits.append(logits[kept] if last and self.span.want is Want.TOKEN else logits[kept].copy())
            self._best += best[kept]
        if hidden is not None:
            self._hidden.append(hidden.copy())

    def take_attention(self, layers: Sequence[F32]) -> None:
        """Softmax weights of one forward pass: per layer [heads, rows, tokens so far]; kept where the span asks."""
        if self.span.attention_weights:
            self._attention.append(layers)

    def _attention_weights(self) -> tuple[F32, ...] | None:
        """Per layer [heads, tokens, end], zeros where a row sees nothing."""
        if not self._attention:
            return None
        end = self.span.end
        return tuple(
            np.concatenate([np.pad(p, ((0, 0), (0, 0), (0, end - p.shape[2]))) for p in pieces], axis=1)
            for pieces in zip(*self._attention, strict=True)
        )

    def verification(self) -> Verification | None:
        """What the span's tokens are chosen from, once its last rows are there; None where it wants none."""
        span, logits = self.span, _joined(self._logits)
        if span.want is not Want.TOKEN:
            return None
        assert span.sampling is not None and logits is not None, "checked before the step"
        drafts = span.tokens[len(span.tokens) - span.drafts :]
        return Verification(logits[-1 - span.drafts :], self._best[-1 - span.drafts :], drafts, span.sampling)

    def result(self, chosen: Accepted | None = None, watch: Callable[[Span, F32], None] | None = None) -> SpanResult:
        """Put the result together.

        Args:
            chosen: the tokens, where the span wants some.
            watch: shown the last row of logits, where there is one.
        """
        span = self.span
        logits, hidden = _joined(self._logits), _joined(self._hidden)
        if watch is not None and logits is not None:
            watch(span, logits[-1])
        if hidden is not None and span.hidden is Hidden.MEAN:
            hidden = (tree_sum(hidden.T) / np.float32(len(hidden)))[None]
        scores = tuple(self._scores)
        if chosen is not None:
            length = span.end - span.drafts + chosen.accepted
            return SpanResult(
                length, chosen.tokens, chosen.logprobs, chosen.accepted, None, hidden, scores, self._attention_weights()
            )
        return SpanResult(
            span.end, logits=logits, hidden=hidden, scores=scores, attention_weights=self._attention_weights()
        )


def result_alone(rows: SpanRows) -> SpanResult:
    """The result of one span by itself, sampled by the reference. Raises StepError: nothing can be sampled."""
    verification = rows.verification()
    if verification is None:
        return rows.result()
    (chosen,) = accept([verification])
    if isinstance(chosen, StepError):
        raise chosen
    return rows.result(chosen)


def _joined(pieces: Sequence[F32]) -> F32 | None:
    """The pieces as one array; nearly always there is one already."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else None
