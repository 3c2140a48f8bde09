"""Rules that turn logits into the distribution of the next token, in their order of application.

    masks (grammar, allowed tokens, bad words, repeated n-grams, min_tokens), logit bias, repetition penalty, presence
    penalty, frequency penalty, DRY | temperature, top-k, top-p, min-p

Rules left of the bar edit the logits [V] of the whole vocabulary, copied before the first change. Rules right of the
bar filter or scale the candidate tokens. Of two equal tokens the lower id is the more likely. A rule with a neutral
parameter does nothing; each rule reads only the parameters of its name, and the tokens before the row only if these say
so (`core/params.py`): other rules get rows without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import NothingAllowed, StepError
from ferrum.core.params import SamplingParams
from ferrum.core.rule_fields import HISTORY_RULES, Neutral, reads_history, switches
from ferrum.core.step import Sampling
from ferrum.sampling.probabilities import F32, Int64, exp, mass, top
from ferrum.sampling.repetitions import dry, no_repeat_ngram, truncate_matches
from ferrum.sampling.rows import NEVER, EditableLogits, OwnerCache, Row, TokenCounts

_MAX_FLOAT = np.finfo(np.float32).max
_MAX_INT64: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that can be sampled.

    Attributes:
        tokens: ids [n], ascending, n >= 1.
        logits: f32 [n]; the greatest is finite.
    """

    tokens: Int64
    logits: F32

    def keep(self, which: NDArray[np.bool_] | Int64) -> Candidates:
        """Return the candidates at the given indices (ascending) or with a set mask."""
        return Candidates(self.tokens[which], self.logits[which])


_allowed: Final = OwnerCache[Int64]()
_stops: Final = OwnerCache[Int64]()
_biases: Final = OwnerCache[tuple[Int64, F32]]()
_seen: Final = OwnerCache[TokenCounts]()
_generated: Final = OwnerCache[TokenCounts]()


def grammar(logits: EditableLogits, row: Row) -> None:
    """Forbid the tokens without a bit in the row's mask. Ids after the end of the mask are forbidden."""
    if row.mask is not None:
        bits = np.unpackbits(np.frombuffer(row.mask, np.uint8), count=logits.size, bitorder="little")
        logits.keep(bits.view(np.int8))


def allowed_tokens(logits: EditableLogits, row: Row) -> None:
    """Forbid every token that is not in `allowed_token_ids`."""
    if row.params.allowed_token_ids is not None:
        tokens = _allowed(row.params, _ids, row.params.allowed_token_ids)
        kept = logits()[tokens]
        logits()[:] = NEVER
        logits()[tokens] = kept


def _ids(tokens: Iterable[int]) -> Int64:
    return np.array(list(tokens), np.int64)


def _ids_below(size: int, tokens: Iterable[int]) -> Int64:
    """Return the ids with logits. A tokenizer may have more ids than the model."""
    return _ids(token for token in tokens if token < size)


def bad_words(logits: EditableLogits, row: Row) -> None:
    """Forbid the last token of every bad word whose other tokens directly precede the row."""
    words, before = row.sampling.bad_words, tuple(row.tokens(row.position - 1))

    def is_begun(word: tuple[int, ...]) -> bool:
        start = row.position - len(word) + 1
        return start >= 0 and row.tokens(start) == list(word[:-1])

    # There may be thousands of words, but few contain the previous token.
    likely = [word for word in words if len(word) == 1 or word[-2:-1] == before]
    forbidden = [word[-1] for word in likely if len(word) == 1 or is_begun(word)]
    if forbidden:
        logits()[_ids_below(logits.size, forbidden)] = NEVER


def min_tokens(logits: EditableLogits, row: Row) -> None:
    """Forbid end and stop tokens until `min_tokens` have been generated."""
    if row.generated < row.params.min_tokens:
        # A request may list the whole vocabulary, so all its choices share one array.
        stops = _stops(row.params, _ids_below, _MAX_INT64, row.params.stop_token_ids)
        logits()[stops[stops < logits.size]] = NEVER
        logits()[_ids_below(logits.size, row.sampling.eos_token_ids)] = NEVER


def logit_bias(logits: EditableLogits, row: Row) -> None:
    """Add each token's bias."""
    if row.params.logit_bias:
        tokens, biases = _biases(row.params, _bias_of_each, row.params.logit_bias)
        logits()[tokens] += biases


def _bias_of_each(biases: Mapping[int, float]) -> tuple[Int64, F32]:
    return _ids(biases), np.array(list(biases.values()), np.float32)


def repetition_penalty(logits: EditableLogits, row: Row) -> None:
    """Divide positive logits of all tokens in prompt and output by the penalty, multiply negative ones by it.

    Source: Keskar et al., "CTRL", 2019, section 4.1, with the sign rule of transformers and vLLM.
    """
    if row.params.repetition_penalty != 1.0:
        penalty = np.float32(row.params.repetition_penalty)
        seen, _ = _seen(row.sampling, TokenCounts, row.sampling.history, 0)(row.known, row.drafts)
        values = logits()[seen]
        changed = np.where(values > 0, values / penalty, values * penalty)
        logits()[seen] = np.minimum(changed, _MAX_FLOAT)  # temperature needs finite differences


