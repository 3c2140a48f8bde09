"""A step of spans: the one thing that an engine asks of a model.

    for some sequences, process some more tokens, and return something about the last few

Prefill, decode, chunks, verification of drafts and scoring are shapes of a span, not kinds of step. Arrays are opaque
here: this room has no numerics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, Final, Protocol, TypeAlias

from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.params import HISTORY, SamplingParams
from ferrum.core.values import pickled_by_fields

Array = Any
"""An array of the executor's own kind (numpy on the CPU). The core only passes it on and indexes it."""

CARRY: Final = -1
"""Placeholder for the token that this sequence sampled in the step before, which may not have reached the host yet."""


class Want(Enum):
    """What a span returns for its rows."""

    NONE = "none"
    TOKEN = "token"
    LOGITS = "logits"


class Rows(Enum):
    """The rows of a span that results are for."""

    LAST = "last"
    ALL = "all"


class Hidden(Enum):
    """The hidden states to return: the final ones of some rows or their mean, or those of all rows and layers."""

    NONE = "none"
    LAST = "last"
    ALL = "all"
    MEAN = "mean"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Sampling:
    """Everything that the choice of a token depends on besides its logits.

    A draw for the token at absolute position p (0 is the first prompt token) is a function of the logits, of
    `history[:p]`, and of (seed, p, choice). So neither the batch nor preemption can change it.

    Attributes:
        params: the request's parameters.
        seed: of the draws.
        history: the sequence's tokens, prompt first: a list that its owner only appends to. It may lack the newest
            tokens, if their steps are in flight.
        prompt_length: prompt tokens in `history` (presence and frequency penalties skip them).
        eos_token_ids: the model's end tokens; `min_tokens` forbids them and the request's own stop ids.
        choice: number of the choice, if a request has several.
        bad_words: token sequences that may not be completed.
        dry_sequence_breakers: token sequences that end a repetition, see `text/breakers.py`.
    """

    params: SamplingParams
    seed: int
    prompt_length: int
    history: Sequence[int]
    choice: int = 0
    eos_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = field(
        default=(), metadata={"rule": "sampling.bad_words", "reads": HISTORY}
    )
    dry_sequence_breakers: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """A request for the log-probabilities of given tokens (`prompt_logprobs`), row by row.

    Attributes:
        targets: for each row of the span the token that follows it; a span that ends its prompt has one target fewer.
        top: number of most likely tokens to report in addition to the target.
    """

    targets: tuple[int, ...]
    top: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """Given rows at positions of a sequence, used in place of its tokens' embeddings: an image, sound, a soft prompt.

    Attributes:
        positions: of the rows, ascending. The tokens there are placeholders.
        rows: float32 [positions, H], never changed.
        digest: of what the rows are made from: equal digests mean equal rows.
        block: positions whose rows see each other, as those of an image of Gemma 3. A span has all of them, or none.
            None: each row sees those before it.
    """

    positions: tuple[int, ...]
    rows: Array = field(compare=False, repr=False)
    digest: bytes
    block: range | None = None

    def at(self, start: int, end: int) -> range:
        """Return which of the rows are at positions from `start` to `end`, the latter not included."""
        return range(bisect_left(self.positions, start), bisect_left(self.positions, end))

    def within(self, start: int, end: int) -> tuple[Inputs, ...]:
        """Return the rows at positions from `start` to `end` as inputs; nothing if there are none."""
        found = self.at(start, end)
        part = slice(found.start, found.stop)
        return (Inputs(self.positions[part], self.rows[part], self.digest, self.block),) if found else ()


def block_around(inputs: Sequence[Inputs], length: int) -> range | None:
    """Return the block that the first `length` tokens of a sequence cut in two; None if they cut none."""
    blocks = (each.block for each in inputs if each.block is not None)
    return next((block for block in blocks if block.start < length < block.stop), None)


