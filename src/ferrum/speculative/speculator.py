"""The drafter of an engine: asks its proposers for drafts and verifies as many tokens as measured gain allows.

Drafts come from proposers. No draft changes a token of an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from ferrum.core.policy_config import POLICY
from ferrum.core.snapshots import SpeculationCounts
from ferrum.core.types import Request
from ferrum.scheduler.drafts import DraftRequest, StepLoad
from ferrum.scheduler.sequence import Sequence
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.guide_proposer import GRAMMAR
from ferrum.speculative.proposer import Draft, DraftComputer, Proposer

# ---- The length of drafts: the number of tokens that gives the most expected tokens per second ----


@dataclass(slots=True)
class AcceptanceRate:
    """A moving average of how often a draft token is accepted, given that those before it were.

    Attributes:
        window: draft tokens that it averages over.
        rate: the probability that the next one is accepted.
        observed: draft tokens seen. The first few weigh more, so that a wrong initial rate fades quickly.
    """

    window: int
    rate: float = POLICY.draft_initial_acceptance
    observed: int = 0

    def observe(self, accepted: bool) -> None:
        """Take in one draft token."""
        self.observed += 1
        self.rate += (accepted - self.rate) / min(self.observed + 2, self.window)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that has a draft.

    Attributes:
        limit: length of the draft, in tokens.
        rate: probability that each token is accepted, given that those before it were.
        computed: whether a draft model has to compute the draft.
    """

    limit: int
    rate: float
    computed: bool


def best_lengths(
    candidates: Series[Candidate], room: StepLoad, costs: StepCosts, draft_seconds: Callable[[int], float]
) -> tuple[list[int], float]:
    """Return how many draft tokens to verify for each candidate, and the gain in tokens per second (1: none).

    All draft tokens are sorted by the probability that they are accepted. Every prefix of that order is a choice.

    Args:
        candidates: the sequences that the step samples a token for.
        room: the step without drafts.
        costs: predicts the seconds of a step; no drafts are verified before the first measurement.
        draft_seconds: seconds that one draft token for a number of sequences takes a draft model.
    """
    lengths = [0] * len(candidates)
    base = costs.predict(room.rows, room.context_tokens)
    if not base or sum(each.rate for each in candidates) < (POLICY.draft_min_gain - 1) * len(candidates):
        return lengths, 1.0  # unmeasured, or too little to gain even at no cost
    # Prompt chunks in the step take their time with or without drafts: the gain is that of the decoding part.
    plain = costs.predict(len(candidates), room.context_tokens)
    best, chosen = POLICY.draft_min_gain, 0
    tokens, drafting = float(len(candidates)), 0.0
    computed: Counter[int] = Counter()  # sequences that the draft model computes a token for, by position
    # A step may cost anything beyond the largest one measured: it is at most doubled at a time.
    order = _by_probability(candidates)[: min(room.budget, max(room.rows, 2 * costs.largest - room.rows))]
    for count, (probability, position, index) in enumerate(order, 1):
        tokens += probability
        if candidates[index].computed:
            active = computed[position]
            drafting += draft_seconds(active + 1) - (draft_seconds(active) if active else 0.0)
            computed[position] += 1
        seconds = plain + costs.predict(room.rows + count, room.context_tokens) - base + drafting
        if tokens * plain > best * seconds * len(candidates):
            best, chosen = tokens * plain / (seconds * len(candidates)), count
    for _, _, index in order[:chosen]:
        lengths[index] += 1
    return lengths, best if chosen else 1.0


def _by_probability(candidates: Series[Candidate]) -> list[tuple[float, int, int]]:
    """Return every draft token as (probability, position, candidate), the most probable first."""
    tokens = [
        (each.rate**position, position, index)
        for index, each in enumerate(candidates)
        for position in range(1, each.limit + 1)
    ]
    return sorted(tokens, key=lambda token: (-token[0], token[1]))


