"""Messages between clients and an engine: frozen, picklable records of plain values.

The same messages go through a queue in one process and through a socket between two. A step sends one `Events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ferrum.core.errors import EngineDead, FerrumError
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.memory_plan import MemoryPlan
from ferrum.core.snapshots import PrefixCounts, SpeculationCounts
from ferrum.core.step import SpanResult, StepOutput
from ferrum.core.types import Request, TokenEvent
from ferrum.scheduler.guides import StartGuide
from ferrum.scheduler.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a request or one choice of it. Unknown and finished ones are ignored."""

    request_id: str
    choice: int | None = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Ends every live request with `FinishReason.ABORT`, then the engine."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Wakes the loop: something that the scheduler waited for is ready."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Sent within the engine's process: the executor computes nothing more."""

    error: EngineDead


@dataclass(frozen=True, slots=True)
class Compiled:
    """Sent within the engine's process: the grammar of a request is compiled, or cannot be.

    Attributes:
        found: what starts its guides, or the error.
    """

    request: Request
    found: StartGuide | FerrumError


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Reads an adapter and holds it; an `AdapterReply` with this ticket follows."""

    ticket: int
    path: str


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Frees an adapter when the last request that uses it has ended. An unknown one is ignored."""

    key: str


@dataclass(frozen=True, slots=True)
class AdapterRead:
    """Sent within the engine's process: the files of an adapter are read, or cannot be.

    Attributes:
        found: its facts and its numbers in the backend's form, or the error.
        ticket: of the `LoadAdapter`; None if the adapter was evicted, and requests need it.
        key: of the adapter that requests need.
    """

    found: tuple[AdapterFacts, Any] | FerrumError
    ticket: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ImagePrepared:
    """Sent within the engine's process: an image is cut into patches, or cannot be, or its rows were on disk.

    Attributes:
        key: of its rows.
        found: the tower and the prepared image, or the error; None: its rows were there.
        rows: those from disk.
    """

    key: tuple[str, str, bytes]
    found: tuple[Any, Any] | FerrumError | None
    rows: Any = None


Message: TypeAlias = (
    Request | Abort | Shutdown | Wake | Lost | Compiled | LoadAdapter | UnloadAdapter | AdapterRead | ImagePrepared
)
"""To the engine."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a client needs to know about its engine.

    Attributes:
        model: name of the served model.
        vocab_size: token ids are below it.
        max_sequence_length: tokens of prompt and output together.
        kv_capacity: tokens that fit in the KV pool.
        numerics_id: the arithmetic and its version; equal ids give equal bits.
        kernels: the kernels in use, with their instruction tier.
        page_size: tokens per page of the KV pool; None if the executor has no pages.
        prefix_cache: whether equal prompt prefixes share their KV pages.
        speculative: the drafter as named by the option; None: predictions of requests only.
        num_speculative_tokens: maximum draft tokens of a sequence per step.
        weights: format of the loaded weights; see `ExecutorTraits`.
        kv_format: format of keys and values.
        memory: memory of the engine; None if the executor does not report it.
        draft_memory: bytes of the draft model.
        image_memory: bytes of the tower for images, which loads with the first one, and of the rows it may keep.
        files: digests of the files that decide on the output, by name; empty if they are not known.
        ranks: that compute the model; rank 0 is the engine.
    """

    model: str
    vocab_size: int
    max_sequence_length: int
    kv_capacity: int
    numerics_id: str
    kernels: str = ""
    page_size: int | None = None
    prefix_cache: bool = False
    speculative: str | None = None
    num_speculative_tokens: int = 0
    weights: str = ""
    kv_format: str = ""
    memory: MemoryPlan | None = None
    draft_memory: int = 0
    image_memory: int = 0
    files: tuple[tuple[str, str], ...] = ()
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Started:
    """The engine is ready; sent once, before any other report."""

    info: EngineInfo


