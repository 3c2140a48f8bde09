"""Planning of steps: which sequences run next, with how many tokens, and which give way.

`scheduler.py` has the life of a request around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as Series

from ferrum.cache.page_hashes import PrefixScope
from ferrum.core.errors import FerrumError, KvExhausted, RequestError
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.step import Want, is_plain
from ferrum.core.types import FinishReason, Sequence, TokenEvent
from ferrum.scheduler.admission import Admission, GrowthReserve
from ferrum.scheduler.decode_steps import DecodeSteps
from ferrum.scheduler.drafts import Drafter, DraftRequest, NoDrafts
from ferrum.scheduler.page_protocol import Pages
from ferrum.scheduler.prefix_sharing import ChoiceForks, PrefixMatch, PrefixSharing, PromptSources
from ferrum.scheduler.queues import LiveRequests, Policy, Ranked, WaitingQueue, next_victim, victims_for
from ferrum.scheduler.sequence import (
    draft_limit,
    make_span,
    reusable,
    runs_ahead,
    unplanned,
)
from ferrum.scheduler.step_plan import FirstTokenSteps, OpenStep, Plan, StepBudget, StepCosts


class StepPlanner(ABC):
    """State of all live requests, and the planning of their steps.

    A sequence in a plan is in flight until the plan is committed or failed. Meanwhile it keeps its pages, even when it
    is ended. It may be planned again: a token that is not known yet is sent as CARRY, and if the sequence turns out to
    have ended before it, that row was computed for nothing.

    Args:
        pages: the page table of the executor that runs the plans.
        policy: the order in which requests are served.
        max_tokens_per_step: largest number of tokens in a step, drafts included.
        max_sequences: largest number of running sequences.
        max_sequence_length: largest number of prompt and output tokens together. A smaller pool lowers it. A sequence
            that reaches the bound ends with `FinishReason.LENGTH`.
        drafter: source of draft tokens; default: none.
        costs: predicts durations of steps, and learns from each step.
        decode_seconds: target duration of a step in which sequences decode; see `StepBudget`.
        reserve: growth that admission reserves for each sequence; default: `growth_reserve`.
        prefixes: scope within which sequences share pages of equal prefixes; None: they do not.
        config: constants of the policies.

    Attributes:
        drafter: drafts for sequences whose tokens are computed except the last one.
        preemptions: number of times a sequence lost its pages.
    """

    def __init__(
        self,
        pages: Pages,
        *,
        policy: Policy,
        max_tokens_per_step: int,
        max_sequences: int,
        max_sequence_length: int,
        drafter: Drafter | None = None,
        costs: StepCosts | None = None,
        decode_seconds: float | None = None,
        reserve: GrowthReserve | None = None,
        prefixes: PrefixScope | None = None,
        config: PolicyConfig = POLICY,
    ) -> None:
        for name, value in (("max_tokens_per_step", max_tokens_per_step), ("max_sequences", max_sequences)):
            if value < 1:
                raise RequestError(f"must be at least 1, not {value}", param=name)
        self._pages = pages
        self._max_tokens_per_step = min(max_tokens_per_step, max_sequences * max_sequence_length)
        self._growth = pages.growth(self._max_tokens_per_step)
        self._max_sequences = max_sequences
        self._max_sequence_length = max_sequence_length
        self.drafter = drafter or NoDrafts()
        self._costs = costs or StepCosts()
        self._step_budget = StepBudget(self._costs, decode_seconds, config)
        lengths = range(1, max_sequence_length + 1)
        self._storable = bisect_left(lengths, True, key=lambda length: not pages.fits_empty_pool(length, self._growth))
        # The last token of a sequence is never stored: only its successor would need its keys.
        self._context = min(max_sequence_length, self._storable + 1)
        self._live = LiveRequests(policy)
        self._running = Ranked(self._live.rank)
        self._first_tokens = FirstTokenSteps(self._costs, self._live.tenant, config)
        self._waiting = WaitingQueue(self._live.rank, self._live.tenant, config)
        self._admission = Admission(
            self._live, self._running, pages, growth=self._growth, context=self._context, reserve=reserve
        )
        self._prefixes = PrefixSharing(pages, prefixes, self._growth, self._admission)
        self._forks = ChoiceForks(self._live, self._running, self._waiting, pages, self._prefixes)
        self._sources = PromptSources(self._live, self._forks, self._prefixes, config)
        self._in_flight: dict[str, int] = {}  # number of steps
        self._starved = False
        self._decodes = DecodeSteps(pages)
        self._page_size = None if prefixes is None else prefixes.page_size
        self._unplaced: list[TokenEvent] = []
        self.preemptions = 0

    def plan(self) -> Plan | None:
        """Return the next step, or None if there is nothing to do until a commit, an arrival or `expire`."""
        if self._in_flight and self._must_commit_first():
            return None
        plan = None
        if self._decodes.sequences and not self._pages.restores.active:
            plan = self._decodes.plan()
        if plan is None:
            plan = self._plan_step()
        if plan is not None:
            for sequence, span in zip(plan.sequences, plan.batch.spans, strict=True):
                self._in_flight[sequence.cache_id] = self._in_flight.get(sequence.cache_id, 0) + 1
                sequence.ahead += len(span.tokens) - (0 if span.extras is None else span.extras.drafts)
                sequence.pending += span.want is Want.TOKEN
        return plan

    def _must_commit_first(self) -> bool:
        """Return whether the steps in flight must be committed before the next one can be planned.

        That is so if pages ran out, and if a sequence needs its newest token on the host: the others wait for it, since
        a step of all of them takes hardly longer than one without it.
        """
        if self._starved:
            return True
        may_draft = self.drafter.may_draft
        for each in self._running:
            if each.pending and each.finish is None and (may_draft(each) or not runs_ahead(each)):
                return True
        return False

    def _plan_step(self) -> Plan | None:
        """Return the next step, planned in full."""
        self._starved = False
        self._decodes.end()
        step = OpenStep(self._max_tokens_per_step)
        self._pages.restores.collect()
        self._plan_decodes(step)
        self._plan_prompts(step)
        while self._waiting and not (self._running or self._pages.restores.active):
            # Sequences outside this scheduler hold the other pages, and will not release them.
            error = KvExhausted("other sequences of the executor hold too many pages for this one (release them)")
            self._unplaced += self._end_all([next(self._waiting.rounds((), ()))], FinishReason.ERROR, error)
            self._plan_prompts(step)
        self._first_tokens.apply(step, self._running)
        self._add_drafts(step)
        plan = step.close()
        if plan is not None and not self._waiting and self._decodes_all(plan):
            self._decodes.begin(plan.sequences, set(map(self._live.tenant, plan.sequences)))
        return plan

    def _decodes_all(self, plan: Plan) -> bool:
        """Return whether a step decodes all running sequences, and no draft token can join the next one."""
        if len(plan.sequences) < len(self._running) or any(map(self.drafter.may_draft, plan.sequences)):
            return False
        return is_plain(plan.batch.spans) and all(each.generated for each in plan.sequences)

    def _plan_decodes(self, step: OpenStep) -> None:
        """Add spans for the running sequences that are one token behind."""
        for sequence in self._running_behind(range(1, 2)):
            if step.budget and sequence.computed + sequence.ahead:  # else it was just preempted
                self._continue(sequence, step)

    def _plan_prompts(self, step: OpenStep) -> None:
        """Add spans for running sequences far behind and for waiting ones, in rounds, until one does not fit.

        Later waiting sequences do not overtake that one, or it might never be admitted.
        """
        behind = self._running_behind(range(2, self._max_sequence_length + 1))
        step.admits = bool(self._waiting) and not self._admission.is_refused(self._waiting.next)
        if not behind and not step.admits:
            return
        self._step_budget.bound(step, self._running, behind, self._max_sequences)
        self._sources.reset()
        for sequence in self._waiting.rounds(self._running, behind, lambda: step.admits):
            if not step.budget:
                return
            if sequence in self._running:
                self._waiting.count_prompt(sequence, self._continue(sequence, step))
            elif step.admits:
                source = self._sources.find(sequence)
                step.admits = not self._sources.exhausted if source is None else self._admit(sequence, source, step)

    def _running_behind(self, tokens: range) -> list[Sequence]:
        """Return the running sequences that are this many tokens behind, those in flight not counted."""
        live = [each for each in self._running if each.finish is None]
        return [each for each in live if unplanned(each) in tokens]

    def _continue(self, sequence: Sequence, step: OpenStep) -> int:
        """Add a span for a running sequence if there is room; return its number of tokens."""
        count = min(unplanned(sequence), step.budget, self._growth)
        if not self._make_room(sequence, sequence.computed + sequence.ahead + count, step):
            return 0
        step.add(sequence, make_span(sequence, count, scored=self._live.scored(sequence)))
        return count

    def _add_drafts(self, step: OpenStep) -> None:
        """Spend the rest of the budget on draft tokens, so they take nothing from known tokens."""
        ready = [each for each, span in step.spans() if len(span.tokens) == 1 and span.end == len(each.tokens)]
        if not any(map(self.drafter.may_draft, ready)):
            return
        step.hold(None)
        requests = [
            DraftRequest(each, limit) for each in ready if (limit := min(step.budget, draft_limit(each, self._context)))
        ]
        for request, tokens in zip(requests, self.drafter.draft(requests, step.room) if requests else (), strict=True):
            sequence, drafts = request.sequence, tokens[: min(request.limit, step.budget)]
            if drafts and self._pages.reserve(sequence.cache_id, sequence.computed + sequence.ahead + 1 + len(drafts)):
                step.add(sequence, make_span(sequence, 1, drafts=drafts, scored=self._live.scored(sequence)))

    def _make_room(self, sequence: Sequence, length: int, step: OpenStep) -> bool:
        """Reserve pages for a running sequence; preempt those served last. False if that is the sequence itself."""
        while not self._pages.reserve(sequence.cache_id, length):
            last = next_victim(self._running, self._live.tenant, self._in_flight)
            if last is None or (last[0] is sequence and (self._in_flight or self._pages.restores.active)):
                self._starved = bool(self._in_flight)
                return False  # sequences in flight end or become victims, and restores release their pages
            self._preempt(last[0], step)
            if last[0] is sequence:
                return False
        return True

    def _make_room_for(self, waiting: Sequence, victims: Series[Sequence], step: OpenStep) -> bool:
        """Preempt as few of the victims as the waiting sequence needs, and none if all are not enough."""
        least = max(0, len(self._running) - step.max_sequences + 1)
        numbers = range(least, len(victims) + 1)
        count = least + bisect_left(numbers, True, key=lambda n: self._admission.fits(waiting, victims[:n]))
        for victim in victims[:count] if count <= len(victims) else ():
            self._preempt(victim, step)
        return count <= len(victims)

    def _preempt(self, victim: Sequence, step: OpenStep) -> None:
        """Take the sequence's pages and its span in this step; its tokens stay."""
        step.drop(victim)
        self._prefixes.release(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        if not victim.generated:
            victim.scheduled = None
        self._running.remove(victim)
        self._waiting.add(victim)
        self._decodes.end()
        self._admission.reconsider()

    def _admit(self, sequence: Sequence, source: Sequence | PrefixMatch, step: OpenStep) -> bool:
        """Admit the sequence, as a fork of another choice or with its cached prefix, if it fits."""
        victims = victims_for(sequence, self._running, self._live.tenant, self._in_flight)
        if len(self._running) - len(victims) >= step.max_sequences:
            if step.max_sequences == self._max_sequences:  # else the bound may rise with the next observed step
                self._refuse(sequence)
            return False
        if isinstance(source, Sequence):
            self._forks.fork(source, sequence)
        else:
            self._prefixes.adopt(sequence, source)
        fits = self._make_room_for(sequence, victims, step)
        count = min(len(sequence.tokens) - sequence.computed, step.budget, self._growth)
        if not (fits and self._pages.reserve(sequence.cache_id, sequence.computed + count)):
            self._pages.release(sequence.cache_id)
            sequence.computed = 0
            self._refuse(sequence)
            return False
        if not isinstance(source, Sequence):
            self._prefixes.start(sequence, reusable(sequence, self._live.scored(sequence)))
        self._waiting.remove(sequence)
        self._running.add(sequence)
        self._waiting.count_prompt(sequence, count)
        step.add(sequence, make_span(sequence, count, scored=self._live.scored(sequence)))
        return True

    def _refuse(self, waiting: Sequence) -> None:
        """Remember a refusal, unless sequences in flight may become victims later: then commit them first."""
        if self._in_flight:
            self._starved = True
        else:
            self._admission.refuse(waiting)

    @abstractmethod
    def _end_all(
        self, sequences: Iterable[Sequence], reason: FinishReason, error: FerrumError | None = None
    ) -> list[TokenEvent]:
        """End the given sequences."""
