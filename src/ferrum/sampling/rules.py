"""The rules that turn logits into the distribution a token is drawn from, in the order in which they apply.

    masks (grammar, allowed tokens, bad words, min_tokens), logit bias, repetition penalty, presence penalty,
    frequency penalty | temperature, top-k, top-p, min-p

Left of the bar are rules over the whole vocabulary: each edits f32 logits [V], which are copied when the first of them
has something to do. Right of it are rules over the candidates, the tokens still possible: each returns fewer or changed
ones. Wherever two tokens tie, the lower id counts as the more likely. A rule whose parameter is neutral does nothing;
every parameter is read by the one rule of its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import NothingAllowed
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling
from ferrum.kernels.reference.reference_math import exp
from ferrum.sampling.probability_mass import F32, Int64, mass
from ferrum.sampling.token_counts import Counts, Keeper
from ferrum.sampling.top_k import top

_NEVER = np.float32(-np.inf)
_MOST = np.finfo(np.float32).max
_LARGEST: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Row:
    """What rules may know of the row they work on: the sequence's history and the drafts verified before it."""

    sampling: Sampling
    drafts: Sequence[int] = ()

    @property
    def params(self) -> SamplingParams:
        """The request's parameters."""
        return self.sampling.params

    @property
    def position(self) -> int:
        """Absolute position of the token to choose."""
        return len(self.sampling.history) + len(self.drafts)

    @property
    def generated(self) -> int:
        """How many tokens were generated before it."""
        return self.position - self.sampling.prompt_length

    def tokens(self, start: int = 0) -> list[int]:
        """The tokens before it, from position `start` on."""
        history = self.sampling.history
        return [*history[start:], *self.drafts[max(0, start - len(history)) :]]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that can still be chosen.

    Attributes:
        tokens: ids [n], ascending, n >= 1.
        logits: f32 [n]; the greatest is finite.
    """

    tokens: Int64
    logits: F32

    def keep(self, which: NDArray[np.bool_] | Int64) -> Candidates:
        """Those at the given places (ascending) or where the mask is set."""
        return Candidates(self.tokens[which], self.logits[which])


class Editable:
    """A row of logits f32 [V], copied before its first change: most requests change nothing."""

    def __init__(self, logits: F32) -> None:
        self.logits = logits
        self.size = logits.size
        self._own = False

    def __call__(self) -> F32:
        """The row, to be changed in place."""
        if not self._own:
            self.logits, self._own = self.logits.copy(), True
        return self.logits


_allowed: Final = Keeper[Int64]()
_stops: Final = Keeper[Int64]()
_biases: Final = Keeper[tuple[Int64, F32]]()
_seen: Final = Keeper[Counts]()
_generated: Final = Keeper[Counts]()


def grammar(logits: Editable, row: Row) -> None:
    """Forbid what the row's mask does not set; ids past the mask's end are forbidden."""
    masks = row.sampling.masks
    bits = masks[len(row.drafts)] if masks else None
    if bits is not None:
        allowed = np.unpackbits(np.frombuffer(bits, np.uint8), count=logits.size, bitorder="little")
        logits()[allowed == 0] = _NEVER


def allowed_tokens(logits: Editable, row: Row) -> None:
    """Forbid every token that `allowed_token_ids` does not name."""
    if row.params.allowed_token_ids is not None:
        tokens = _allowed(row.params, _ids, row.params.allowed_token_ids)
        kept = logits()[tokens]
        logits()[:] = _NEVER
        logits()[tokens] = kept


def _ids(tokens: Iterable[int]) -> Int64:
    return np.array(list(tokens), np.int64)


def _known(size: int, tokens: Iterable[int]) -> Int64:
    """The ids that there are logits for: a tokenizer may have more ids than the model, which can never come."""
    return _ids(token for token in tokens if token < size)


def bad_words(logits: Editable, row: Row) -> None:
    """Forbid the last token of every bad word whose other tokens have just been seen."""
    words, before = row.sampling.bad_words, tuple(row.tokens(row.position - 1))

    def is_begun(word: tuple[int, ...]) -> bool:
        start = row.position - len(word) + 1
        return start >= 0 and row.tokens(start) == list(word[:-1])

    # There may be thousands, of which hardly any has the token just before.
    likely = [word for word in words if len(word) == 1 or word[-2:-1] == before]
    forbidden = [word[-1] for word in likely if len(word) == 1 or is_begun(word)]
    if forbidden:
        logits()[_known(logits.size, forbidden)] = _NEVER


def min_tokens(logits: Editable, row: Row) -> None:
    """Forbid end and stop tokens until `min_tokens` have been generated."""
    if row.generated < row.params.min_tokens:
        # A request may name all tokens there are: its choices have one array together, whatever the vocabulary.
        stops = _stops(row.params, _known, _LARGEST, row.params.stop_token_ids)
        logits()[stops[stops < logits.size]] = _NEVER
        logits()[_known(logits.size, row.sampling.eos_token_ids)] = _NEVER


def logit_bias(logits: Editable, row: Row) -> None:
    """Add each token's bias."""
    if row.params.logit_bias:
        tokens, biases = _biases(row.params, _bias_of_each, row.params.logit_bias)
        logits()[tokens] += biases