class AdapterCounts(NamedTuple):
    """The adapters of an engine at one moment.

    Attributes:
        loaded, nbytes: adapters in memory, and their bytes.
        loads, evictions: since the start.
        running, waiting: names by which live requests use them; waiting ones are not in memory.
    """

    loaded: int = 0
    nbytes: int = 0
    loads: int = 0
    evictions: int = 0
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class ImageCounts(NamedTuple):
    """The images of an engine at one moment.

    Attributes:
        held, nbytes: images whose rows are in memory, and the bytes of these rows.
        queries, hits: images of requests since the start, and those whose rows were there.
        restored: images whose rows were read from disk, since the start.
        computed, evictions: images whose rows were computed, and freed, since the start.
    """

    held: int = 0
    nbytes: int = 0
    queries: int = 0
    hits: int = 0
    restored: int = 0
    computed: int = 0
    evictions: int = 0


class EngineStats(NamedTuple):
    """The engine at one moment.

    Attributes:
        running, waiting: sequences with and without pages.
        kv_usage: part of the pages in use, 0 to 1.
        preemptions: number of preemptions since the start.
        prefixes: counts of the prefix cache since the start.
        speculation: counts of draft tokens since the start.
        step_tokens: tokens of each step since the last report.
        adapters: the adapters.
        images: the images.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    prefixes: PrefixCounts = PrefixCounts()
    speculation: SpeculationCounts = SpeculationCounts()
    step_tokens: tuple[int, ...] = ()
    adapters: AdapterCounts = AdapterCounts()
    images: ImageCounts = ImageCounts()


class Events(NamedTuple):
    """The events of one step.

    Attributes:
        stats: statistics after the step, at intervals of `STATS_SECONDS`.
        steps: computed steps since the last report, if requests are recorded.
    """

    events: tuple[TokenEvent, ...]
    stats: EngineStats | None = None
    steps: tuple[ComputedStep, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterReply:
    """The reply to a `LoadAdapter`: what was loaded, or why nothing was."""

    ticket: int
    found: AdapterFacts | FerrumError


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine has ended: after a `Shutdown` (no error), because it could not start, or because it failed."""

    error: FerrumError | None = None


Report: TypeAlias = Started | Events | AdapterReply | Ended
"""From the engine."""


# ---- Steps as records hold them: the share of every choice, and its result. Built only if records are kept ----


@dataclass(frozen=True, slots=True)
class StepShare:
    """One choice's share of a step: a span and its result.

    Attributes:
        start: tokens stored before: the end of its last share, or the length found in the prefix cache.
        tokens: processed tokens without draft tokens.
        drafts: verified draft tokens.
        accepted: how many draft tokens were accepted.
        sampled: sampled tokens, the accepted drafts first. The choice may end before the last of them.
        logprobs: one for each sampled token.
        cached: prompt tokens from the prefix cache.
        preemptions: how often the choice was preempted so far.
    """

    request_id: str
    choice: int
    start: int
    tokens: int
    drafts: tuple[int, ...] = ()
    accepted: int = 0
    sampled: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    cached: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """A computed step.

    Attributes:
        number: the step's number in the engine, from 1.
        rows: tokens of the step, over all sequences.
        shares: of its sequences.
    """

    number: int
    rows: int
    shares: tuple[StepShare, ...]


def computed_step(number: int, plan: StepPlan, output: StepOutput) -> ComputedStep:
    """Return a plan with its results. Called before the scheduler commits them."""
    shares = []
    for sequence, span, result in zip(plan.sequences, plan.batch.spans, output.results, strict=True):
        computed = result if isinstance(result, SpanResult) else SpanResult(span.start)
        shares.append(
            StepShare(
                request_id=sequence.request.request_id,
                choice=sequence.choice,
                start=span.start,
                tokens=len(span.tokens) - span.drafts,
                drafts=span.tokens[len(span.tokens) - span.drafts :],
                accepted=computed.accepted,
                sampled=computed.tokens,
                logprobs=tuple(each.logprob for each in computed.logprobs or ()),
                cached=sequence.cached,
                preemptions=sequence.preemptions,
            )
        )
    return ComputedStep(number, plan.batch.total_tokens, tuple(shares))
