"""Drafts by a smaller model with the same vocabulary (Leviathan et al., ICML 2023; Chen et al., 2023).

The model has its own executor and KV pages. It samples with the request's rules and draws, so two similar models mostly
draw the same token at any temperature. Its failures are logged and cost drafts only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Series
from dataclasses import dataclass, field, replace
from typing import Final

from ferrum.cache.page_table import PageTable
from ferrum.contract.step_executor import StepExecutor
from ferrum.core.errors import CapacityError, FerrumError, StepError
from ferrum.core.memory_plan import MemoryPlan
from ferrum.core.step import Sampling, Span, StepBatch, StepOutput, Want
from ferrum.sampling.rules import truncate_counts
from ferrum.scheduler.drafts import DraftRequest
from ferrum.scheduler.sequence import Sequence
from ferrum.scheduler.step_plan import StepCosts

READ_CHUNK: Final = 256
"""Prompt tokens that are read per step, of all sequences together. Running sequences wait meanwhile."""

MAX_FIRST_SPAN: Final = 16
"""Tokens that may run in the step of the first draft token. More are read in steps before it."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Cached:
    """What the model has stored of a sequence: its first `known` tokens, then draft tokens.

    Attributes:
        sampling: the sequence's, without log-probabilities and with its own history. It is built once: its parameters
            and token counts may be large.
        history: that history: the sequence's tokens when the latest draft began, then the draft tokens.
        synced: length of the sequence when the latest draft began.
    """

    sampling: Sampling
    history: list[int]
    synced: int = 0
    known: int = 0
    draft_tokens: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Stored tokens."""
        return self.known + len(self.draft_tokens)

    def agreed(self, sequence: Sequence) -> int:
        """Return how many stored tokens are the sequence's, without its last one, which has to run."""
        accepted = 0
        for token, actual in zip(self.draft_tokens, sequence.tokens[self.known :], strict=False):
            if token != actual:
                break
            accepted += 1
        return min(self.known + accepted, len(sequence.tokens) - 1)

    def roll_back(self, sequence: Sequence, agreed: int) -> None:
        """Drop rejected draft tokens and take in the sequence's new tokens."""
        accepted = max(self.synced, agreed)
        truncate_counts(self.sampling, accepted)
        self.history[accepted:] = sequence.tokens[accepted:]
        self.known, self.draft_tokens, self.synced = agreed, [], len(sequence.tokens)


def _new(sequence: Sequence) -> _Cached:
    """Return the state of a sequence of which nothing is stored."""
    history: list[int] = []
    params = sequence.sampling.params.but(logprobs=None, prompt_logprobs=None)
    return _Cached(replace(sequence.sampling, params=params, history=history), history)


@dataclass(slots=True)
class _Draft:
    """A draft in progress."""

    request: DraftRequest
    cached: _Cached
    tokens: list[int] = field(default_factory=list)


def _to_read(unread: int) -> int:
    """Return how many of the unread tokens are read before the step that drafts."""
    return 0 if unread <= MAX_FIRST_SPAN else unread - 1


