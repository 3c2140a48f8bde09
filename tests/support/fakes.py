"""An executor without numerics, and its model.

The fake executor stores every token in the page that the page table assigns and computes from what it reads back, so a
page that is wrongly shared, copied, freed or reused shows up as a wrong token. `FakeModel.follow` returns the expected
output of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ferrum.cache.page_hashes import PrefixScope
from ferrum.cache.page_table import PageTable
from ferrum.cache.pool import HashedPage
from ferrum.cache.tiered_restore import WantedPage
from ferrum.core.errors import FerrumError, NothingAllowed, StepError
from ferrum.core.snapshots import SpeculationCounts
from ferrum.core.step import (
    CARRY,
    FinishedStep,
    Hidden,
    Rows,
    Sampling,
    Span,
    SpanResult,
    StepBatch,
    StepOutput,
    TokenLogprobs,
    Want,
)
from ferrum.core.types import FinishReason, Request
from ferrum.scheduler.drafts import DraftRequest, StepLoad
from ferrum.scheduler.sequence import Sequence as Choice

Visible = tuple[tuple[int, ...], ...]
"""The tokens that a query sees in each layer group, with its own token last."""

GARBAGE = -7


def scope_of(pages: PageTable) -> PrefixScope:
    """Return the prefix scope of the fake model."""
    return PrefixScope(model="fake", weights="", kv_format="", page_size=pages.groups[0].page_size, numerics_id="")


class Guesses:
    """A `Drafter` by a function of one sequence."""

    counts = SpeculationCounts()
    only_predicted = False

    def __init__(self, propose: Callable[[Choice], tuple[int, ...]]) -> None:
        self._propose = propose

    def draft(self, wishes: Sequence[DraftRequest], room: StepLoad) -> list[tuple[int, ...]]:
        assert room.budget > 0 and all(wish.limit > 0 for wish in wishes)
        return [self._propose(wish.sequence) for wish in wishes]

    def learn(self, sequence: Choice, drafted: int, accepted: int) -> None:
        assert 0 <= accepted <= drafted > 0 and sequence.finish is None

    def forget(self, sequence: Choice) -> None:
        assert sequence.finish is not None


def admit_all(sequence: Choice, context: int) -> int:
    """Reserve no pages at all, not even for known tokens, so that pages run out and sequences are preempted."""
    return -len(sequence.tokens)


class Vector(tuple[float, ...]):
    """The array operations that pooling needs."""

    def __radd__(self, other: float) -> Vector:
        return Vector(other + each for each in self)

    def __add__(self, other: Vector) -> Vector:  # type: ignore[override]
        return Vector(a + b for a, b in zip(self, other, strict=True))

    def __truediv__(self, count: int) -> Vector:
        return Vector(each / count for each in self)

    def tolist(self) -> list[float]:
        return list(self)


@dataclass(frozen=True)
class FakeModel:
    """A model whose next token is a hash of the history that each layer group sees."""

    vocabulary: int = 97
    windows: tuple[int | None, ...] = (None,)

    def visible(self, tokens: Sequence[int], position: int) -> Visible:
        """Return what the query at `position` sees of `tokens`."""
        return tuple(tuple(tokens[first(position, window) : position + 1]) for window in self.windows)

    def choose(self, visible: Visible, position: int, sampling: Sampling) -> int:
        """Return the token at `position`; `visible` ends just before it."""
        draw = () if sampling.params.greedy else (sampling.seed, sampling.choice)
        token = hash((position, visible, draw)) % self.vocabulary
        forbidden: set[int] = set()
        if position - sampling.prompt_length < sampling.params.min_tokens:
            forbidden = {*sampling.eos_token_ids, *sampling.params.stop_token_ids}
        while token in forbidden:
            token = (token + 1) % self.vocabulary
        return token

    def hidden(self, visible: Visible) -> Vector:
        """Return the final hidden state at the last visible position."""
        return Vector((float(hash(visible) % 1000 - 500), float(hash((visible, 1)) % 1000), 1.0))

    def score(self, visible: Visible, target: int) -> TokenLogprobs:
        """Return the log-probability of `target` after the visible tokens."""
        return TokenLogprobs(target, -1.0 - hash((visible, target)) % 1000 / 100, 1)

    def follow(self, request: Request, choice: int, context: int) -> Followed:
        """Return the expected output of the choice in a context of this many tokens."""
        prompt, params = request.prompt, request.params
        tokens = list(prompt)
        sampling = Sampling(params, request.seed, len(prompt), tokens, choice, request.eos_token_ids, request.bad_words)
        scores = None
        if params.prompt_logprobs is not None:
            scores = tuple(self.score(self.visible(prompt, at - 1), prompt[at]) for at in range(1, len(prompt)))
        finish, stop_reason = FinishReason.LENGTH, None
        while len(tokens) < context and len(tokens) - len(prompt) != params.max_tokens:
            token = self.choose(self.visible(tokens, len(tokens) - 1), len(tokens), sampling)
            tokens.append(token)
            if token in request.stop_token_ids and len(tokens) - len(prompt) > params.min_tokens:
                finish, stop_reason = FinishReason.STOP, None if token in request.eos_token_ids else token
                break
        return Followed(tuple(tokens[len(prompt) :]), scores, finish, stop_reason)


@dataclass(frozen=True)
class Followed:
    """The expected output of a choice."""

    tokens: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...] | None
    finish: FinishReason
    stop_reason: int | None


class FakeExecutor:
    """Executor of a `FakeModel` on a real page table.

    Args:
        pages: its groups say what the model's layers see.
        fault: asked about every span; the error it returns fails the span.
        vocabulary: size of the vocabulary.
    """

    def __init__(
        self, pages: PageTable, *, fault: Callable[[Span], FerrumError | None] | None = None, vocabulary: int = 97
    ) -> None:
        self.pages = pages
        windows = tuple(group.window for group in pages.groups)
        self.model = FakeModel(vocabulary, windows if pages.states is None else (*windows, None))
        self.batches: list[StepBatch] = []
        self.due: list[tuple[Sequence[WantedPage], Future[Sequence[bool]]]] = []
        self._kept: dict[tuple[str, bytes], list[int]] = {}
        self._fault = fault
        self._sampled: dict[str, int] = {}
        self._slots: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._seen: dict[str, tuple[int, ...]] = {}
        self._store = {
            group.name: [[GARBAGE] * group.page_size for _ in range(group.num_pages)] for group in pages.groups
        }

    def submit(self, batch: StepBatch) -> FinishedStep:
        """Make the pending page copies, write all spans, then read each one."""
        for span in batch.spans:
            blocks = [each.block for each in span.inputs if each.block is not None]
            assert all(span.start <= block.start and block.stop <= span.end for block in blocks), "a block is cut"
        batch = StepBatch(tuple(map(self._with_carried, batch.spans)))
        self.batches.append(batch)
        assert len({span.cache_id for span in batch.spans}) == len(batch.spans), "a sequence twice in a step"
        for copy in reversed(self.pages.take_copies()):
            self._store[copy.group][copy.target] = list(self._store[copy.group][copy.source])
        late = {span.cache_id for span in batch.spans if span.start != self._length(span.cache_id)}
        for span in batch.spans:
            if span.cache_id not in late:
                self._write(span)
                self._advance(span)
        results = [StepError("late") if span.cache_id in late else self._run(span) for span in batch.spans]
        for span, result in zip(batch.spans, results, strict=True):
            if isinstance(result, SpanResult) and result.tokens:
                self._sampled[span.cache_id] = result.tokens[-1]
        return FinishedStep(StepOutput(tuple(results)))

    def _length(self, cache_id: str) -> int:
        """Return the stored length: less than a span's start if the step before has failed."""
        return self.pages.length(cache_id) if cache_id in self.pages else 0

    def _with_carried(self, span: Span) -> Span:
        """Return the span with the token of the sequence's last step in place of CARRY."""
        if CARRY not in span.tokens:
            return span
        assert span.tokens[0] == CARRY and CARRY not in span.tokens[1:]
        return replace(span, tokens=(self._sampled.get(span.cache_id, 0), *span.tokens[1:]))

    def _write(self, span: Span) -> None:
        for group in self.pages.groups:
            row = self.pages.row(span.cache_id, group.name)
            for position, token in enumerate(span.tokens, span.start):
                page, slot = divmod(position, group.page_size)
                self._store[group.name][row[page]][slot] = token

    def _advance(self, span: Span) -> None:
        """Apply a span to the state of its sequence: all tokens that it has seen, and those of drafts next to them."""
        if self.pages.states is None:
            return
        step = self.pages.states.begin(span.cache_id, span.start, span.end - span.drafts)
        assert step is not None, "admission counts slots"
        applied, kept = ((), ()) if step.read < 0 else self._slots[step.read]
        assert len(applied) == step.applied <= span.start, "another state than the slots say"
        self._seen[span.cache_id] = seen = (*applied, *kept)[: span.start] + span.tokens
        assert len(seen) == span.end, "rows of drafts are missing"
        self._slots[step.write] = seen[: step.until], seen[step.until :]

    def content(self, group: str, page: int) -> list[int]:
        """Return the tokens of a page."""
        return self._store[group][page]

    def keep_evicted(self, *, slow: bool = False) -> None:
        """Keep evicted pages from now on, and restore them at once, or with `slow` when `deliver` is called."""
        executor = self

        class Kept:
            def keep(self, group: str, hashed: HashedPage) -> None:
                assert executor.pages.holds(group, hashed)

            def evicted(self, group: str, hashed: HashedPage) -> None:
                executor._kept[group, hashed.page_hash] = list(executor._store[group][hashed.page])

            def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
                executor.due.append((wanted, Future()))
                future = executor.due[-1][1]
                if not slow:
                    executor.deliver()
                return future

        self.pages.attach(Kept())

    def deliver(self) -> None:
        """Deliver the oldest fetch, as far as its pages are kept."""
        wanted, future = self.due.pop(0)
        contents = [self._kept.pop((each.group, each.page_hash), None) for each in wanted]
        for each, content in zip(wanted, contents, strict=True):
            if content is not None:
                self._store[each.group][each.page] = content
        future.set_result([content is not None for content in contents])

    def _spoil(self, span: Span) -> None:
        """Overwrite what a failed span has written: no sequence may read it."""
        for group in self.pages.groups:
            row = self.pages.row(span.cache_id, group.name)
            for position in range(span.start, span.end):
                page, slot = divmod(position, group.page_size)
                self._store[group.name][row[page]][slot] = GARBAGE

    def _visible(self, span: Span, position: int) -> Visible:
        """Return what the query at `position` reads from the pages of each group."""
        seen = []
        for group in self.pages.groups:
            row, store = self.pages.row(span.cache_id, group.name), self._store[group.name]
            start = first(position, group.window)
            pages = range(start // group.page_size, position // group.page_size + 1)
            assert all(row[page] >= 0 for page in pages), f"{span.cache_id}: position {position} needs a freed page"
            tokens = [token for page in pages for token in store[row[page]]]
            offset = pages.start * group.page_size
            seen.append(tuple(tokens[start - offset : position + 1 - offset]))
        if self.pages.states is not None:
            seen.append(self._seen[span.cache_id][: position + 1])
        return tuple(seen)

    def _run(self, span: Span) -> SpanResult | FerrumError:
        error = self._fault(span) if self._fault is not None else None
        if error is not None:
            self._spoil(span)
            if self.pages.states is not None:
                self.pages.states.abandon(span.cache_id)
            return error
        tokens: list[int] = []
        if span.want is Want.TOKEN:
            assert span.sampling is not None and (span.rows is Rows.ALL) == (span.drafts > 0)
            drafts = span.tokens[len(span.tokens) - span.drafts :]
            for row in range(span.drafts + 1):
                position = span.end - span.drafts + row
                token = self.model.choose(self._visible(span, position - 1), position, span.sampling)
                allowed = _allowed(token, span.masks[row] if span.masks else None, self.model.vocabulary)
                if allowed is None:
                    return NothingAllowed(f"no token is allowed at position {position}")
                tokens.append(allowed)
                if row < span.drafts and tokens[-1] != drafts[row]:
                    break
        accepted = max(0, len(tokens) - 1)
        scores = tuple(
            self.model.score(self._visible(span, span.start + row), target)
            for row, target in enumerate(span.score.targets if span.score is not None else ())
        )
        wanted = {Hidden.ALL: range(span.start, span.end), Hidden.LAST: range(span.end - 1, span.end)}
        hidden = [self.model.hidden(self._visible(span, position)) for position in wanted.get(span.hidden, ())]
        self.pages.commit(span.cache_id, span.end - span.drafts + accepted)
        logprobs = None
        if span.sampling is not None and span.sampling.params.logprobs is not None:
            logprobs = tuple(TokenLogprobs(token, -token / 7, 1) for token in tokens)
        length = span.end - span.drafts + accepted
        return SpanResult(length, tuple(tokens), logprobs, accepted, hidden=hidden, scores=scores)


def _allowed(token: int, mask: bytes | None, vocabulary: int) -> int | None:
    """Return the token, or the next one with a bit in the mask; None if there is none."""
    if mask is None:
        return token
    bits = int.from_bytes(mask, "little")
    return next((each for each in (*range(token, vocabulary), *range(token)) if bits >> each & 1), None)


def first(position: int, window: int | None) -> int:
    """Return the position of the first key that a query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)
