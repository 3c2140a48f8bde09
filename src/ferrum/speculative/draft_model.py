"""Guesses by a smaller model with the same vocabulary (Leviathan, Kalman and Matias, ICML 2023; Chen et al., 2023).

It has an executor and pages of its own, and samples with the request's own rules and draws: two models that are close
then mostly draw the same token, at any temperature.

Guesses are a hint: what goes wrong with them is told in the log, and whoever would have had them goes on without.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Series
from dataclasses import dataclass, field, replace
from typing import Final

from ferrum.contract.executor import ModelExecutor
from ferrum.core.errors import CapacityError, FerrumError, StepError
from ferrum.core.memory_plan import MemoryPlan
from ferrum.core.step import Sampling, Span, StepBatch, StepOutput, Want
from ferrum.core.types import Sequence
from ferrum.sampling.rules import take_back
from ferrum.scheduler.drafts import Wish
from ferrum.scheduler.step_cost_model import StepCosts, weighed_context

CATCH_UP: Final = 256
"""Most tokens that are read at a time, of all sequences: long prompts are no reason to keep the others waiting."""

FEW: Final = 16
"""Most tokens that run in the step of the first guess. More are read before, at other costs than guesses have."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Cached:
    """What the model has stored of a sequence: its first `known` tokens, then guesses.

    Attributes:
        sampling: the sequence's, without log-probabilities and with a history of its own. It is made once, for its
            parameters may be large, and so may be what the rules have counted.
        history: that history: the sequence's tokens when a draft began, and what was guessed after them.
        told: how many were the sequence's.
    """

    sampling: Sampling
    history: list[int]
    told: int = 0
    known: int = 0
    guesses: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Stored tokens."""
        return self.known + len(self.guesses)

    def agreed(self, sequence: Sequence) -> int:
        """How many stored tokens are the sequence's, its last one excepted: that one has to run."""
        right = 0
        for guess, token in zip(self.guesses, sequence.tokens[self.known :], strict=False):
            if guess != token:
                break
            right += 1
        return min(self.known + right, len(sequence.tokens) - 1)

    def go_back(self, sequence: Sequence, agreed: int) -> None:
        """Take the guesses back that are not the sequence's, and take in what is new of it."""
        right = max(self.told, agreed)
        take_back(self.sampling, right)
        self.history[right:] = sequence.tokens[right:]
        self.known, self.guesses, self.told = agreed, [], len(sequence.tokens)


def _new(sequence: Sequence) -> _Cached:
    """Nothing is stored yet."""
    history: list[int] = []
    params = sequence.sampling.params.but(logprobs=None, prompt_logprobs=None)
    return _Cached(replace(sequence.sampling, params=params, history=history, masks=()), history)


@dataclass(slots=True)
class _Draft:
    """A draft while it is being guessed."""

    wish: Wish
    cached: _Cached
    tokens: list[int] = field(default_factory=list)


def _much(unread: int) -> int:
    """How many of the unread tokens are read before the step that guesses: all but the last, where they are many."""
    return 0 if unread <= FEW else unread - 1


