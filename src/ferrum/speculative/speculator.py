"""The drafter of an engine: asks the proposers, chooses how much of what they guess is verified, and learns from it.

Guesses that are looked up cost nothing until they are verified, so what was not verified is compared with what came
instead: a sequence on which guessing does not pay runs as if there were none, and is noticed as soon as it pays. What
all this costs is kept within what it has brought (`account`).
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from typing import Final

from ferrum.core.snapshots import SpeculationCounts
from ferrum.core.types import Sequence
from ferrum.scheduler.drafts import Room, Wish
from ferrum.scheduler.step_cost_model import StepCosts
from ferrum.speculative.budget import Account
from ferrum.speculative.draft_length import Candidate, Tally, best_lengths
from ferrum.speculative.proposer import Drafts, Guess, Proposer

RETRY: Final = 64
"""Steps whose guesses were likely enough but too dear after which a few are verified all the same: costs change."""

LONGEST_RETRY: Final = 1024
"""Each time in vain the next one is twice as many steps away, up to so many."""

RETRIED: Final = 2
"""How many guesses that step verifies, of the sequence whose guesses are likeliest."""

HOPEFUL: Final = 0.5
"""How likely these guesses are at least."""

READING: Final = 16.0
"""What a model may take for reading and guessing together before any guess was right, in steps. What it may earn, and
owe, is four times as much: a prompt is read at once and paid back over the whole answer."""

READ_FOR_ONE: Final = 64
"""Most tokens that are read for each one that is still to come."""

COMPUTED: Final = "model"
"""The kind of guesses that are computed."""


@dataclass(slots=True)
class _Step:
    """What a step was asked for, and what came of it.

    Attributes:
        room, sequences: the step without guesses, and the sequences that it samples a token for.
        drafting, reading: seconds that guesses were computed, and that the model read before it could.
        drafted, accepted: guesses that were verified, and right ones.
    """

    room: Room
    sequences: int
    drafting: float = 0.0
    reading: float = 0.0
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class _State:
    """What is known of a sequence.

    Attributes:
        tallies: by kind of guess.
        kind: of the guesses that are being verified.
        passed: a guess that was not verified: the position, the token, its kind.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    kind: str = ""
    passed: tuple[int, int, str] | None = None


