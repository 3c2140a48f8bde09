"""Plays a random schedule, and holds every event against what the request comes to alone."""

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
from ferrum.core.types import Sequence as Choice
from ferrum.runtime.kv_tiers.page_files import PageFiles
from ferrum.scheduler.drafts import Drafter, NoDrafts
from ferrum.scheduler.policy import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.speculative.draft_model import DraftModel
from ferrum.speculative.ngram import NGramProposer
from ferrum.speculative.predicted_output import PredictionProposer
from ferrum.speculative.proposer import Proposer
from ferrum.speculative.speculator import Speculator
from fixed_costs import SetCosts
from random_load import RandomLoad
from reference_run import Alone
from schedules import DRAFT, MODELS, Schedule, request_of, told

WHOLE = {FinishReason.STOP, FinishReason.LENGTH}


@dataclass
class Player(RandomLoad):
    """One life of an engine under a schedule, and what happened in it.

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
    news: dict[tuple[str, int], list[TokenEvent]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def play(self) -> None:
        """All requests, from the first to the last page given back."""
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
        """What happened in all."""
        counts, plan = self.scheduler.prefix_counts, self.schedule
        self.seen[f"preempted with {plan.memory}"] = self.scheduler.preemptions
        self.seen[f"hits in {plan.memory}"] = counts.hit_tokens
        self.seen[f"restored from {plan.memory}"] = counts.restored_pages
        self.seen["forks of forks"], self.seen["cuts"] = self.strangers.forks_of_forks, self.strangers.cuts
        right, wrong = self.seen[f"right by {plan.guesses}"], self.seen[f"wrong by {plan.guesses}"]
        if right + wrong:
            self.seen["all right" if not wrong else "some right" if right else "none right"] += 1

    @contextmanager
    def _engine(self) -> Iterator[None]:
        plan = self.schedule
        sequences = plan.batch + (MOST if plan.strangers else 0)
        options = {"threads": plan.threads, "max_rows": plan.max_rows, "max_batch_size": sequences}
        pool = {"page_size": plan.page_size, "kv_capacity": plan.kv_capacity}
        with ExitStack() as stack:
            executor = stack.enter_context(plan.arithmetic.load(**pool, **options))
            self.pages = executor.lm.pages
            if plan.keep == "files":
                executor.use_disk_tier(PageFiles(self.directory, 1 << 24))
            if plan.swap:
                executor.use_swap_tier(1 << 24, lambda: 1e9)  # as if computing took for ever: all is copied
            self.scheduler = Scheduler(
                self.pages,
                policy=POLICIES[plan.policy],
                max_tokens_per_step=plan.chunk,
                max_sequences=plan.batch,
                max_sequence_length=plan.arithmetic.context,
                drafter=self._drafter(stack),
                reserve=admit_all if plan.hasty else None,
                prefixes=None if plan.keep == "nothing" else scope_of(self.pages),
            )
            self.strangers = Strangers(executor, plan.arithmetic, plan.strangers, self.random)
            yield

    def _drafter(self, stack: ExitStack) -> Drafter:
        plan = self.schedule
        if plan.guesses == "none":
            return NoDrafts()
        if plan.guesses == "known":
            return Guesses(self._known)
        proposers: list[Proposer] = [PredictionProposer()]
        if "ngram" in plan.guesses:
            proposers.append(NGramProposer())
        model = None
        if "model" in plan.guesses:
            case = MODELS[plan.arithmetic.model] if plan.guesses == "same model" else DRAFT
            pool = {"kv_capacity": plan.kv_capacity, "page_size": 16, "threads": plan.threads}
            executor = stack.enter_context(plan.arithmetic.load(case, max_batch_size=plan.batch, **pool))
            model = DraftModel(executor, SetCosts(0.05), SetCosts(0.05))
        return Speculator(SetCosts(1.0, plan.dear), max_draft=plan.drafts, proposers=proposers, model=model)

    def _known(self, sequence: Choice) -> tuple[int, ...]:
        """What comes next, as somebody says who is right so often."""
        expected = told(self.schedule.arithmetic, self.kinds[sequence.request.request_id], sequence.choice).tokens
        right = expected[sequence.generated :][: self.random.randrange(self.schedule.drafts + 1)]
        return tuple(token if self.random.random() < self.schedule.right else 1 for token in right)

    def _arrive(self, number: int) -> None:
        kind = self.random.choice(self.schedule.kinds)
        expected = told(self.schedule.arithmetic, kind, 0).tokens
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
            self.news[request.request_id, choice] = []

    def _step(self) -> None:
        plan = self.scheduler.plan()
        self.pages.check()
        if plan is None:
            assert self.pages.restores or not self.scheduler.has_work, "a stall"
            self.pages.restores.finish()
            return
        output = self.strangers.submit(plan.batch)
        for span, result in zip(plan.batch.spans, output.results, strict=True):
            assert isinstance(result, SpanResult), result
            self.seen[f"right by {self.schedule.guesses}"] += result.accepted
            self.seen[f"wrong by {self.schedule.guesses}"] += span.drafts - result.accepted
        self.seen[f"{len(plan.batch.spans)} at once"] += 1
        self.seen[f"{plan.batch.total_tokens} tokens"] += 1
        self.take(self.scheduler.commit(plan, output))
        self.pages.check()

    def take(self, events: Sequence[TokenEvent]) -> None:
        """Hold the news against what the request comes to alone; what is cut short is a beginning of that."""
        for event in events:
            key = (event.request_id, event.choice)
            assert key in self.live, "news of a choice that has ended"
            self.news[key].append(event)
            if event.finish_reason is not None:
                self.live.remove(key)
                self._judge(key, event)

    def _judge(self, key: tuple[str, int], last: TokenEvent) -> None:
        news = self.news.pop(key)
        expected = told(self.schedule.arithmetic, self.kinds[key[0]], key[1])
        tokens = tuple(token for each in news for token in each.token_ids)
        logprobs = tuple(logprob for each in news for logprob in each.logprobs or ())
        assert tokens == expected.tokens[: len(tokens)]
        assert logprobs == expected.logprobs[: len(tokens)], "equal floats are equal bits"
        if tokens or last.finish_reason in WHOLE:
            assert news[0].prompt_logprobs == expected.prompt_logprobs
        assert last.error is None
        self.seen["cut short"] += last.finish_reason not in WHOLE
        if last.finish_reason in WHOLE:
            self.seen["whole"] += 1
            found = Alone(tokens, logprobs, news[0].prompt_logprobs, last.finish_reason, last.stop_reason)
            assert digest(found) == digest(expected)


def digest(answer: Alone) -> str:
    """Of tokens, log-probabilities and the end; floats are written with all their bits."""
    return sha256(repr(answer).encode()).hexdigest()


def play(schedule: Schedule, number: int, directory: Path) -> Counter[str]:
    """Play the schedule, twice where pages outlast the engine; what happened."""
    seen: Counter[str] = Counter()
    for life in range(2 if schedule.keep == "files" else 1):
        player = Player(schedule, Random(f"{number} {life}"), directory)
        player.play()
        seen += player.seen
        seen["found by another engine"] += life * player.seen[f"restored from {schedule.memory}"]
    return seen
