"""Requests and events: the messages between clients and the engine.

They are frozen, picklable and consist of ints and strings, so that the engine may run in a thread or a process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ferrum.core.errors import FerrumError
from ferrum.core.guidance import Guidance
from ferrum.core.output_format import Reading
from ferrum.core.params import SamplingParams
from ferrum.core.step import AdapterUse, Grid, Inputs, TokenLogprobs
from ferrum.core.values import pickled_by_fields


class FinishReason(StrEnum):
    """The reason why a sequence ended; every sequence ends with exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


class Pooling(StrEnum):
    """The way the final hidden states of a prompt become one vector: their mean, or the last one."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that a request uses.

    Attributes:
        name: by which the request chose it.
        digest: of its tensors, and of what else changes the result: with other weights it has another digest.
        scale: factor of its low-rank products.
        start: position of the first token that it changes (aLoRA); 0 for any other adapter.
    """

    name: str
    digest: bytes
    scale: float = 1.0
    start: int = 0

    @property
    def use(self) -> AdapterUse:
        """The adapter as spans name it, by the digest."""
        return AdapterUse(self.digest.hex(), self.scale, self.start)


@dataclass(frozen=True, slots=True)
class Made:
    """What a choice of a request has generated elsewhere. An engine goes on after it as if it had generated it.

    Attributes:
        choice: number of the choice, which its draws depend on.
        token_ids: in order. They do not end the choice.
        logprobs: one per token, if the request asks for some.
    """

    choice: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """The place of an image in a prompt.

    Attributes:
        positions: of the tokens that get rows of the image, ascending.
        digest: of the image and of all that changes its rows or their number.
        grid: its rows and columns, if the model rotates by them.
        bidirectional: its rows see each other, see `Inputs.block`.
    """

    positions: tuple[int, ...]
    digest: bytes
    grid: Grid | None = None
    bidirectional: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request: token ids and numbers only.

    Attributes:
        request_id: unique among the live ones.
        prompt: prompt token ids, at least one.
        params: the sampling parameters; `params.n` choices are generated.
        seed: the resolved 64-bit seed (drawn at admission if the request has none).
        stop_token_ids: every id that ends a sequence and is reported as its stop reason or as end of text.
        eos_token_ids: the model's own end tokens among them (empty with `ignore_eos`).
        bad_words: `params.bad_words` as token sequences.
        priority: smaller runs first, under the priority policy.
        deadline: seconds on the monotonic clock after which the request is ended, or None.
        arrival: monotonic seconds at the front end.
        tenant: owner of the request, for fair scheduling.
        salt: separates its cached prefixes from those of others.
        trace_id: echoed in every event.
        adapters: in ascending order of their ids, in which their results are added.
        inputs: given rows at positions of the prompt.
        grids: of images whose tokens have rows and columns, in their order. The digests of `inputs` name them, too.
        images: `DecodedImage`s of the prompt, whose rows become `inputs` before the request runs.
        image_places: where they are, one for each.
        pooling: how to pool the prompt into a vector (then `params.max_tokens` is 0 and `n` 1), or None.
        prediction: predicted output tokens, used as draft tokens; they do not change the output.
        guidance: limits on the generated tokens, or None.
        reading: how the client's side separates reasoning and tool calls from content; None: it does not.
        dry_sequence_breakers: `params.dry_sequence_breakers` as token sequences, unless DRY is off.
        boundaries: lengths of the prompt at which messages or the generation prompt begin, ascending.
        made: what its only choice (`n` is 1) has generated elsewhere, or None.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    priority: int = 0
    deadline: float | None = None
    arrival: float = 0.0
    tenant: str = ""
    salt: str = ""
    trace_id: str = ""
    adapters: tuple[Adapter, ...] = ()
    inputs: tuple[Inputs, ...] = ()
    grids: tuple[Grid, ...] = ()
    images: tuple[Any, ...] = ()
    image_places: tuple[ImagePlace, ...] = ()
    pooling: Pooling | None = None
    prediction: tuple[int, ...] = ()
    guidance: Guidance | None = None
    reading: Reading | None = None
    dry_sequence_breakers: tuple[tuple[int, ...], ...] = ()
    boundaries: tuple[int, ...] = ()
    made: Made | None = None

    @property
    def choices(self) -> range:
        """The numbers of its choices."""
        return range(self.params.n) if self.made is None else range(self.made.choice, self.made.choice + 1)

    @property
    def known(self) -> tuple[int, ...]:
        """The generated tokens that it came with."""
        return () if self.made is None else self.made.token_ids


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class TokenEvent:
    """An update of one choice: new tokens, or its end. Exactly one event per choice has a `finish_reason`.

    Attributes:
        token_ids: the tokens sampled since the last event, in order (a stop token included).
        logprobs: one per token, if asked for.
        prompt_logprobs: the prompt's, from its second token on; complete, in the first event of a choice that asks.
        stop_reason: the stop token id that ended the choice (None at the model's own end of text).
        cached_tokens: prompt tokens that came from a cache.
        error: the error, with `FinishReason.ERROR`.
        scheduled, preemptions: the sequence's.
        embedding: the prompt's vector, if asked for, in the terminal event.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    cached_tokens: int = 0
    error: FerrumError | None = None
    trace_id: str = ""
    scheduled: float | None = field(default=None, compare=False)
    preemptions: int = field(default=0, compare=False)
    embedding: tuple[float, ...] | None = None