class Speculator:
    """A `Drafter` of several proposers.

    Args:
        costs: what steps cost, kept up to date by the scheduler.
        most: longest draft.
        proposers: the first one that has a guess is heard.
        model: asked where none has one; None: there is no such model.

    Attributes:
        counts: what was verified so far.
    """

    def __init__(
        self, costs: StepCosts, *, most: int, proposers: Series[Proposer], model: Drafts | None = None
    ) -> None:
        self._costs = costs
        self._most = most
        self._proposers = tuple(proposers)
        self._model = model
        self._states: dict[str, _State] = {}
        self._all: dict[str, Tally] = {}
        self._account = Account()
        self._with_reading = Account(READING, least=-4 * READING, most=4 * READING)
        self._step: _Step | None = None
        self._dear, self._retry = 0, RETRY
        self.counts = SpeculationCounts(accepted_per_position=(0,) * most)

    def may_guess(self, sequence: Sequence) -> bool:
        """See `Drafter`."""
        return self._model is not None or any(proposer.knows(sequence) for proposer in self._proposers)

    def draft(self, wishes: Series[Wish], room: Room) -> list[tuple[int, ...]]:
        """See `Drafter`."""
        self._settle()
        step = self._step = _Step(room, len(wishes))
        self._account.hope(sum(self._came_true(wish.sequence) for wish in wishes) / max(1, len(wishes)))
        guesses = [self._look(wish) for wish in wishes]
        if self._model is None and not any(guesses):
            return [()] * len(wishes)
        candidates = [self._candidate(wish, guess) for wish, guess in zip(wishes, guesses, strict=True)]
        lengths = self._lengths(candidates, room)
        computed = self._compute(step, wishes, guesses, lengths)
        drafts = []
        for wish, guess, length in zip(wishes, guesses, lengths, strict=True):
            state = self._states[wish.sequence.cache_id]
            state.kind = COMPUTED if guess is None else guess.kind
            if guess is None:
                drafts.append(computed.pop(0) if length else ())
            else:
                drafts.append(guess.tokens[:length])
                state.passed = None if length else (len(wish.sequence.tokens), guess.tokens[0], guess.kind)
        return drafts

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See `Drafter`."""
        state = self._states[sequence.cache_id]
        self._note(state, state.kind, accepted, int(accepted < drafted))
        if self._step is not None:
            self._step.drafted += drafted
            self._step.accepted += accepted
        self.counts = self.counts.plus(drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        self._states.pop(sequence.cache_id, None)
        for proposer in self._proposers:
            proposer.forget(sequence)
        if self._model is not None:
            self._model.forget(sequence)

    def _came_true(self, sequence: Sequence) -> bool:
        """Whether a guess for the sequence that was not verified was right."""
        state = self._states.setdefault(sequence.cache_id, _State())
        if state.passed is None:
            return False
        position, token, kind = state.passed
        right = sequence.tokens[position : position + 1] == [token]
        self._note(state, kind, int(right), int(not right))
        state.passed = None
        return right

    def _look(self, wish: Wish) -> Guess | None:
        guesses = (proposer.look(wish.sequence, min(wish.limit, self._most)) for proposer in self._proposers)
        return next((guess for guess in guesses if guess is not None), None)

    def _note(self, state: _State, kind: str, right: int, wrong: int) -> None:
        for tallies in (state.tallies, self._all):
            tallies.setdefault(kind, Tally()).note(right, wrong)

    def _candidate(self, wish: Wish, guess: Guess | None) -> Candidate:
        if guess is None:
            kind, limit = COMPUTED, min(self._computable(wish), wish.limit, self._most)
        else:
            kind, limit = guess.kind, len(guess.tokens)
        state = self._states[wish.sequence.cache_id]
        general = self._all.setdefault(kind, Tally()).likely()
        return Candidate(limit, state.tallies.setdefault(kind, Tally()).likely(general), computed=guess is None)

    def _computable(self, wish: Wish) -> int:
        """How many tokens the model may guess: none where it would first read too much."""
        if self._model is None:
            return 0
        unread = self._model.unread(wish.sequence)
        if unread > READ_FOR_ONE * wish.limit or (unread and self._with_reading.balance <= 0):
            return 0
        return self._model.limit(wish.sequence)

    def _settle(self) -> None:
        """Enter the last step in the accounts, at what such steps have been found to cost, itself included."""
        step = self._step
        if step is None:
            return
        cost = gain = reading = 0.0
        if step.drafted or step.drafting or step.reading:
            room, predict = step.room, self._costs.predict
            plain = predict(step.sequences, room.context_tokens)
            if not plain:
                return
            without, with_guesses = (predict(room.rows + more, room.context_tokens) for more in (0, step.drafted))
            cost, gain = (with_guesses - without + step.drafting) / plain, step.accepted / step.sequences
            reading = step.reading / plain
        self._account.settle(cost, gain)
        self._with_reading.settle(cost + reading, gain)

    def _lengths(self, candidates: Series[Candidate], room: Room) -> list[int]:
        seconds = (lambda _: 0.0) if self._model is None else self._model.seconds
        credit = self._account.balance
        lengths = best_lengths(candidates, room, self._costs, seconds, credit)
        if any(lengths):
            self._retry = RETRY
            return lengths
        likeliest = max(range(len(candidates)), key=lambda index: candidates[index].likely)
        if candidates[likeliest].likely < HOPEFUL or credit <= 0:
            return lengths
        self._dear += 1
        if self._dear >= self._retry:
            self._dear, self._retry = 0, min(LONGEST_RETRY, 2 * self._retry)
            lengths[likeliest] = min(candidates[likeliest].limit, RETRIED)
        return lengths

    def _compute(
        self, step: _Step, wishes: Series[Wish], guesses: Series[Guess | None], lengths: Series[int]
    ) -> list[tuple[int, ...]]:
        """What the model guesses for those who want a guess and have none, in their order."""
        model = self._model
        if model is None:
            return []
        wanting = []
        for wish, guess, length in zip(wishes, guesses, lengths, strict=True):
            if guess is None and length:
                wanting.append(Wish(wish.sequence, length))
            elif guess is None:
                # Nothing will be heard of what is not computed, and what was bad may become better.
                self._states[wish.sequence.cache_id].tallies[COMPUTED].fade()
        if not wanting and COMPUTED in self._all:
            self._all[COMPUTED].fade()
        spent, spent_reading = model.spent, model.spent_reading
        computed = model.draft(wanting) if wanting else []
        step.drafting, step.reading = model.spent - spent, model.spent_reading - spent_reading
        return computed