def _bias_of_each(biases: Mapping[int, float]) -> tuple[Int64, F32]:
    return _ids(biases), np.array(list(biases.values()), np.float32)


def repetition_penalty(logits: Editable, row: Row) -> None:
    """Divide the positive logits of all tokens seen, prompt included, and multiply the others.

    Source: Keskar et al., "CTRL", 2019, section 4.1, with the sign rule that transformers and vLLM give it.
    """
    if row.params.repetition_penalty != 1.0:
        penalty = np.float32(row.params.repetition_penalty)
        seen, _ = _seen(row.sampling, Counts, row.sampling.history, 0)(row.drafts)
        values = logits()[seen]
        changed = np.where(values > 0, values / penalty, values * penalty)
        logits()[seen] = np.minimum(changed, _MOST)  # an infinity has no distance to the others


def _counts(row: Row) -> tuple[Int64, F32]:
    """How often each token was generated."""
    return _generated(row.sampling, Counts, row.sampling.history, row.sampling.prompt_length)(row.drafts)


def take_back(sampling: Sampling, length: int) -> None:
    """Forget what stands in a history from `length` on, where its owner is about to cut it: guesses that were wrong."""
    for counts in (_seen.kept(sampling), _generated.kept(sampling)):
        if counts is not None:
            counts.take_back(length)


def presence_penalty(logits: Editable, row: Row) -> None:
    """Subtract the penalty from every token generated so far (OpenAI's definition: the prompt does not count)."""
    if row.params.presence_penalty:
        tokens, _ = _counts(row)
        logits()[tokens] -= np.float32(row.params.presence_penalty)


def frequency_penalty(logits: Editable, row: Row) -> None:
    """Subtract the penalty from every token as often as it was generated (OpenAI's definition)."""
    if row.params.frequency_penalty:
        tokens, counts = _counts(row)
        logits()[tokens] -= np.float32(row.params.frequency_penalty) * counts