@dataclass(frozen=True, slots=True)
class Grid:
    """An image in a sequence of a model that rotates by three numbers: time, row and column.

    A token of the image is at its row and column. The text after it goes on as if it were as long as its longer side
    (Wang et al. 2024, section 2.1).

    Attributes:
        start: position of its first token.
        rows, columns: of tokens.
    """

    start: int
    rows: int
    columns: int

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + self.rows * self.columns

    @property
    def saved(self) -> int:
        """How many positions the text after it has less than tokens."""
        return self.rows * self.columns - max(self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter that changes a sequence.

    Attributes:
        key: of a loaded adapter, see `ModelExecutor.load_adapter`. Another version of its files has another key.
        scale: factor of its low-rank products.
        start: position of the first token that it changes. Tokens before it are computed by the base model (aLoRA).
    """

    key: str
    scale: float = 1.0
    start: int = 0


class PendingMasks(Sequence[bytes | None]):
    """Masks that are computed while the step runs. The length is known, and a slice is `PendingMasks` too.

    Reading an item waits, and raises StepError if the mask could not be computed.
    """


@dataclass(frozen=True, slots=True)
class SpanExtras:
    """Everything that makes a span special. Most spans have none, so the fast path knows them by one comparison.

    Attributes:
        drafts: how many of the last tokens are drafts to verify.
        masks: a grammar's bit mask per sampled row: a bit per vocabulary id, least significant first, set = allowed.
            `PendingMasks` are waited for when the rows are sampled.
        score: log-probabilities of given next tokens, independent of `want`.
        adapters: of the sequence, in the order in which their results are added.
        inputs: given rows at positions of the span.
        grids: of all images of the sequence that begin before the end of the span, in their order.
        attention_weights: also return the attention probabilities, if the backend keeps them.
    """

    drafts: int = 0
    masks: Sequence[bytes | None] = ()
    score: Score | None = None
    adapters: tuple[AdapterUse, ...] = ()
    inputs: tuple[Inputs, ...] = ()
    grids: tuple[Grid, ...] = ()
    attention_weights: bool = False

    def or_none(self) -> SpanExtras | None:
        """Return the record as `Span.extras` takes it: None if no field is set."""
        return None if self == NO_EXTRAS else self


NO_EXTRAS: Final = SpanExtras()
"""The values that the fields of a span without extras have."""


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step.

    Attributes:
        cache_id: the sequence; an unknown one with start 0 is created.
        start: number of tokens already cached; must equal the stored length.
        tokens: the tokens to process (ids, or CARRY), the last `drafts` of them draft tokens to verify.
        want, rows, hidden: what to return for which rows.
        sampling: required with `Want.TOKEN`; the same object in every span of a sequence.
        extras: what makes the span special; None for a plain one. A record without any field set is refused.
    """

    cache_id: str
    start: int
    tokens: tuple[int, ...]
    want: Want = Want.TOKEN
    rows: Rows = Rows.LAST
    hidden: Hidden = Hidden.NONE
    sampling: Sampling | None = None
    extras: SpanExtras | None = None

    @property
    def end(self) -> int:
        """Stored length after every token of the span is processed."""
        return self.start + len(self.tokens)

    @property
    def drafts(self) -> int:
        """How many of the last tokens are drafts."""
        return (self.extras or NO_EXTRAS).drafts

    @property
    def masks(self) -> Sequence[bytes | None]:
        """Bit masks of a grammar."""
        return (self.extras or NO_EXTRAS).masks

    @property
    def score(self) -> Score | None:
        """Log-probabilities to return."""
        return (self.extras or NO_EXTRAS).score

    @property
    def adapters(self) -> tuple[AdapterUse, ...]:
        """Adapters of the sequence."""
        return (self.extras or NO_EXTRAS).adapters

    @property
    def inputs(self) -> tuple[Inputs, ...]:
        """Given rows."""
        return (self.extras or NO_EXTRAS).inputs

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Images of the sequence that have rows and columns."""
        return (self.extras or NO_EXTRAS).grids

    @property
    def attention_weights(self) -> bool:
        """Whether to return attention probabilities."""
        return (self.extras or NO_EXTRAS).attention_weights


# These run no Python code per span.
_cache_id, _tokens = attrgetter("cache_id"), attrgetter("tokens")
_want, _hidden, _extras = attrgetter("want"), attrgetter("hidden"), attrgetter("extras")


def is_plain(spans: Sequence[Span]) -> bool:
    """Return whether every span samples one token after one, and nothing else: such steps may take the fast path.

    Nothing else asks: what a span may want in addition is in `Span.extras`, so a new field of it is never plain. Only
    adapters that have begun and images that have ended are: they change the model or positions, but nothing of what a
    span asks for.
    """
    return (
        (all(map(is_, map(_extras, spans), repeat(None))) or all(map(_asks_nothing, spans)))
        and all(map(is_, map(_want, spans), repeat(Want.TOKEN)))
        and all(map(is_, map(_hidden, spans), repeat(Hidden.NONE)))
        and set(map(len, map(_tokens, spans))) <= {1}
    )


def _asks_nothing(span: Span) -> bool:
    """Return whether adapters that have begun and images that have ended are the only extras; also without any."""
    extras = span.extras
    return extras is None or (
        extras == SpanExtras(adapters=extras.adapters, grids=extras.grids)
        and all(use.start <= span.start for use in extras.adapters)
        and all(grid.end <= span.start for grid in extras.grids)
    )


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The spans of one step.

    Attributes:
        spans: at most one per sequence.

    Raises:
        RequestError: a sequence appears twice, or the items are not spans.
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        try:
            distinct = len(set(map(_cache_id, self.spans)))
        except (AttributeError, TypeError):
            raise RequestError("must be spans, each with a cache_id", param="spans") from None
        if distinct < len(self.spans):
            raise RequestError("a sequence appears twice in a step", param="cache_id")

    @property
    def total_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(map(len, map(_tokens, self.spans)))


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one position, from the raw logits.

    Attributes:
        token: the token chosen or given there.
        logprob: its natural-log probability.
        rank: 1 for the most likely token; ties count towards the lowest id.
        top: the most likely (token, logprob) pairs, best first.
        given: those of the tokens of `logprob_token_ids`, in their order.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()
    given: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanResult:
    """The result of a span.

    Attributes:
        length: stored length of the sequence after the step: `span.end`, less the rejected drafts.
        tokens: the sampled tokens: the accepted drafts and the token after them; empty without `Want.TOKEN`.
        logprobs: one per sampled token, if the parameters ask for them.
        accepted: number of accepted drafts.
        logits: float32 [rows, V] with `Want.LOGITS`.
        hidden: float32 [rows, H] as `Hidden` asks; [L + 1, rows, H] with `Hidden.LAYERS`: the input of each layer, and
            the final states.
        scores: one per target of `Score`.
        attention_weights: per layer [heads, tokens, length], if asked for.
    """

    length: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    accepted: int = 0
    logits: Array | None = None
    hidden: Array | None = None
    scores: tuple[TokenLogprobs, ...] = ()
    attention_weights: Array | None = None


Outcome: TypeAlias = SpanResult | FerrumError
"""The outcome of a span: a result, or the error that ended it and left its sequence unchanged."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One outcome per span, in the batch's order.

    Attributes:
        results: a `SpanResult`, or the error that ended the span.
        seconds: duration of the step.
    """

    results: tuple[Outcome, ...]
    seconds: float = field(default=0.0, compare=False)


class PendingStep(Protocol):
    """A submitted step. It is finished when `submit` returns, unless the executor runs ahead."""

    def result(self) -> StepOutput:
        """Wait for the step to end and return its output; every call returns the same object."""


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that ended before `submit` returned."""

    output: StepOutput

    def result(self) -> StepOutput:
        """Return the output."""
        return self.output