class DraftModel:
    """See `Drafts`.

    Args:
        executor: of the smaller model; nobody else steps it.
        costs: of its steps that guess, which it keeps up to date.
        reading: of those in which it reads, too.

    Attributes:
        spent, spent_reading: see `Drafts`.
    """

    def __init__(self, executor: ModelExecutor, costs: StepCosts, reading: StepCosts) -> None:
        self._executor = executor
        self._costs, self._reading = costs, reading
        self._context = executor.capabilities().max_sequence_length
        self._cached: dict[str, _Cached] = {}
        self._stored: int | None = 0
        self._failed: set[str] = set()
        self._told = self._broken = False
        self.spent = self.spent_reading = 0.0

    @property
    def memory_plan(self) -> MemoryPlan:
        """What the model holds in memory."""
        return self._executor.memory_plan

    def limit(self, sequence: Sequence) -> int:
        """See `Drafts`."""
        if self._broken or sequence.cache_id in self._failed:
            return 0
        return max(0, self._context - len(sequence.tokens))

    def unread(self, sequence: Sequence) -> int:
        """See `Drafts`."""
        cached = self._cached.get(sequence.cache_id)
        return _much(len(sequence.tokens) - (0 if cached is None else cached.agreed(sequence)))

    def seconds(self, sequences: int) -> float:
        """See `Drafts`."""
        if self._stored is None:  # it is asked for every beginning of the guesses that a step may verify
            self._stored = sum(each.length for each in self._cached.values())
        return self._costs.predict(sequences, self._stored * sequences // max(1, len(self._cached)))

    def draft(self, wishes: Series[Wish]) -> list[tuple[int, ...]]:
        """See `Drafts`. A sequence of which much is unread is read on, and gets no guess before that is done."""
        if self._broken:
            return [()] * len(wishes)
        self._stored = None
        try:
            drafts = [self._begin(wish) for wish in wishes]
            active = self._read(drafts)
            active = self._run(active, [self._first(draft) for draft in active]) if active else []
            while active:
                active = self._run(active, [self._next(draft) for draft in active])
        except Exception:  # noqa: BLE001 - whatever a model dies of, answers do not need it
            _LOG.exception("the draft model is broken: nothing more is guessed by it")
            self._broken = True
            self._cached.clear()
            return [()] * len(wishes)
        return [tuple(draft.tokens) for draft in drafts]

    def forget(self, sequence: Sequence) -> None:
        """See `Drafts`."""
        self._failed.discard(sequence.cache_id)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._stored = None
        if self._cached.pop(sequence.cache_id, None) is not None:
            self._executor.release_cache(sequence.cache_id)

    def _begin(self, wish: Wish) -> _Draft:
        """Take the stored tokens back to where they agree with the sequence."""
        sequence = wish.sequence
        cached = self._cached.get(sequence.cache_id)
        if cached is None:
            cached = self._cached[sequence.cache_id] = _new(sequence)
        agreed = cached.agreed(sequence)
        if agreed < cached.length:
            self._executor.truncate_kv_for_cache_id(sequence.cache_id, agreed)
        cached.go_back(sequence, agreed)
        return _Draft(wish, cached)

    def _read(self, drafts: Series[_Draft]) -> list[_Draft]:
        """Read on where much is unread, one sequence after the other; the drafts for which nothing is left to read."""
        room = CATCH_UP
        behind, spans, ready = [], [], []
        for draft in drafts:
            tokens, known = draft.wish.sequence.tokens, draft.cached.known
            count = _much(len(tokens) - known)
            now = tuple(tokens[known : known + min(count, room)])
            if now:
                room -= len(now)
                behind.append(draft)
                spans.append(Span(draft.wish.sequence.cache_id, known, now, want=Want.NONE))
            if len(now) == count:
                ready.append(draft)
        if not spans:
            return ready
        self.spent_reading += self._step(behind, spans, self._reading)
        return [draft for draft in ready if not _much(len(draft.wish.sequence.tokens) - draft.cached.known)]

    def _first(self, draft: _Draft) -> Span:
        """The tokens that the model has not read; the last of them is followed by the first guess."""
        sequence, start = draft.wish.sequence, draft.cached.known
        return Span(sequence.cache_id, start, tuple(sequence.tokens[start:]), sampling=draft.cached.sampling)

    def _next(self, draft: _Draft) -> Span:
        """The last guess, which is followed by the next one."""
        return Span(
            draft.wish.sequence.cache_id, draft.cached.length, (draft.tokens[-1],), sampling=draft.cached.sampling
        )

    def _run(self, drafts: Series[_Draft], spans: Series[Span]) -> list[_Draft]:
        """Run a step that guesses; the drafts that want one more guess after it."""
        before = [len(draft.tokens) for draft in drafts]
        self.spent += self._step(drafts, spans, self._costs)
        return [
            draft for draft, count in zip(drafts, before, strict=True) if count < len(draft.tokens) < draft.wish.limit
        ]

    def _step(self, drafts: Series[_Draft], spans: Series[Span], costs: StepCosts) -> float:
        """Run a step and take in what came of it; the seconds that such a step takes."""
        batch = StepBatch(tuple(spans))
        output = self._submit(batch)
        costs.observe_step(batch, output)
        for draft, span, result in zip(drafts, spans, output.results, strict=True):
            if isinstance(result, FerrumError):
                self._give_up(draft.wish.sequence, result)
                continue
            if draft.tokens:
                draft.cached.guesses += span.tokens
            else:
                draft.cached.known = span.end
            draft.tokens += result.tokens
            draft.cached.history += result.tokens
        return costs.predict(batch.total_tokens, weighed_context(batch.spans))

    def _submit(self, batch: StepBatch) -> StepOutput:
        """Run a step; one that is refused for want of room, or fails, has failed for each of its sequences."""
        try:
            return self._executor.submit(batch).result()
        except (CapacityError, StepError) as error:
            return StepOutput((error,) * len(batch.spans))

    def _give_up(self, sequence: Sequence, error: FerrumError) -> None:
        """Let go of a sequence: the target will do without. There may be room later; what else fails, fails again."""
        self._release(sequence)
        if not isinstance(error, CapacityError):
            self._failed.add(sequence.cache_id)
        if not self._told:
            _LOG.warning("a sequence goes on without the draft model, and others may: %s", error)
        self._told = True
