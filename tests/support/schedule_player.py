"""Plays a random schedule and compares every event with the request's result alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from random import Random

from background_sequences import MOST, Strangers
from fakes import Guesses, admit_all, scope_of
from ferrum.core.step import SpanResult
from ferrum.core.types import FinishReason, TokenEvent
from ferrum.runtime.kv_tiers.page_tier import PageFiles
from ferrum.scheduler.drafts import Drafter, NoDrafts
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence as Choice
from ferrum.speculative.draft_model import DraftModel
from ferrum.speculative.ngram import NGramProposer
from ferrum.speculative.predicted_output import PredictionProposer
from ferrum.speculative.proposer import Proposer
from ferrum.speculative.speculator import Speculator
from fixed_costs import SetCosts
from random_load import RandomLoad
from recurrent_model import Fault
from reference_run import Alone
from schedules import DRAFT, Schedule, alone_result, request_of

WHOLE = {FinishReason.STOP, FinishReason.LENGTH}


@dataclass
class Player(RandomLoad):
    """An engine that runs under a schedule, with counts of what happened.

    Args:
        schedule: what is played.
        random: all that is left to chance.
        directory: where pages outlast the engine.
    """

    schedule: Schedule
    random: Random
    directory: Path
    clock: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    live: set[tuple[str, int]] = field(default_factory=set)
    events: dict[tuple[str, int], list[TokenEvent]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def play(self) -> None:
        """Run all requests until every page is released."""
        with self._engine():
            left = self.schedule.arrivals
            while left or self.scheduler.has_work:
                coming = self.schedule.hurry
                while left and coming > 0 and self.random.random() < coming:
                    self._arrive(self.schedule.arrivals - left)
                    left, coming = left - 1, coming - 1
                if self.random.random() < 0.2:
                    self.disturb()
                self._step()
            self.strangers.leave()
            self.pages.check()
            assert not self.live and self.pages.used == 0 and self.pages.take_copies() == ()
            self._note()

    def _note(self) -> None:
        """Add the totals to the counts."""
        counts, plan = self.scheduler.prefix_counts, self.schedule
        self.seen[f"preempted with {plan.memory}"] = self.scheduler.preemptions
        self.seen[f"hits in {plan.memory}"] = counts.hit_tokens
        self.seen[f"restored from {plan.memory}"] = counts.restored_pages
        self.seen["forks of forks"], self.seen["cuts"] = self.strangers.forks_of_forks, self.strangers.cuts
        right, wrong = self.seen[f"right by {plan.drafter}"], self.seen[f"wrong by {plan.drafter}"]
        if right + wrong:
            self.seen["all right" if not wrong else "some right" if right else "none right"] += 1

    @contextmanager
    def _engine(self) -> Iterator[None]:
        plan = self.schedule
        sequences = plan.batch + (MOST if plan.strangers else 0)
        options = {"threads": plan.threads, "max_rows": plan.max_rows, "max_batch_size": sequences}
        options |= {"tensor_parallel_size": plan.ranks} if plan.ranks > 1 else {}
        pool = {"page_size": plan.page_size, "kv_capacity": plan.kv_capacity}
        with ExitStack() as stack:
            executor = stack.enter_context(plan.arithmetic.load(**pool, **options))
            self.executor, self.pages = executor, executor.lm.pages
            if plan.keep == "files":
                executor.keep_pages(files=PageFiles(self.directory, 1 << 24))
            if plan.swap:
                # Computing seems to take forever, so everything is copied.
                executor.keep_pages(swap_bytes=1 << 24, recompute=lambda: 1e9)
            self.scheduler = Scheduler(
                self.pages,
                policy=POLICIES[plan.policy],
                max_tokens_per_step=plan.chunk,
                max_sequences=plan.batch,
                max_sequence_length=plan.arithmetic.context,
                drafter=self._drafter(stack),
                reserve=admit_all if plan.overcommitted else None,
                prefixes=scope_of(self.pages) if plan.keep != "nothing" and self.pages.shares_prefixes else None,
            )
            self.strangers = Strangers(executor, plan.arithmetic, plan.strangers, self.random)
            yield

    def _drafter(self, stack: ExitStack) -> Drafter:
        plan = self.schedule
        if plan.drafter == "none":
            return NoDrafts()
        if plan.drafter == "known":
            return Guesses(self._known)
        proposers: list[Proposer] = [PredictionProposer()]
        if "ngram" in plan.drafter:
            proposers.append(NGramProposer())
        model = None
        if "model" in plan.drafter:
            case = None if plan.drafter == "same model" else DRAFT
            pool = {"kv_capacity": plan.kv_capacity, "page_size": 16, "threads": plan.threads}
            executor = stack.enter_context(plan.arithmetic.load(case, max_batch_size=plan.batch, **pool))
            model = DraftModel(executor, SetCosts(0.05), SetCosts(0.05))
        return Speculator(SetCosts(1.0, plan.dear), max_draft=plan.drafts, proposers=proposers, model=model)

    def _known(self, sequence: Choice) -> tuple[int, ...]:
        """Return the next tokens as a proposer of the schedule's accuracy says them."""
        expected = alone_result(
            self.schedule.arithmetic, self.kinds[sequence.request.request_id], sequence.choice
        ).tokens
        right = expected[sequence.generated :][: self.random.randrange(self.schedule.drafts + 1)]
        return tuple(token if self.random.random() < self.schedule.right else 1 for token in right)

    def _arrive(self, number: int) -> None:
        kind = self.random.choice(self.schedule.kinds)
        expected = alone_result(self.schedule.arithmetic, kind, 0).tokens
        request = replace(
            request_of(self.schedule.arithmetic, kind),
            request_id=f"r{number}",
            priority=self.random.randrange(3),
            tenant=self.random.choice("ab"),
            deadline=self.clock + self.random.randrange(1, 20) if self.random.random() < 0.1 else None,
            arrival=self.clock,
            prediction=tuple(token if self.random.random() < self.schedule.right else 1 for token in expected)
            if self.random.random() < 0.3
            else (),
        )
        self.scheduler.add(request)
        self.kinds[request.request_id] = kind
        for choice in range(request.params.n):
            self.live.add((request.request_id, choice))
            self.events[request.request_id, choice] = []

    def _step(self) -> None:
        plan = self.scheduler.plan()
        self.pages.check()
        if plan is None:
            assert self.pages.restores.active or not self.scheduler.has_work, "a stall"
            self.pages.restores.finish()
            return
        if self.random.random() < self.schedule.faults:
            self.executor.lm.kernels.fault = Fault(self.random.randrange(3), self.seen)
        output = self.strangers.submit(plan.batch)
        for span, result in zip(plan.batch.spans, output.results, strict=True):
            assert isinstance(result, SpanResult), result
            self.seen[f"right by {self.schedule.drafter}"] += result.accepted
            self.seen[f"wrong by {self.schedule.drafter}"] += span.drafts - result.accepted
        self.seen[f"{len(plan.batch.spans)} at once"] += 1
        self.seen[f"{plan.batch.total_tokens} tokens"] += 1
        self.take(self.scheduler.commit(plan, output))
        self.pages.check()

    def take(self, events: Sequence[TokenEvent]) -> None:
        """Compare finished choices with their result alone; an interrupted one must be a prefix of it."""
        for event in events:
            key = (event.request_id, event.choice)
            assert key in self.live, "an event of a finished choice"
            self.events[key].append(event)
            if event.finish_reason is not None:
                self.live.remove(key)
                self._judge(key, event)

    def _judge(self, key: tuple[str, int], last: TokenEvent) -> None:
        events = self.events.pop(key)
        expected = alone_result(self.schedule.arithmetic, self.kinds[key[0]], key[1])
        tokens = tuple(token for each in events for token in each.token_ids)
        logprobs = tuple(logprob for each in events for logprob in each.logprobs or ())
        assert tokens == expected.tokens[: len(tokens)]
        assert logprobs == expected.logprobs[: len(tokens)], "equal floats are equal bits"
        if tokens or last.finish_reason in WHOLE:
            assert events[0].prompt_logprobs == expected.prompt_logprobs
        assert last.error is None
        self.seen["cut short"] += last.finish_reason not in WHOLE
        if last.finish_reason in WHOLE:
            self.seen["whole"] += 1
            found = Alone(tokens, logprobs, events[0].prompt_logprobs, last.finish_reason, last.stop_reason)
            assert digest(found) == digest(expected)


def digest(answer: Alone) -> str:
    """Return a digest of tokens, log-probabilities and end, with all bits of floats."""
    return sha256(repr(answer).encode()).hexdigest()


def play(schedule: Schedule, number: int, directory: Path) -> Counter[str]:
    """Play the schedule, twice if pages outlast the engine; return the counts."""
    seen: Counter[str] = Counter()
    for life in range(2 if schedule.keep == "files" else 1):
        player = Player(schedule, Random(f"{number} {life}"), directory)
        player.play()
        seen += player.seen
        seen["found by another engine"] += life * player.seen[f"restored from {schedule.memory}"]
    return seen