def _counts(row: Row) -> tuple[Int64, F32]:
    """Return the generated tokens and how often each was generated."""
    counts = _generated(row.sampling, TokenCounts, row.sampling.history, row.sampling.prompt_length)
    return counts(row.known, row.drafts)


def truncate_counts(sampling: Sampling, length: int) -> None:
    """Remove tokens from position `length` on from what rules keep. Call before cutting rejected drafts off."""
    truncate_matches(sampling, length)
    for counts in (_seen.get(sampling), _generated.get(sampling)):
        if counts is not None:
            counts.truncate(length)


def presence_penalty(logits: EditableLogits, row: Row) -> None:
    """Subtract the penalty from every token generated so far, without the prompt (OpenAI's definition)."""
    if row.params.presence_penalty:
        tokens, _ = _counts(row)
        logits()[tokens] -= np.float32(row.params.presence_penalty)


def frequency_penalty(logits: EditableLogits, row: Row) -> None:
    """Subtract the penalty from each token once per time it was generated (OpenAI's definition)."""
    if row.params.frequency_penalty:
        tokens, counts = _counts(row)
        logits()[tokens] -= np.float32(row.params.frequency_penalty) * counts


def temperature(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Divide the logits, as distances from the greatest, so that the greatest is 0 at any temperature."""
    below = candidates.logits - candidates.logits.max()
    return Candidates(candidates.tokens, below / np.float32(params.temperature))


def top_k(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Keep exactly the k most likely tokens."""
    if 0 < params.top_k < candidates.tokens.size:
        return candidates.keep(np.sort(top(candidates.logits, params.top_k)))
    return candidates


def top_p(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Keep the smallest set of most likely tokens whose share of the candidates' mass reaches p.

    Source: Holtzman et al., "The curious case of neural text degeneration", ICLR 2020, section 3.1. Most sets are
    small, so the candidates are ordered in growing pieces. The mass to reach is p times the total, multiplied in f64
    and rounded up to an integer.
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
    """Drop tokens less likely than `min_p` times the most likely one.

    Source: Nguyen et al., "Turning up the heat: min-p sampling", 2024, section 3.
    """
    if params.min_p > 0.0:
        return candidates.keep(exp(candidates.logits) >= np.float32(params.min_p))
    return candidates


LOGIT_RULES: Final[tuple[Callable[[EditableLogits, Row], None], ...]] = (
    grammar,
    allowed_tokens,
    bad_words,
    no_repeat_ngram,
    min_tokens,
    logit_bias,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    dry,
)
CANDIDATE_RULES: Final[tuple[Callable[[Candidates, SamplingParams], Candidates], ...]] = (
    temperature,
    top_k,
    top_p,
    min_p,
)


def edited(logits: F32, row: Row) -> F32:
    """Apply the rules over the vocabulary: f32 [V] -> f32 [V], copied if they change it. Minus infinity forbids.

    Raises:
        StepError: a rule reads tokens that the history does not have yet.
    """
    if row.mask is None and leaves_logits(row.sampling):
        return logits
    if row.known > len(row.sampling.history) and reads_history(row.sampling):
        raise StepError(f"a sampling rule needs the {row.known} tokens before the step; the history has fewer")
    editable, without_tokens = EditableLogits(logits), row.without_tokens()
    with np.errstate(over="ignore"):
        for rule in LOGIT_RULES:
            rule(editable, row if rule.__name__ in HISTORY_RULES else without_tokens)
    return editable.logits


def candidate_rules_within(names: Collection[str]) -> Callable[[SamplingParams], bool]:
    """Return a test whether the candidate rules that a request uses are all among `names`.

    A rule without a parameter is used by every request.
    """
    others = [rule.__name__ for rule in CANDIDATE_RULES if rule.__name__ not in names]
    if not all(switches(SamplingParams, [other]) for other in others):
        return lambda _: False
    return Neutral(*others).of_params


leaves_logits: Final = Neutral(*(rule.__name__ for rule in LOGIT_RULES))
"""Returns whether no rule of `LOGIT_RULES` ever changes the logits of a request, if a row has no mask."""


def takes_best(sampling: Sampling) -> bool:
    """Return whether the request takes the most likely token of the raw logits of rows without a mask."""
    return sampling.params.greedy and leaves_logits(sampling)


def nothing_allowed(row: Row) -> NothingAllowed:
    """Return the error for a row whose masks leave no token."""
    return NothingAllowed(f"no token is allowed at position {row.position}: masks and parameters forbid all tokens")


@np.errstate(over="ignore")
def permitted(logits: F32, row: Row) -> Candidates:
    """Return the permitted tokens with their logits after the rules over the vocabulary.

    Raises:
        NothingAllowed: the masks leave no token.
    """
    logits = edited(logits, row)
    tokens = np.flatnonzero(logits > NEVER)
    if not tokens.size:
        raise nothing_allowed(row)
    return Candidates(tokens, logits[tokens])


@np.errstate(over="ignore")
def distribution(logits: F32, row: Row) -> Candidates:
    """Return the candidates to draw from: permitted tokens after temperature, top-k, top-p and min-p."""
    candidates = permitted(logits, row)
    for rule in CANDIDATE_RULES:
        candidates = rule(candidates, row.params)
    return candidates
