"""Continuous batching: a step lets the computed tokens of every sequence catch up with its known ones.

There is no prefill phase and no decode phase. A prompt is a sequence far behind, a preempted sequence falls back to the
start, and one that is a single token behind decodes. A step gives its token budget first to sequences that decode, then
to prompts: the tenant that was served least comes first, within it the lowest rank.

A waiting request is admitted if its tokens fit and the sequences before it have pages to grow (`admission.py`). When
pages run out, the running sequence served last is preempted and starts over. The sequence served first is never
preempted for another one, so it ends, and then the next one is first: there is always progress. With several tenants
the victim is the sequence with the most of its tenant before it; it also gives way to a waiting request of a tenant
with fewer running sequences.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrum.cache.page_hashes import PrefixScope
from ferrum.cache.page_table import PageTable
from ferrum.core.errors import FerrumError
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import Hidden, Span, SpanResult, StepOutput, TokenLogprobs, Want
from ferrum.core.types import FinishReason, TokenEvent
from ferrum.scheduler.admission import GrowthReserve
from ferrum.scheduler.drafts import Drafter, NoDrafts
from ferrum.scheduler.live import Limits, Live
from ferrum.scheduler.planner import Planner
from ferrum.scheduler.queues import Policy
from ferrum.scheduler.sequence import Sequence, event, guide_along, judge, pool
from ferrum.scheduler.step_plan import StepCosts, StepPlan


class Scheduler:
    """All live requests, from their arrival to their end. Not thread-safe: the engine's loop owns it.

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
        live: the state of all requests.
        planner: plans their steps.
        add, plan: `Live.add` and `Planner.plan`.
    """

    def __init__(
        self,
        pages: PageTable,
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
        limits = Limits.of(pages, max_tokens_per_step, max_sequences, max_sequence_length)
        drafter = drafter or NoDrafts()
        self.live = Live(pages, limits, policy, drafter, reserve=reserve, prefixes=prefixes, config=config)
        self._costs = costs or StepCosts()
        self.planner = Planner(self.live, self._costs, decode_seconds, config)
        self.plan = self.planner.plan
        self.add = self.live.add
        self._page_size = None if prefixes is None else prefixes.page_size

    @property
    def drafter(self) -> Drafter:
        """The drafter of sequences whose tokens are computed except the last one."""
        return self.live.drafter

    @property
    def num_running(self) -> int:
        """Number of sequences that hold pages."""
        return len(self.live.running)

    @property
    def num_waiting(self) -> int:
        """Number of sequences that wait to be admitted, for the first time or after a preemption."""
        return len(self.live.waiting)

    @property
    def preemptions(self) -> int:
        """Number of times a sequence lost its pages."""
        return self.live.preemptions

    @property
    def kv_usage(self) -> float:
        """Share of the pages that is in use, 0 to 1."""
        return self.live.pages.usage

    @property
    def prefix_counts(self) -> PrefixCounts:
        """Counts of the prefix cache."""
        return self.live.pages.prefix_counts()

    @property
    def has_work(self) -> bool:
        """Whether any event is pending."""
        return bool(self.live.requests or self.live.unplaced)

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT, *, choice: int | None = None
    ) -> list[TokenEvent]:
        """End a request, or one choice of it; ignore unknown and ended ones."""
        choices = self.live.requests.choices(request_id)
        return self.live.end([each for each in choices if choice in (None, each.choice)], reason)

    def expire(self, now: float) -> list[TokenEvent]:
        """End the requests whose deadline has passed; return their events and those of choices without room."""
        events, self.live.unplaced = self.live.unplaced, []
        for request_id in self.live.requests.due(now):
            events += self.abort(request_id, FinishReason.DEADLINE)
        return events

    def drain(self, cause: FinishReason | FerrumError) -> list[TokenEvent]:
        """End all requests, for a reason or with an error."""
        error = cause if isinstance(cause, FerrumError) else None
        reason = cause if isinstance(cause, FinishReason) else FinishReason.ERROR
        events, self.live.unplaced = self.live.unplaced, []
        return events + self.live.end(self.live.requests, reason, error)

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Set a function to call, from any thread, when restored pages that `plan` waited for have arrived."""
        self.live.pages.restores.on_ready = wake

    # The end of a step

    def commit(self, plan: StepPlan, output: StepOutput) -> list[TokenEvent]:
        """Apply a step's results; a span with an error ends only its own choice."""
        events: list[TokenEvent] = []
        self._costs.observe_step(plan.batch, output, plan.context_tokens)
        decoded, in_flight = 0, self.live.in_flight
        for sequence, span, result in zip(plan.sequences, plan.batch.spans, output.results, strict=True):
            in_flight[sequence.cache_id] -= 1
            if not in_flight[sequence.cache_id]:
                del in_flight[sequence.cache_id]
            sequence.ahead -= len(span.tokens) - (0 if span.extras is None else span.extras.drafts)
            sequence.pending -= span.want is Want.TOKEN
            if sequence.finish is not None:
                self.live.leave(sequence)
            elif isinstance(result, FerrumError):
                events += self.live.end([sequence], FinishReason.ERROR, result)
            elif plan.tenant is None or not self._continues(sequence, result):
                events += self._advance(sequence, span, result)
            else:
                decoded += 1
                sequence.computed = result.length
                sequence.tokens += result.tokens
                events.append(event(sequence, result.tokens, result.logprobs))
        if decoded and plan.tenant is not None:
            self.live.waiting.charge(plan.tenant, decoded)
        return events

    def _continues(self, sequence: Sequence, result: SpanResult) -> bool:
        """Return whether a decoded token is all that happened: it ends nothing, triggers no guide, fills no page."""
        (token,), request, guide = result.tokens, sequence.request, sequence.guide
        return (
            token not in request.stop_token_ids
            and (
                guide is None
                or (token not in guide.trigger_tokens and sequence.generated + 1 < guide.unconstrained_until)
            )
            and len(sequence.tokens) + 1 < sequence.limit
            and (self._page_size is None or result.length % self._page_size != 0)
        )

    def fail(self, plan: StepPlan, error: FerrumError) -> list[TokenEvent]:
        """Apply the failure of a whole step: all its choices end."""
        return self.commit(plan, StepOutput((error,) * len(plan.sequences)))

    def _advance(self, sequence: Sequence, span: Span, result: SpanResult) -> list[TokenEvent]:
        """Apply one successful result: computed tokens, prompt log-probabilities and sampled tokens, if any."""
        assert result.length == span.end - span.drafts + result.accepted
        sequence.computed = result.length
        if sequence.snapshot_lengths:
            self.live.prefixes.take_snapshot(sequence)
        if span.hidden is not Hidden.NONE:
            pool(sequence, span, result)
        if span.score is not None:
            scores = self.live.requests.scores(sequence)
            scores += result.scores[len(scores) - span.start :]
        if span.drafts:
            self.live.drafter.learn(sequence, span.drafts, result.accepted)
        if result.length < span.end:
            self.live.pages.trim(sequence.cache_id)
        if not result.tokens:
            if sequence.request.params.max_tokens != 0 or sequence.computed < len(sequence.tokens):
                return []
            return self._end_scored(sequence)
        prompt_logprobs = self._prompt_logprobs(sequence)
        outcome = judge(sequence, result.tokens, self.live.limits.context)
        sequence.extend(outcome.tokens)
        self.live.prefixes.publish(sequence)
        self.live.waiting.charge(sequence.tenant, len(outcome.tokens))
        if outcome.finish is not None:
            self.live.finish(sequence, outcome.finish)
        else:
            guide_along(sequence, outcome.tokens)
        logprobs = None if result.logprobs is None else result.logprobs[: len(outcome.tokens)]
        return [event(sequence, outcome.tokens, logprobs, prompt_logprobs, outcome.stop_reason)]

    def _end_scored(self, sequence: Sequence) -> list[TokenEvent]:
        """End a choice that generates nothing."""
        prompt_logprobs = self._prompt_logprobs(sequence)
        self.live.prefixes.publish(sequence)
        self.live.finish(sequence, FinishReason.LENGTH)
        return [event(sequence, prompt_logprobs=prompt_logprobs)]

    def _prompt_logprobs(self, sequence: Sequence) -> tuple[TokenLogprobs, ...] | None:
        """Return the prompt's log-probabilities for the first event of a choice."""
        if sequence.generated or sequence.request.params.prompt_logprobs is None:
            return None
        return tuple(self.live.requests.scores(sequence))
