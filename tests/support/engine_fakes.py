"""An engine without numerics: the fake executor of `fakes` behind the real scheduler, hosts and clients."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fakes import FakeExecutor, FakeModel, FinishedStep, Guesses, scope_of
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.client.engine_process import ProcessHost
from ferrum.client.input_processor import InputProcessor
from ferrum.client.model_client import Parts
from ferrum.core.errors import EngineDead, FerrumError, NonFiniteLogits, Unsupported
from ferrum.core.memory_plan import MemoryPlan, PoolPart
from ferrum.core.params import SamplingParams
from ferrum.core.step import Span, StepBatch
from ferrum.core.types import Request
from ferrum.engine.host import Built, Host, ThreadHost
from ferrum.engine.messages import EngineInfo
from ferrum.guides.compiled_guides import CompiledGuides
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence
from ferrum.text.generation_config import GenerationConfig

VOCABULARY = 97
CONTEXT = 4096
EOS = 96
UNKNOWN = ord("?") - 31
"""The token of letters that are not printable ASCII."""
MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
POISON = 92
"""A prompt that begins with this token fails its spans."""
CRASH = 93
"""A prompt that begins with this token makes the step raise."""
KILL = 94
"""A prompt that begins with this token ends the engine process."""


class LetterTokenizer:
    """A tokenizer of printable characters. Token 0 is special: it has no text and ends texts."""

    vocab_size = VOCABULARY
    bos_token_id = None
    eos_token_ids = (EOS,)
    special_ids = added_ids = frozenset({0, EOS})

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - 31 if " " <= letter <= "~" else UNKNOWN for letter in text]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(self.token_text(i) for i in ids if not (skip_special_tokens and self.is_special(i)))

    def token_bytes(self, token_id: int) -> bytes:
        if token_id >= VOCABULARY:  # like a real tokenizer: unknown ids add no text
            return b""
        return f"<{token_id}>".encode() if self.is_special(token_id) else bytes([token_id + 31])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode()

    def piece(self, token_id: int) -> str | None:
        return None if token_id >= VOCABULARY else self.token_text(token_id)


class MarkedTokenizer(LetterTokenizer):
    """A tokenizer with a begin token, and with infill tokens in place of three letters."""

    bos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        begin = [0] if add_special_tokens else []
        return begin + ([90 + MARKS.index(text)] if text in MARKS else super().encode(text))


class ServedFake(FakeExecutor):
    """A fake executor for hosts, with a lease, optional delays and failures on command."""

    def __init__(self, pages: PageTable, seconds_per_step: float, hold: str | None, *, fails: bool) -> None:
        super().__init__(pages, fault=_fault if fails else None, vocabulary=VOCABULARY)
        self.owner: str | None = None
        self.stopped = False
        self._seconds = seconds_per_step
        self._hold = hold
        self._fails = fails

    @contextmanager
    def lease(self, owner: str) -> Iterator[None]:
        self.owner = owner
        yield
        self.owner = None

    def on_loss(self, call: Callable[[EngineDead], None]) -> None:
        self.lose = call

    def shutdown(self) -> None:
        self.stopped = True

    def submit(self, batch: StepBatch) -> FinishedStep:
        assert self.owner is not None
        if self._seconds:
            time.sleep(self._seconds)
        _wait(self._hold)
        for span in batch.spans if self._fails else ():
            if span.start == 0 and span.tokens[0] == CRASH:
                raise ZeroDivisionError("a step that crashes")
            if span.start == 0 and span.tokens[0] == KILL:
                assert "pytest" not in sys.modules, "a prompt commands the process of the tests to end"
                os._exit(7)
        return super().submit(batch)


def _wait(hold: str | None) -> None:
    while hold is not None and Path(hold).exists():
        time.sleep(0.001)


def _fault(span: Span) -> FerrumError | None:
    return NonFiniteLogits("a poisoned prompt") if span.start == 0 and span.tokens[0] == POISON else None


@dataclass(frozen=True)
class FakeRecipe:
    """A recipe of a fake engine, for a thread or a process.

    Attributes:
        hold: path of a file; steps wait as long as it exists. So what a test needs to be live is live, however slow
            the machine.
        hold_loading: the same for loading, which then writes to the file.
        drafts: how many tokens to guess per step: right ones, but for each third step.
        broken: fail to build.
        fails: prompts may command it to.
        prefixes: prompts that begin alike share pages.
        recorded: reports tell what was in every step.
        ranks: that the engine says it has.
    """

    num_pages: int = 256
    page_size: int = 16
    policy: str = "fcfs"
    max_tokens_per_step: int = 64
    max_sequences: int = 8
    context: int = CONTEXT
    seconds_per_step: float = 0.0
    hold: str | None = None
    hold_loading: str | None = None
    drafts: int = 0
    broken: bool = False
    fails: bool = True
    prefixes: bool = False
    recorded: bool = False
    ranks: int = 1

    def __call__(self) -> Built:
        if self.broken:
            raise Unsupported("this engine", "it is broken")
        if self.hold_loading is not None:
            Path(self.hold_loading).write_text("loading")
            _wait(self.hold_loading)
        pages = PageTable([PageGroup("full", self.num_pages, self.page_size)])
        executor = ServedFake(pages, self.seconds_per_step, self.hold, fails=self.fails)
        scheduler = Scheduler(
            pages,
            policy=POLICIES[self.policy],
            max_tokens_per_step=self.max_tokens_per_step,
            max_sequences=self.max_sequences,
            max_sequence_length=self.context,
            drafter=Guesses(self._propose) if self.drafts else None,
            prefixes=scope_of(pages) if self.prefixes else None,
        )
        info = EngineInfo(
            "fake",
            VOCABULARY,
            self.context,
            pages.capacity_tokens,
            "fake-1",
            page_size=self.page_size if self.prefixes else None,
            prefix_cache=self.prefixes,
            memory=self._memory(),
            ranks=self.ranks,
        )
        return Built(executor, scheduler, info, CompiledGuides(LetterTokenizer, VOCABULARY), recorded=self.recorded)

    def _memory(self) -> MemoryPlan:
        part = PoolPart(name="full", num_pages=self.num_pages, page_size=self.page_size, page_bytes=8 * self.page_size)
        return MemoryPlan(weights=5000, activations=640, activation_row=10, tables=70, pool=(part,), libraries=3)

    def _propose(self, sequence: Sequence) -> tuple[int, ...]:
        followed = FakeModel(VOCABULARY).follow(sequence.request, sequence.choice, self.context).tokens
        right = followed[sequence.generated : sequence.generated + self.drafts]
        return right if sequence.generated % 3 else tuple((token + 1) % VOCABULARY for token in right)


def parts(
    recipe: FakeRecipe | None = None, *, process: bool = False, text: bool = True, max_requests: int = 64
) -> Parts:
    """Return client parts on a fake engine, by default in a thread."""
    made = FakeRecipe() if recipe is None else recipe
    host: Host = ProcessHost(made) if process else ThreadHost(made)
    return Parts(
        host=host,
        tokenizer=LetterTokenizer() if text else None,
        generation=GenerationConfig(eos_token_ids=(EOS,)),
        max_requests=max_requests,
    )


def input_processor(*, text: bool = True, context: int = CONTEXT, prioritised: bool = False) -> InputProcessor:
    """Return the input processor of the fake model."""
    return InputProcessor(
        vocab_size=VOCABULARY,
        max_sequence_length=context,
        tokenizer=LetterTokenizer() if text else None,
        eos_token_ids=(EOS,),
        clock=lambda: 100.0,
        prioritised=prioritised,
    )


def expected(request: Request, choice: int = 0) -> tuple[int, ...]:
    """Return the fake model's tokens for a request, computed from its definition."""
    return FakeModel(VOCABULARY).follow(request, choice, CONTEXT).tokens


def greedy(max_tokens: int | None = 16, **options: object) -> SamplingParams:
    """Return parameters for greedy sampling."""
    return SamplingParams.from_dict({"temperature": 0.0, "max_tokens": max_tokens, **options})
