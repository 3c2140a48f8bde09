"""Rules about repeated sequences of tokens: `no_repeat_ngram` and `dry`. Their place in the order is in `rules.py`.

Both ask how much of the end of the tokens also stands before each earlier token (`SuffixMatches`). The cost of a step
grows with the number of tokens, not with the lengths of repetitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.step import Sampling
from ferrum.sampling.probabilities import F32, Int64
from ferrum.sampling.rows import NEVER, EditableLogits, OwnerCache, Row

Int32 = NDArray[np.int32]

_MAX_PENALTY: Final = np.float32(2.0**126)
"""The largest penalty of DRY. Logits stay finite, so no token is forbidden."""


def suffix_matches(tokens: Sequence[int]) -> list[int]:
    """Return for each token how many tokens directly before it equal the last ones of the sequence, in their order.

    Source: the Z-algorithm (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997, section 1.4), from the end.
    """
    last, count = tokens[::-1], len(tokens)
    matches = [0] * (count + 1)  # by distance from the end
    begin = end = 0  # the match that reaches furthest
    for place in range(1, count):
        length = min(matches[place - begin], end - place) if place < end else 0
        while place + length < count and last[length] == last[place + length]:
            length += 1
        matches[place] = length
        if place + length > end:
            begin, end = place, place + length
    return matches[:0:-1]


class SuffixMatches:
    """The `suffix_matches` of a growing sequence. A call passes over the tokens once for each new one.

    Args:
        history: the sequence. It may grow; call `truncate` before cutting it.
    """

    def __init__(self, history: Sequence[int]) -> None:
        self._history = history
        self._known: tuple[Int32, Int32] | None = None

    def __call__(self, length: int, drafts: Sequence[int] = ()) -> tuple[Int32, Int32]:
        """Return the first `length` tokens with the draft tokens, and the match of each: int32 [n], int32 [n]."""
        self.truncate(length)
        if self._known is None:
            tokens = list(self._history[:length])
            self._known = np.array(tokens, np.int32), np.array(suffix_matches(tokens), np.int32)
        else:
            self._known = _appended(self._known, self._history[len(self._known[0]) : length])
        return _appended(self._known, drafts)

    def truncate(self, length: int) -> None:
        """Remove the tokens from position `length` on. Call before cutting the sequence."""
        if self._known is not None and len(self._known[0]) > length:
            self._known = None  # matches that ended cannot be lengthened again


def _appended(known: tuple[Int32, Int32], new: Sequence[int]) -> tuple[Int32, Int32]:
    """Return tokens and their matches after new tokens: each lengthens what it continues, and ends the rest."""
    tokens, matches = known
    for token in new:
        continued = (matches + np.int32(1)) * (tokens == token)
        tokens, matches = np.append(tokens, np.int32(token)), np.concatenate([np.zeros(1, np.int32), continued])
    return tokens, matches


class _Breakers:
    """Token sequences that end a repetition, for a vocabulary.

    Args:
        sequences: see `Sampling.dry_sequence_breakers`.
        vocab_size: other tokens occur in no history.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
        self._rests: defaultdict[int, list[list[int]]] = defaultdict(list)
        for first, *rest in sequences:
            if first < vocab_size:
                self._rests[first].append(rest)
        self._longest = max((len(each) for each in sequences), default=0)
        self._begins = np.zeros(vocab_size, np.bool_)
        self._begins[list(self._rests)] = True
        self.alone = np.zeros(vocab_size, np.bool_)
        """Which tokens are breakers without another token."""
        self.alone[[first for first, rests in self._rests.items() if [] in rests]] = True

    def since(self, tokens: Int32, most: int) -> int:
        """Return how many tokens follow the last breaker, or at least `most` if there is none so near."""
        last = tokens[-(most + self._longest) :]
        for place in np.flatnonzero(self._begins[last])[::-1].tolist():
            rests = self._rests[int(last[place])]
            whole = [len(rest) for rest in rests if last[place + 1 : place + 1 + len(rest)].tolist() == rest]
            if whole:
                return int(last.size - 1 - place - max(whole))
        return int(last.size)


