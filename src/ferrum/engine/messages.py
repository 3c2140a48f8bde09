"""What crosses the border between a client and its engine: frozen, picklable records of ints and strings.

The same messages go through a queue in the process and through a pipe between two. One `Events` is sent per step,
however many tokens the step brought.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ferrum.core.errors import FerrumError
from ferrum.core.memory_plan import MemoryPlan
from ferrum.core.snapshots import PrefixCounts, SpeculationCounts
from ferrum.core.types import Request, TokenEvent
from ferrum.engine.records.step_shares import TakenStep


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request, or one choice of it; unknown and finished ones are let be."""

    request_id: str
    choice: int | None = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End every live request with `FinishReason.ABORT`, then the engine."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Look again: what the scheduler waited for is there."""


Message: TypeAlias = Request | Abort | Shutdown | Wake
"""To the engine."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a client has to know of the engine that it talks to.

    Attributes:
        model: name of the model that is served.
        vocab_size: token ids are below it.
        max_sequence_length: tokens of prompt and output together.
        kv_capacity: tokens that fit in the KV pool.
        numerics_id: kernel set, instruction tier and version of the numerics; equal ids give equal bits.
        page_size: tokens of a page of the KV pool; None where that is nobody's business.
        prefix_cache: whether prompts that begin alike share what is computed.
        speculative: what guesses tokens, as the option names it; None: nothing but what requests predict.
        num_speculative_tokens: most guesses for a sequence in one step.
        weights: what was made of the checkpoint; see `ExecutorTraits`.
        kv_format: that of keys and values.
        memory: what the engine holds; None where that is nobody's business.
        draft_memory: bytes that a draft model holds besides.
    """

    model: str
    vocab_size: int
    max_sequence_length: int
    kv_capacity: int
    numerics_id: str
    page_size: int | None = None
    prefix_cache: bool = False
    speculative: str | None = None
    num_speculative_tokens: int = 0
    weights: str = ""
    kv_format: str = ""
    memory: MemoryPlan | None = None
    draft_memory: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The engine is ready; sent once, before any other report."""

    info: EngineInfo


class EngineStats(NamedTuple):
    """The engine at one moment.

    Attributes:
        running, waiting: sequences that hold pages, and that wait for some.
        kv_usage: the part of the pages that is in use, 0 to 1.
        preemptions: how often a sequence lost its pages, since the start.
        prefixes: how the prefix cache has served, since the start.
        speculation: how guesses have fared, since the start.
        step_tokens: tokens of each step since the last report.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    prefixes: PrefixCounts = PrefixCounts()
    speculation: SpeculationCounts = SpeculationCounts()
    step_tokens: tuple[int, ...] = ()


class Events(NamedTuple):
    """The news of one step.

    Attributes:
        stats: how the engine stands after it; not with every step (`STATS_SECONDS`).
        steps: those that were computed since the last report, where records are kept.
    """

    events: tuple[TokenEvent, ...]
    stats: EngineStats | None = None
    steps: tuple[TakenStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine has ended: after a `Shutdown` (no error), because it could not start, or because it broke."""

    error: FerrumError | None = None


Report: TypeAlias = Started | Events | Ended
"""From the engine."""