def temperature(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Divide the logits, taken as distances below the greatest, so that it becomes 0 whatever the divisor."""
    below = candidates.logits - candidates.logits.max()
    return Candidates(candidates.tokens, below / np.float32(params.temperature))


def top_k(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Keep exactly the k most likely."""
    if 0 < params.top_k < candidates.tokens.size:
        return candidates.keep(np.sort(top(candidates.logits, params.top_k)))
    return candidates


def top_p(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Keep the fewest most likely whose share of the candidates' mass reaches p: the one that crosses it stays.

    Source: Holtzman et al., "The curious case of neural text degeneration", ICLR 2020, section 3.1. Most nuclei are
    small, so the order is found piece by piece instead of by sorting everything. The mass to reach is p times the
    total, multiplied in f64 and rounded up to an integer.
    """
    if params.top_p >= 1.0:
        return candidates
    masses = mass(candidates.logits)
    total = int(masses.sum())
    needed = min(math.ceil(params.top_p * total), total)
    size = 64
    while True:
        size = min(size * 8, masses.size)
        order = top(candidates.logits, size)
        reached = np.cumsum(masses[order])
        if reached[-1] >= needed:
            return candidates.keep(np.sort(order[: int(np.searchsorted(reached, needed)) + 1]))


def min_p(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Drop those less likely than `min_p` times the likeliest.

    Source: Nguyen et al., "Turning up the heat: min-p sampling", 2024, section 3.
    """
    if params.min_p > 0.0:
        return candidates.keep(exp(candidates.logits) >= np.float32(params.min_p))
    return candidates


LOGIT_RULES: Final[tuple[Callable[[Editable, Row], None], ...]] = (
    grammar,
    allowed_tokens,
    bad_words,
    min_tokens,
    logit_bias,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
)
CANDIDATE_RULES: Final[tuple[Callable[[Candidates, SamplingParams], Candidates], ...]] = (
    temperature,
    top_k,
    top_p,
    min_p,
)


def edited(logits: F32, row: Row) -> F32:
    """f32 [V] after the rules over the vocabulary, a copy where they changed it; forbidden is minus infinity."""
    if leaves_logits(row.sampling):
        return logits
    editable = Editable(logits)
    with np.errstate(over="ignore"):
        for rule in LOGIT_RULES:
            rule(editable, row)
    return editable.logits


class Neutral:
    """Whether all parameters that some rules have claimed (see `SamplingParams`) have the values that do nothing.

    Args:
        rules: their names.
    """

    def __init__(self, *rules: str) -> None:
        claims = {f"sampling.{rule}" for rule in rules}
        self._values = attrgetter(*(each.name for each in fields(SamplingParams) if each.metadata["rule"] in claims))
        self._neutral = self._values(SamplingParams())
        self._last: tuple[SamplingParams | None, bool] = (None, False)

    def __call__(self, params: SamplingParams) -> bool:
        """Whether they are, in this request. Who decodes alone asks for the same one at every step."""
        last, answer = self._last
        if params is not last:
            answer = bool(self._values(params) == self._neutral)
            self._last = params, answer
        return answer


_edits_nothing: Final = Neutral(*(rule.__name__ for rule in LOGIT_RULES))
_not_of_params: Final = attrgetter("masks", "bad_words")
"""What `LOGIT_RULES` go by besides."""


def leaves_logits(sampling: Sampling) -> bool:
    """Whether none of `LOGIT_RULES` ever does anything for the request, as for most."""
    return _edits_nothing(sampling.params) and not any(_not_of_params(sampling))


def takes_best(sampling: Sampling) -> bool:
    """Whether every token of the request is the most likely one by the raw logits."""
    return sampling.params.greedy and leaves_logits(sampling)


def nothing_allowed(row: Row) -> NothingAllowed:
    """What is raised where the masks leave no token."""
    return NothingAllowed(f"no token is allowed at position {row.position}: masks and parameters forbid all of them")


@np.errstate(over="ignore")
def permitted(logits: F32, row: Row) -> Candidates:
    """Every token that may follow, with its logit after the rules over the vocabulary: f32 [V] -> candidates.

    Raises:
        NothingAllowed: the masks leave no token.
    """
    logits = edited(logits, row)
    tokens = np.flatnonzero(logits > _NEVER)
    if not tokens.size:
        raise nothing_allowed(row)
    return Candidates(tokens, logits[tokens])


@np.errstate(over="ignore")
def distribution(logits: F32, row: Row) -> Candidates:
    """What is drawn from: the permitted tokens after temperature, top-k, top-p and min-p; their logits are final."""
    candidates = permitted(logits, row)
    for rule in CANDIDATE_RULES:
        candidates = rule(candidates, row.params)
    return candidates