_matches: Final = OwnerCache[SuffixMatches]()
_breakers: Final = OwnerCache[_Breakers]()


def _matches_of(row: Row) -> tuple[Int32, Int32]:
    return _matches(row.sampling, SuffixMatches, row.sampling.history)(row.known, row.drafts)


def truncate_matches(sampling: Sampling, length: int) -> None:
    """Remove tokens from position `length` on from the matches. Call before cutting the history."""
    matches = _matches.get(sampling)
    if matches is not None:
        matches.truncate(length)


def no_repeat_ngram(logits: EditableLogits, row: Row) -> None:
    """Forbid each token that would complete n tokens that stand in prompt and output already.

    Source: Paulus et al., "A deep reinforced model for abstractive summarization", 2017, section 2.5, with the name and
    the tokens of transformers (`NoRepeatNGramLogitsProcessor`).
    """
    if row.params.no_repeat_ngram_size:
        tokens, matches = _matches_of(row)
        forbidden = tokens[matches >= row.params.no_repeat_ngram_size - 1]
        if forbidden.size:
            logits()[forbidden] = NEVER


def dry(logits: EditableLogits, row: Row) -> None:
    """Subtract a penalty from each token that would continue a repetition of the last tokens.

    If the last n tokens stand before it in the sequence, n at least `dry_allowed_length`, the penalty is
    `dry_multiplier` * `dry_base` ** (n - `dry_allowed_length`), with the largest such n. A repetition has no sequence
    breaker in it, and a token that is a breaker alone has no penalty.

    Source: p-e-w, "DRY: a modern repetition penalty", text-generation-webui #5677, 2024, with the window and the
    overlaps of breakers and tokens of llama.cpp (`llama_sampler_dry_apply`).
    """
    params = row.params
    if not params.dry_multiplier or not params.dry_penalty_last_n:
        return
    tokens, matches = _matches_of(row)
    if 0 < params.dry_penalty_last_n < tokens.size:
        tokens, matches = tokens[-params.dry_penalty_last_n :], matches[-params.dry_penalty_last_n :]
        matches = np.minimum(matches, np.arange(tokens.size, dtype=np.int32))
    longest = int(matches.max(initial=0))
    if longest < params.dry_allowed_length:
        return
    breakers = _breakers(row.sampling, _Breakers, row.sampling.dry_sequence_breakers, logits.size)
    found, lengths = _longest_matches(tokens, matches, params.dry_allowed_length, breakers.since(tokens, longest))
    penalised = ~breakers.alone[found]
    if penalised.any():
        repeated = lengths[penalised] - params.dry_allowed_length
        logits()[found[penalised]] -= dry_penalties(params.dry_multiplier, params.dry_base, repeated)


def _longest_matches(tokens: Int32, matches: Int32, least: int, most: int) -> tuple[Int32, Int32]:
    """Return the distinct tokens with a match of at least `least`, and the longest match of each, at most `most`."""
    places = np.flatnonzero(np.minimum(matches, most) >= least)
    found, group = np.unique(tokens[places], return_inverse=True)
    lengths = np.zeros(found.size, np.int32)
    np.maximum.at(lengths, group, np.minimum(matches[places], most))
    return found, lengths


def dry_penalties(multiplier: float, base: float, exponents: Int32 | Int64) -> F32:
    """Return multiplier * base ** exponents, at most 2**126: powers are products in f32, one factor after the other."""
    factors = np.full(int(exponents.max(initial=0)) + 1, base, np.float32)
    factors[0] = 1.0
    with np.errstate(over="ignore"):
        powers = np.minimum(np.multiply.accumulate(factors), _MAX_PENALTY)
        penalties: F32 = np.minimum(np.float32(multiplier) * powers[exponents], _MAX_PENALTY)
    return penalties
