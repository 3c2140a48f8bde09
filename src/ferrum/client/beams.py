"""Beam search on top of single-token requests: every beam is a prompt, and beams share KV pages.

The rules are those of `transformers` (`GenerationMixin._beam_search`), so both find the same beams: of the K best
continuations, those that end among the first `beam_width` are finished, and the best of the others continue.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from numbers import Real
from operator import attrgetter, itemgetter

from ferrum.client.request_output import Logprobs
from ferrum.core.errors import ContextOverflow, RequestError
from ferrum.core.values import shown, whole
from ferrum.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Beam:
    """One continuation of a prompt.

    Attributes:
        token_ids: the generated tokens, including an end token.
        logprob: natural logarithm of their joint probability.
        score: `logprob` / number of tokens ** length penalty; beams are ranked by it.
        finish_reason: `stop` at an end token, `length` at `max_tokens`.
        text: None without a tokenizer.
    """

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    score: float = 0.0
    finish_reason: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamRules:
    """Parameters of a beam search. Raises RequestError, naming the field.

    Attributes:
        beam_width: number of running beams, and of results.
        max_tokens: maximum tokens of a beam.
        context: maximum tokens of a prompt and a beam together.
        length_penalty: exponent of the number of tokens in the score; 0 ignores the length.
        early_stopping: True stops at `beam_width` finished beams; False stops when the best running beam, ended now,
            would not beat them; "never" stops when it could not at any length.
        ends: end tokens.
    """

    beam_width: int
    max_tokens: int
    context: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ends: Collection[int] = ()

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = whole(name, getattr(self, name))
            if value < 1:
                raise RequestError(f"must be at least 1, not {value}", param=name)
            object.__setattr__(self, name, value)
        if self.max_tokens > self.context:  # before the length penalty is checked as its exponent
            raise ContextOverflow(f"{self.max_tokens} exceeds the context of {self.context} tokens", param="max_tokens")
        object.__setattr__(self, "length_penalty", _penalty(self.length_penalty, self.max_tokens))
        stopping: object = self.early_stopping
        if not isinstance(stopping, bool | str) or stopping not in (True, False, "never"):
            raise RequestError(f"must be true, false or 'never', not {shown(stopping)}", param="early_stopping")

    @property
    def num_candidates(self) -> int:
        """K: enough candidates that `beam_width` of them continue even if all others end."""
        return max(2, 1 + len(self.ends)) * self.beam_width

    def score(self, logprob: float, length: int) -> float:
        """Return the score of a beam with `length` tokens."""
        return logprob / float(length**self.length_penalty)


def _penalty(value: object, max_tokens: int) -> float:
    """Return a length penalty for which every length has a finite, nonzero power. Raises RequestError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"must be a number, not {shown(value)}", param="length_penalty")
    try:
        penalty = float(value)
        usable = 0 < float(max_tokens) ** penalty < math.inf
    except OverflowError:
        usable = False
    if not usable or not math.isfinite(penalty):
        raise RequestError(f"{max_tokens} to the power of {shown(value)} is out of range", param="length_penalty")
    return penalty


class BeamSearch:
    """The beams of one prompt.

    Attributes:
        running: unfinished beams, best first; empty when the search is over.
    """

    def __init__(self, rules: BeamRules) -> None:
        self._rules = rules
        self.running: list[Beam] = [Beam()]
        self._finished: list[Beam] = []

    def found(self, tokenizer: Tokenizer | None) -> list[Beam]:
        """Return the finished beams, best first, with their text if there is a tokenizer."""
        if tokenizer is None:
            return self._finished
        return [replace(beam, text=tokenizer.decode(beam.token_ids)) for beam in self._finished]

    def advance(self, nexts: Sequence[Logprobs]) -> None:
        """Take the most likely next tokens of every running beam, `rules.num_candidates` of each."""
        rules = self._rules
        # A wide search has many more continuations than candidates: only candidates become beams.
        candidates = (
            (beam.logprob + entry.logprob, beam, token)
            for beam, logprobs in zip(self.running, nexts, strict=True)
            for token, entry in logprobs.items()
        )
        best = [self._extended(*each) for each in nlargest(rules.num_candidates, candidates, key=itemgetter(0))]
        ended = [beam for beam in best[: rules.beam_width] if beam.finish_reason is not None]
        if not (rules.early_stopping is True and self._full):
            ranked = sorted([*self._finished, *ended], key=attrgetter("score"), reverse=True)
            self._finished = ranked[: rules.beam_width]
        self.running = [beam for beam in best if beam.finish_reason is None][: rules.beam_width]
        if not self._may_improve():
            self.running = []

    @property
    def _full(self) -> bool:
        return len(self._finished) == self._rules.beam_width

    def _extended(self, total: float, beam: Beam, token: int) -> Beam:
        tokens = (*beam.token_ids, token)
        reason = None
        if token in self._rules.ends:
            reason = "stop"
        elif len(tokens) == self._rules.max_tokens:
            reason = "length"
        return Beam(tokens, total, self._rules.score(total, len(tokens)), reason)

    def _may_improve(self) -> bool:
        """Return whether the best running beam could still replace the worst finished one."""
        rules = self._rules
        if not self.running:
            return False
        if not self._full:
            return True
        if rules.early_stopping is True:
            return False
        length = len(self.running[0].token_ids)
        if rules.early_stopping == "never" and rules.length_penalty > 0:
            length = rules.max_tokens
        return rules.score(self.running[0].logprob, length) > self._finished[-1].score