class DraftModel:
    """A `DraftComputer` on an executor.

    Args:
        executor: of the smaller model. The drafter alone steps it.
        costs: seconds of its drafting steps; updated here.
        reading: seconds of its steps that read prompts; updated here.
    """

    def __init__(self, executor: StepExecutor, costs: StepCosts, reading: StepCosts) -> None:
        self._executor = executor
        self._costs, self._reading = costs, reading
        self._context = executor.traits.longest_sequence
        self._cached: dict[str, _Cached] = {}
        self._stored: int | None = 0
        self._failed: set[str] = set()
        self._warned = self._broken = False

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory that the model holds."""
        return self._executor.memory_plan

    def limit(self, sequence: Sequence) -> int:
        if self._broken or sequence.cache_id in self._failed:
            return 0
        return max(0, self._context - len(sequence.tokens))

    def reading_seconds(self, sequence: Sequence) -> float:
        cached = self._cached.get(sequence.cache_id)
        unread = _to_read(len(sequence.tokens) - (0 if cached is None else cached.agreed(sequence)))
        return unread / READ_CHUNK * self._reading.predict(READ_CHUNK, 0) if unread else 0.0

    def seconds(self, sequences: int) -> float:
        if self._stored is None:  # computed once per step: a step predicts the cost of every draft length
            self._stored = sum(each.length for each in self._cached.values())
        return self._costs.predict(sequences, self._stored * sequences // max(1, len(self._cached)))

    def draft(self, requests: Series[DraftRequest]) -> list[tuple[int, ...]]:
        """Draft for every sequence that is read; read the others on."""
        if self._broken:
            return [()] * len(requests)
        self._stored = None
        try:
            drafts = [self._begin(request) for request in requests]
            active = self._read(drafts)
            active = self._run(active, [self._first(draft) for draft in active]) if active else []
            while active:
                active = self._run(active, [self._next(draft) for draft in active])
        except Exception:  # noqa: BLE001 - answers do not need the model, whatever its error is
            _LOG.exception("the draft model failed: no more drafts are computed")
            self._broken = True
            self._cached.clear()
            return [()] * len(requests)
        return [tuple(draft.tokens) for draft in drafts]

    def forget(self, sequence: Sequence) -> None:
        self._failed.discard(sequence.cache_id)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._stored = None
        if self._cached.pop(sequence.cache_id, None) is not None:
            self._executor.pages.release(sequence.cache_id)

    def _begin(self, request: DraftRequest) -> _Draft:
        """Begin a draft: truncate to stored tokens that agree with the sequence, or to a state before them."""
        sequence = request.sequence
        cached = self._cached.get(sequence.cache_id)
        if cached is None:
            cached = self._cached[sequence.cache_id] = _new(sequence)
        agreed = cached.agreed(sequence)
        if agreed < cached.length:
            agreed = self._reachable(sequence.cache_id, agreed, cached.known)
            self._executor.pages.truncate(sequence.cache_id, agreed)
        cached.roll_back(sequence, agreed)
        return _Draft(request, cached)

    def _reachable(self, cache_id: str, agreed: int, known: int) -> int:
        """Return the longest of these lengths that the stored tokens can be truncated to, else 0."""
        pages = self._executor.pages
        if not isinstance(pages, PageTable) or pages.can_truncate(cache_id, agreed):
            return agreed
        return known if known <= agreed and pages.can_truncate(cache_id, known) else 0

    def _read(self, drafts: Series[_Draft]) -> list[_Draft]:
        """Read a chunk, one sequence after the other; return the drafts with nothing left to read."""
        budget = READ_CHUNK
        behind, spans, ready = [], [], []
        for draft in drafts:
            tokens, known = draft.request.sequence.tokens, draft.cached.known
            count = _to_read(len(tokens) - known)
            chunk = tuple(tokens[known : known + min(count, budget)])
            if chunk:
                budget -= len(chunk)
                behind.append(draft)
                spans.append(Span(draft.request.sequence.cache_id, known, chunk, want=Want.NONE))
            if len(chunk) == count:
                ready.append(draft)
        if not spans:
            return ready
        self._step(behind, spans, self._reading)
        return [draft for draft in ready if not _to_read(len(draft.request.sequence.tokens) - draft.cached.known)]

    def _first(self, draft: _Draft) -> Span:
        """Return the span of the unread tokens, which ends in the first draft token."""
        sequence, start = draft.request.sequence, draft.cached.known
        return Span(sequence.cache_id, start, tuple(sequence.tokens[start:]), sampling=draft.cached.sampling)

    def _next(self, draft: _Draft) -> Span:
        """Return the span of the last draft token, which ends in the next one."""
        cache_id, start = draft.request.sequence.cache_id, draft.cached.length
        return Span(cache_id, start, (draft.tokens[-1],), sampling=draft.cached.sampling)

    def _run(self, drafts: Series[_Draft], spans: Series[Span]) -> list[_Draft]:
        """Run a drafting step; return the drafts that need another token."""
        before = [len(draft.tokens) for draft in drafts]
        self._step(drafts, spans, self._costs)
        return [
            draft
            for draft, count in zip(drafts, before, strict=True)
            if count < len(draft.tokens) < draft.request.limit
        ]

    def _step(self, drafts: Series[_Draft], spans: Series[Span], costs: StepCosts) -> None:
        """Run a step and take in its results."""
        batch = StepBatch(tuple(spans))
        output, pages = self._submit(batch), self._executor.pages
        states = pages.states if isinstance(pages, PageTable) else None
        costs.observe_step(batch, output)
        for draft, span, result in zip(drafts, spans, output.results, strict=True):
            if isinstance(result, FerrumError):
                self._give_up(draft.request.sequence, result)
                continue
            if draft.tokens:
                draft.cached.draft_tokens += span.tokens
            else:
                draft.cached.known = span.end
                if states is not None:  # the next draft goes back to it
                    states.name(span.cache_id, span.end, None)
            draft.tokens += result.tokens
            draft.cached.history += result.tokens

    def _submit(self, batch: StepBatch) -> StepOutput:
        """Run a step. A step that is refused or fails has failed for each of its sequences."""
        try:
            return self._executor.submit(batch).result()
        except (CapacityError, StepError) as error:
            return StepOutput((error,) * len(batch.spans))

    def _give_up(self, sequence: Sequence, error: FerrumError) -> None:
        """Release a sequence. Only after a lack of capacity is it tried again."""
        self._release(sequence)
        if not isinstance(error, CapacityError):
            self._failed.add(sequence.cache_id)
        if not self._warned:
            _LOG.warning("a sequence continues without the draft model, and others may: %s", error)
        self._warned = True
