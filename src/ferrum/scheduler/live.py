"""`Live`: the live sequences, which `Scheduler` owns and `Planner` moves: who waits, runs, is in flight, and leaves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from ferrum.cache.page_hashes import PrefixScope
from ferrum.cache.page_table import PageTable
from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.scheduler.admission import Admission, GrowthReserve
from ferrum.scheduler.drafts import Drafter
from ferrum.scheduler.guides import StartGuide
from ferrum.scheduler.input_blocks import check_blocks
from ferrum.scheduler.prefix_sharing import ChoiceForks, PrefixSharing
from ferrum.scheduler.queues import LiveRequests, Policy, Ranked, WaitingQueue
from ferrum.scheduler.sequence import Sequence, check_length, check_made, event
from ferrum.scheduler.state_snapshots import snapshot_lengths
from ferrum.scheduler.step_plan import DecodeSteps


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a scheduler.

    Attributes:
        step_tokens: largest number of tokens in a step, drafts included.
        sequences: largest number of running sequences.
        length: largest number of prompt and output tokens together.
        growth: largest number of tokens by which a sequence grows in one step.
        storable: longest sequence that the empty pool holds.
        context: `length`, lowered by the pool.
    """

    step_tokens: int
    sequences: int
    length: int
    growth: int
    storable: int
    context: int

    @classmethod
    def of(cls, pages: PageTable, step_tokens: int, sequences: int, length: int) -> Self:
        """Return the bounds of a scheduler over these pages. Raises RequestError; its arguments name the fields."""
        for name, value in (("max_tokens_per_step", step_tokens), ("max_sequences", sequences)):
            if value < 1:
                raise RequestError(f"must be at least 1, not {value}", param=name)
        step_tokens = min(step_tokens, sequences * length)
        growth = pages.growth(step_tokens)
        lengths = range(1, length + 1)
        storable = bisect_left(lengths, True, key=lambda each: not pages.fits_empty_pool(each, growth))
        # The last token of a sequence is never stored: only its successor would need its keys.
        return cls(step_tokens, sequences, length, growth, storable, min(length, storable + 1))


class Live:
    """The state of all live requests.

    A sequence in a plan is in flight until the plan is committed or failed. Meanwhile it keeps its pages, even when it
    is ended.

    Args:
        pages, policy, drafter, reserve, prefixes, config: see `Scheduler`.
        limits: its bounds.

    Attributes:
        requests: every request until its last choice has left.
        running: the sequences that hold pages.
        waiting: those that wait for them.
        in_flight: number of steps in flight by cache id, if there are any.
        out_of_pages: whether sequences in flight must end or become victims before the next step can be planned.
        decodes: the fast path of planning.
        unplaced: last events of sequences that ended without ever finding room.
        preemptions: number of times a sequence lost its pages.
    """

    def __init__(
        self,
        pages: PageTable,
        limits: Limits,
        policy: Policy,
        drafter: Drafter,
        *,
        reserve: GrowthReserve | None = None,
        prefixes: PrefixScope | None = None,
        config: PolicyConfig = POLICY,
    ) -> None:
        self.pages = pages
        self.limits = limits
        self.drafter = drafter
        self.requests = LiveRequests(policy)
        self.running = Ranked()
        self.waiting = WaitingQueue(config)
        self.admission = Admission(self.running, pages, growth=limits.growth, context=limits.context, reserve=reserve)
        self.prefixes = PrefixSharing(pages, prefixes, limits.growth, self.admission)
        self.forks = ChoiceForks(self.requests, self.running, self.waiting, pages, self.prefixes)
        self.decodes = DecodeSteps(pages)
        self.in_flight: dict[str, int] = {}
        self.out_of_pages = False
        self.unplaced: list[TokenEvent] = []
        self.preemptions = 0

    def add(self, request: Request, start_guide: StartGuide | None = None) -> None:
        """Queue the request's choices.

        Args:
            request: the request.
            start_guide: starts the guide of each choice; required with `Request.guidance`.

        Raises:
            RequestError: a live request has this id, the prompt is empty, an image is longer than a step, or there is
                nothing to guide it by.
            ContextOverflow: the prompt leaves no room for a token in the context.
            KvExhausted: the prompt is longer than the whole pool.
        """
        if request.request_id in self.requests:
            raise RequestError(f"{request.request_id!r} is in use", param="request_id")
        context, max_tokens = self.limits.context, request.params.max_tokens
        check_length(request, self.limits.length, self.limits.storable)
        check_blocks(request, self.limits.growth)
        check_made(request, context)
        if request.guidance is not None and start_guide is None:
            raise RequestError("this engine cannot limit the tokens of a request", param="guidance")
        limit = len(request.prompt) + (context if max_tokens is None else max_tokens)
        for sequence in self.requests.add(request):
            sequence.limit = min(limit, context)
            if self.pages.states is not None:
                sequence.snapshot_lengths = snapshot_lengths(
                    sequence, self.pages.page_size, shares=self.prefixes.shares
                )
            sequence.guide = None if start_guide is None else start_guide()
            if sequence.guide is not None and request.known:
                sequence.guide.advance(request.known)
            sequence.may_draft = bool(request.prediction) or not self.drafter.only_predicted
            self.waiting.add(sequence)
        self.decodes.end()

    def preempt(self, victim: Sequence) -> None:
        """Take the pages of a running sequence, which waits again; its tokens stay."""
        self.prefixes.release(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        if not victim.generated:
            victim.scheduled = None
        self.running.remove(victim)
        self.waiting.add(victim)
        self.decodes.end()
        self.admission.refusal = None

    def end(
        self, sequences: Iterable[Sequence], reason: FinishReason, error: FerrumError | None = None
    ) -> list[TokenEvent]:
        """End the given sequences. All are marked before the first one leaves, so none of them takes over a prompt."""
        ending = [each for each in sequences if each.finish is None]
        self.decodes.end()
        for sequence in ending:
            sequence.finish = reason
        for sequence in ending:
            self.leave(sequence)
        return [event(sequence, error=error) for sequence in ending]

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence whose last event its caller makes."""
        self.decodes.end()
        sequence.finish = reason
        self.leave(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Release everything that an ended sequence holds, once none of its steps is in flight."""
        if sequence.cache_id in self.in_flight:
            return
        if sequence in self.running:
            if sequence.request.params.n > 1:
                self.forks.hand_over(sequence)
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.prefixes.release(sequence)
        self.admission.refusal = None
        if sequence.guide is not None:
            sequence.guide.close()
        if sequence.drafted:
            self.drafter.forget(sequence)
        self.requests.remove(sequence)
