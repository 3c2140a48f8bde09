"""Planning of steps: which sequences run next, with how many tokens, and which give way.

    plan:
        if pages ran out, or a sequence needs its newest token on the host:
            nothing, until the steps in flight are committed
        if the last step decoded all that runs, and nothing else has happened since:
            the same step, one token later                                        step_plan.DecodeSteps
        for each running sequence that is one token behind, in order of rank:     a decode
            give it that token; while pages are missing, preempt the sequence served last
        bound the tokens and sequences of this step by its predicted duration     step_plan.StepBudget
        for each sequence further behind or waiting, the tenant served least first:
            if it runs:                                                           a part of a prompt
                give it as many tokens as the budget and its pages allow
            else if another sequence computes the same prompt or prefix:          prefix_sharing
                leave it waiting
            else:                                                                 an admission
                begin it as a fork of another choice, or with its cached prefix
                preempt the fewest sequences of larger tenants that it needs      queues.victims_for
                if its tokens and the growth of those before it fit:              admission
                    give it as many tokens as the budget allows
                else:
                    admit no other: later ones do not overtake it
        while nothing runs and the first waiting sequence does not fit:
            end it with an error; try the next one
        leave out what delays a first token by more than it gains                 step_plan.FirstTokenSteps
        spend the rest of the budget on draft tokens                              drafts
        mark the sequences of the step as in flight

`live` has the state, and `scheduler` the life of a request around it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Series

from ferrum.core.errors import KvExhausted
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.step import Want, is_plain
from ferrum.core.types import FinishReason
from ferrum.scheduler.drafts import DraftRequest
from ferrum.scheduler.input_blocks import next_block, until_block
from ferrum.scheduler.live import Live
from ferrum.scheduler.prefix_sharing import PrefixMatch, PromptReuse
from ferrum.scheduler.queues import next_victim, victims_for
from ferrum.scheduler.sequence import (
    Sequence,
    draft_limit,
    expects_drafts,
    make_span,
    reusable,
    runs_ahead,
    unplanned,
)
from ferrum.scheduler.state_snapshots import until_snapshot
from ferrum.scheduler.step_plan import FirstTokenSteps, OpenStep, StepBudget, StepCosts, StepPlan


class Planner:
    """The plans of steps for the live sequences.

    A sequence in flight may be planned again: a token that is not known yet is sent as CARRY, and if the sequence turns
    out to have ended before it, that row was computed for nothing.

    Args:
        live: the sequences; planning moves them between the queue and the running ones.
        costs: predicts durations of steps.
        decode_seconds: target duration of a step in which sequences decode; see `StepBudget`.
        config: constants of the policies.

    Attributes:
        budget: the bounds of steps by their predicted duration.
    """

    def __init__(
        self, live: Live, costs: StepCosts, decode_seconds: float | None = None, config: PolicyConfig = POLICY
    ) -> None:
        self._live = live
        self._pages = live.pages
        self._limits = live.limits
        self.budget = StepBudget(costs, decode_seconds, config)
        self._first_tokens = FirstTokenSteps(costs, config)
        self._reuse = PromptReuse(live.requests, live.forks, live.prefixes, config)

    def plan(self) -> StepPlan | None:
        """Return the next step, or None if there is nothing to do until a commit, an arrival or `expire`."""
        live = self._live
        if live.in_flight and self._must_commit_first():
            return None
        plan = None
        if live.decodes.sequences and not self._pages.restores.active:
            plan = live.decodes.plan()
        if plan is None:
            plan = self._plan_step()
        if plan is not None:
            for sequence, span in zip(plan.sequences, plan.batch.spans, strict=True):
                live.in_flight[sequence.cache_id] = live.in_flight.get(sequence.cache_id, 0) + 1
                sequence.ahead += len(span.tokens) - (0 if span.extras is None else span.extras.drafts)
                sequence.pending += span.want is Want.TOKEN
        return plan

    def _must_commit_first(self) -> bool:
        """Return whether the steps in flight must be committed before the next one can be planned.

        That is so if pages ran out, and if a sequence needs its newest token on the host: the others wait for it, since
        a step of all of them takes hardly longer than one without it.
        """
        live = self._live
        if live.out_of_pages:
            return True
        for each in live.running:
            if each.pending and each.finish is None and (each.may_draft or not runs_ahead(each)):
                return True
        return False

    def _plan_step(self) -> StepPlan | None:
        """Return the next step, planned in full."""
        live = self._live
        live.out_of_pages = False
        live.decodes.end()
        step = OpenStep(self._limits.step_tokens)
        if self._pages.restores.active:
            self._pages.restores.collect()
        block = max(map(next_block, self._running_behind(range(2, self._limits.length + 1))), default=0)
        step.hold(self._limits.step_tokens - block)  # else sequences that decode might never leave room for it
        self._plan_decodes(step)
        step.hold(None)
        self._plan_prompts(step)
        if block:  # which may have found no pages
            step.hold(None)
            self._plan_decodes(step)
        while live.waiting and not (live.running or self._pages.restores.active):
            # Sequences outside this scheduler hold the other pages, and will not release them.
            others = "other sequences of the executor hold too many pages or states for this one (release them)"
            error = KvExhausted(others)
            live.unplaced += live.end([next(live.waiting.rounds((), ()))], FinishReason.ERROR, error)
            self._plan_prompts(step)
        self._first_tokens.apply(step, live.running)
        self._add_drafts(step)
        plan = step.close()
        if plan is None or live.waiting or len(plan.sequences) < len(live.running):
            return plan
        may_draft = any(each.may_draft for each in plan.sequences)  # then a draft may join the next step
        if not may_draft and is_plain(plan.batch.spans) and all(each.generated for each in plan.sequences):
            live.decodes.begin(plan.sequences, {each.tenant for each in plan.sequences})
        return plan

    def _plan_decodes(self, step: OpenStep) -> None:
        """Add a token for each sequence that decodes and has none."""
        for sequence in self._running_behind(range(1, 2)):
            begun = sequence.computed + sequence.ahead  # else it was just preempted
            if step.budget > 0 and begun and sequence.cache_id not in step.spans:
                self._continue(sequence, step)

    def _plan_prompts(self, step: OpenStep) -> None:
        """Add spans for running sequences far behind and for waiting ones, in rounds, until one does not fit.

        Later waiting sequences do not overtake that one, or it might never be admitted.
        """
        live = self._live
        behind = self._running_behind(range(2, self._limits.length + 1))
        step.admits = bool(live.waiting)
        if step.admits and live.admission.refusal is not None:
            step.admits = not live.admission.is_refused(live.waiting.next)
        if not behind and not step.admits:
            return
        self.budget.bound(step, live.running, behind, self._limits.sequences)
        self._reuse.reset()
        for sequence in live.waiting.rounds(live.running, behind, lambda: step.admits):
            if step.budget <= 0:
                return
            if sequence in live.running:
                live.waiting.count_prompt(sequence, self._continue(sequence, step))
            elif step.admits:
                source = self._reuse.find(sequence)
                step.admits = self._reuse.left > 0 if source is None else self._admit(sequence, source, step)

    def _running_behind(self, tokens: range) -> list[Sequence]:
        """Return the running sequences that are this many tokens behind, those in flight not counted."""
        return [each for each in self._live.running if each.finish is None and unplanned(each) in tokens]

    def _continue(self, sequence: Sequence, step: OpenStep) -> int:
        """Add a span for a running sequence if there is room; return its number of tokens."""
        count = self._count(sequence, unplanned(sequence), step)
        if not count or not self._make_room(sequence, sequence.computed + sequence.ahead + count, step):
            return 0
        step.add(sequence, make_span(sequence, count, scored=self._live.requests.scored(sequence)))
        return count

    def _count(self, sequence: Sequence, count: int, step: OpenStep) -> int:
        """Return how many of the sequence's next `count` tokens the step takes."""
        growth = self._limits.growth
        count = until_snapshot(sequence, min(count, step.budget, growth))
        return until_block(sequence, count, min(growth, step.whole_budget)) if sequence.request.inputs else count

    def _add_drafts(self, step: OpenStep) -> None:
        """Spend the rest of the budget on draft tokens, so they take nothing from known tokens."""
        live = self._live
        ready = [each for each, span in step.spans.values() if len(span.tokens) == 1 and span.end == len(each.tokens)]
        if not any(expects_drafts(each) for each in ready):
            return
        step.hold(None)
        requests = [
            DraftRequest(each, limit)
            for each in ready
            if (limit := min(step.budget, draft_limit(each, self._limits.context)))
        ]
        for request, tokens in zip(requests, live.drafter.draft(requests, step.room) if requests else (), strict=True):
            sequence, drafts = request.sequence, tokens[: min(request.limit, step.budget)]
            sequence.drafted = True
            if drafts and self._pages.reserve(sequence.cache_id, sequence.computed + sequence.ahead + 1 + len(drafts)):
                step.add(sequence, make_span(sequence, 1, drafts=drafts, scored=live.requests.scored(sequence)))

    def _make_room(self, sequence: Sequence, length: int, step: OpenStep) -> bool:
        """Reserve pages for a running sequence; preempt those served last. False if that is the sequence itself."""
        live = self._live
        while not self._pages.reserve(sequence.cache_id, length):
            last = next_victim(live.running, live.in_flight)
            if last is None or (last[0] is sequence and (live.in_flight or self._pages.restores.active)):
                live.out_of_pages = bool(live.in_flight)
                return False  # sequences in flight end or become victims, and restores release their pages
            self._preempt(last[0], step)
            if last[0] is sequence:
                return False
        return True

    def _make_room_for(self, waiting: Sequence, victims: Series[Sequence], step: OpenStep) -> bool:
        """Preempt as few of the victims as the waiting sequence needs, and none if all are not enough."""
        live = self._live
        least = max(0, len(live.running) - step.max_sequences + 1)
        numbers = range(least, len(victims) + 1)
        count = least + bisect_left(numbers, True, key=lambda n: live.admission.fits(waiting, victims[:n]))
        for victim in victims[:count] if count <= len(victims) else ():
            self._preempt(victim, step)
        return count <= len(victims)

    def _preempt(self, victim: Sequence, step: OpenStep) -> None:
        """Take the sequence's pages and its span in this step."""
        step.drop(victim)
        self._live.preempt(victim)

    def _admit(self, sequence: Sequence, source: Sequence | PrefixMatch, step: OpenStep) -> bool:
        """Admit the sequence, as a fork of another choice or with its cached prefix, if it fits."""
        live = self._live
        victims = victims_for(sequence, live.running, live.in_flight) if live.running else []
        if len(live.running) - len(victims) >= step.max_sequences:
            if step.max_sequences == self._limits.sequences:  # else the bound may rise with the next observed step
                self._refuse(sequence)
            return False
        if isinstance(source, Sequence):
            live.forks.fork(source, sequence)
        else:
            live.prefixes.adopt(sequence, source)
        if not self._count(sequence, len(sequence.tokens) - sequence.computed, step):
            self._pages.release(sequence.cache_id)  # the rest of the budget is too small for an image
            sequence.computed = 0
            return False
        fits = self._make_room_for(sequence, victims, step)  # which may free some of the budget
        count = self._count(sequence, len(sequence.tokens) - sequence.computed, step)
        if not (fits and self._pages.reserve(sequence.cache_id, sequence.computed + count)):
            self._pages.release(sequence.cache_id)
            sequence.computed = 0
            self._refuse(sequence)
            return False
        if not isinstance(source, Sequence):
            live.prefixes.start(sequence, reusable(sequence, live.requests.scored(sequence)))
        live.waiting.remove(sequence)
        live.running.add(sequence)
        live.waiting.count_prompt(sequence, count)
        step.add(sequence, make_span(sequence, count, scored=live.requests.scored(sequence)))
        return True

    def _refuse(self, waiting: Sequence) -> None:
        """Remember a refusal, unless sequences in flight may become victims later: then commit them first."""
        live = self._live
        if live.in_flight:
            live.out_of_pages = True
        else:
            live.admission.refuse(waiting)