COMPUTED: Final = "model"
"""The kind of drafts that a draft model computes."""


@dataclass(slots=True)
class _State:
    """What is known of a sequence.

    Attributes:
        rates: acceptance by kind of draft.
        draft: the latest one, to be compared with what was generated.
        start: position of its first token.
    """

    rates: dict[str, AcceptanceRate] = field(default_factory=dict)
    draft: Draft | None = None
    start: int = 0


class Speculator:
    """A `Drafter` with several proposers.

    Args:
        costs: seconds of steps; the scheduler keeps them up to date.
        max_draft: longest draft, in tokens.
        proposers: the first one that has a draft is used.
        model: used where no proposer has a draft; None: there is no draft model.

    Attributes:
        counts: verified and accepted draft tokens so far.
    """

    def __init__(
        self, costs: StepCosts, *, max_draft: int, proposers: Series[Proposer], model: DraftComputer | None = None
    ) -> None:
        self._costs = costs
        self._max_draft = max_draft
        self._proposers = tuple(proposers)
        self.only_predicted = model is None and all(each.only_predicted for each in self._proposers)
        self._model = model
        self._states: defaultdict[str, _State] = defaultdict(_State)
        self._rates: defaultdict[str, AcceptanceRate] = defaultdict(lambda: AcceptanceRate(POLICY.draft_kind_window))
        self._since_retry = 0
        self.counts = SpeculationCounts(accepted_per_position=(0,) * max_draft)

    def draft(self, requests: Series[DraftRequest], room: StepLoad) -> list[tuple[int, ...]]:
        self._since_retry += 1
        for request in requests:
            self._observe(request.sequence)
        found = [self._propose(request) for request in requests]
        if self._model is None and not any(found):
            return [()] * len(requests)
        room = self._considerate(found, room)
        candidates = [self._candidate(request, draft) for request, draft in zip(requests, found, strict=True)]
        lengths, retried = self._lengths(requests, candidates, room)
        computed = self._compute(requests, found, lengths)
        drafts = []
        for request, draft, length in zip(requests, found, lengths, strict=True):
            tokens = () if draft is None else draft.tokens[:length]
            if draft is None and length:
                tokens = _before_placeholders(computed.pop(0), request.sequence.request)
                draft = Draft(tokens, COMPUTED)
            state = self._states[request.sequence.cache_id]
            # A draft that is not verified is compared, too: it shows for free when drafts begin to pay.
            state.draft, state.start = draft, len(request.sequence.tokens)
            drafts.append(tokens)
        if retried is not None and drafts[retried]:
            self._since_retry = 0
        return drafts

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:  # noqa: ARG002 - a drafter's signature
        self.counts = self.counts.plus(drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        self._observe(sequence)
        self._states.pop(sequence.cache_id, None)
        for proposer in self._proposers:
            proposer.forget(sequence)
        if self._model is not None:
            self._model.forget(sequence)

    def _observe(self, sequence: Sequence) -> None:
        """Compare the latest draft of a sequence with the tokens that were generated."""
        state = self._states[sequence.cache_id]
        if state.draft is not None:
            kind, generated = state.draft.kind, sequence.tokens[state.start :]
            for token, actual in zip(state.draft.tokens, generated, strict=False):
                for rates in (state.rates, self._rates):
                    rates[kind].observe(token == actual)
                if token != actual:
                    break
            state.draft = None

    def _propose(self, request: DraftRequest) -> Draft | None:
        drafts = (
            proposer.propose(request.sequence, min(request.limit, self._max_draft)) for proposer in self._proposers
        )
        draft = next((draft for draft in drafts if draft is not None), None)
        if draft is None or not request.sequence.request.inputs:
            return draft
        tokens = _before_placeholders(draft.tokens, request.sequence.request)
        return replace(draft, tokens=tokens) if tokens else None

    def _considerate(self, found: Series[Draft | None], room: StepLoad) -> StepLoad:
        """Return the step with as many drafts as hardly delay its other sequences, if only grammars have any.

        Drafts of an option or of a prediction were asked for; those of a grammar come with the requests of others.
        """
        drafts = [each for each in found if each is not None]
        if self._model is not None or len(drafts) == room.rows or {each.kind for each in drafts} != {GRAMMAR}:
            return room
        limit = self._costs.predict(room.rows, room.context_tokens) * (1 + POLICY.grammar_draft_delay)

        def seconds(count: int) -> float:
            return self._costs.predict(room.rows + count, room.context_tokens)

        return replace(room, budget=bisect_right(range(1, room.budget + 1), limit, key=seconds))

    def _candidate(self, request: DraftRequest, draft: Draft | None) -> Candidate:
        kind = COMPUTED if draft is None else draft.kind
        if draft is not None:
            limit = len(draft.tokens)
        else:
            limit = (
                0 if self._model is None else min(self._model.limit(request.sequence), request.limit, self._max_draft)
            )
        # A sequence begins with the acceptance that others have shown, and with little confidence in it.
        rates = self._states[request.sequence.cache_id].rates
        initial = AcceptanceRate(POLICY.draft_sequence_window, self._rates[kind].rate)
        return Candidate(limit, rates.setdefault(kind, initial).rate, computed=draft is None)

    def _lengths(
        self, requests: Series[DraftRequest], candidates: Series[Candidate], room: StepLoad
    ) -> tuple[list[int], int | None]:
        """Return draft lengths by measured gain, and the sequence whose draft is a retry, if any."""
        lengths, gain = best_lengths(candidates, room, self._costs, self._draft_seconds)
        plain = self._costs.predict(len(candidates), room.context_tokens)
        if not plain:
            return lengths, None
        reading = [
            self._model.reading_seconds(request.sequence) if self._model is not None and each.computed else 0.0
            for request, each in zip(requests, candidates, strict=True)
        ]
        for index, request in enumerate(requests):
            # Reading pays if drafts save the sequence's part of the steps to come at least twice that time: by when
            # all prompts of the batch are read, many of those steps are over.
            if 2 * reading[index] > (1 - 1 / gain) * request.limit * plain / len(requests):
                lengths[index] = 0
        # What looks expensive is not run, so one draft is verified at intervals whatever it is believed to cost. What
        # a lookup proposes is compared in every step: while none of it comes true, there is nothing to retry.
        worth = POLICY.draft_min_gain - 1
        possible = [at for at, each in enumerate(candidates) if each.limit and (each.computed or each.rate > worth)]
        if possible and room.budget:
            cheapest = min(possible, key=lambda at: (reading[at], -candidates[at].rate))
            if self._since_retry >= POLICY.draft_retry_steps * (1 + reading[cheapest] / plain):
                limit, rate = candidates[cheapest].limit, candidates[cheapest].rate
                until_rejection = 1 / max(1 - rate, 1 / limit)
                lengths[cheapest] = max(lengths[cheapest], min(int(until_rejection), room.budget))
                return lengths, cheapest
        return lengths, None

    def _draft_seconds(self, sequences: int) -> float:
        return 0.0 if self._model is None else self._model.seconds(sequences)

    def _compute(
        self, requests: Series[DraftRequest], found: Series[Draft | None], lengths: Series[int]
    ) -> list[tuple[int, ...]]:
        """Return the draft model's drafts for sequences that have none and were given a length, in order."""
        wanted = [
            replace(request, limit=length)
            for request, draft, length in zip(requests, found, lengths, strict=True)
            if draft is None and length
        ]
        return self._model.draft(wanted) if self._model is not None and wanted else []


def _before_placeholders(tokens: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Return a draft up to the first token that stands for given rows (an image): an answer has none."""
    placeholders = {request.prompt[each.positions[0]] for each in request.inputs if each.positions}
    return tuple(takewhile(lambda token: token not in placeholders, tokens)) if placeholders else tokens
