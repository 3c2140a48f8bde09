"""A step of spans: the one thing that an engine asks of a model.

    for some sequences, process some more tokens, and tell me something about the last few

Prefill, decode, chunks, verification of drafts and scoring are shapes of a span, not kinds of step. Arrays are opaque
here: this room knows no numerics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.pickling import pickled_by_fields

Array = Any
"""An array of the executor's own kind (numpy on the CPU). The core passes it on and indexes it, nothing more."""

CARRY: Final = -1
"""In place of a token: what this sequence sampled in the step before, which need not have reached the host yet."""


class Want(Enum):
    """What a span wants to be told about its rows."""

    NONE = "none"
    TOKEN = "token"
    LOGITS = "logits"


class Rows(Enum):
    """Which rows of a span the wish is about."""

    LAST = "last"
    ALL = "all"


class Hidden(Enum):
    """Which final hidden states come back: none, the last row, every row, or their mean over the span."""

    NONE = "none"
    LAST = "last"
    ALL = "all"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Sampling:
    """All that the choice of a token depends on besides its logits.

    A draw for the token at absolute position p (0 is the first prompt token) is a function of the logits, of
    `history[:p]`, and of (seed, p, choice): nothing else, so neither company nor preemption can change it.

    Attributes:
        history: the sequence's tokens, prompt first: a view that its owner appends to and changes in no other way.
        prompt_length: how many tokens of `history` are prompt (presence and frequency penalties skip them).
        eos_token_ids: the model's end tokens; `min_tokens` forbids them and the request's own stop ids.
        bad_words: token sequences that may not be completed.
        masks: a grammar's verdict per sampled row: a bit per vocabulary id, least significant bit first, set = allowed.
    """

    params: SamplingParams
    seed: int
    prompt_length: int
    history: Sequence[int]
    choice: int = 0
    eos_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    masks: tuple[bytes | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """A wish for the log-probabilities of given tokens (`prompt_logprobs`), row by row.

    Attributes:
        targets: for each row of the span the token that follows it; a span that ends its prompt has one target fewer.
        top: how many of the most likely tokens to report beside the target.
    """

    targets: tuple[int, ...]
    top: int


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's share of a step.

    Attributes:
        cache_id: the sequence. An unknown one with start 0 begins it.
        start: number of tokens already cached; must equal the stored length.
        tokens: the tokens to process (ids, or CARRY), the last `drafts` of them guesses to verify.
        want, rows, hidden: what to tell about which rows.
        sampling: required with `Want.TOKEN`.
        score: log-probabilities of given next tokens, independent of `want`.
        attention_weights: also return the attention probabilities; refused by a backend that does not keep them.
        adapter: name of a loaded adapter, or None.
    """

    cache_id: str
    start: int
    tokens: tuple[int, ...]
    want: Want = Want.TOKEN
    rows: Rows = Rows.LAST
    hidden: Hidden = Hidden.NONE
    drafts: int = 0
    sampling: Sampling | None = None
    score: Score | None = None
    adapter: str | None = None
    attention_weights: bool = False

    @property
    def end(self) -> int:
        """Stored length once every token of the span is in."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The spans of one step.

    Raises:
        RequestError: a sequence appears twice, or it is no step at all.
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        try:
            distinct = len({span.cache_id for span in self.spans})
        except (AttributeError, TypeError):
            raise RequestError("must be spans of sequences with names", param="spans") from None
        if distinct < len(self.spans):
            raise RequestError("a sequence appears twice in a step", param="cache_id")

    @property
    def total_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(len(span.tokens) for span in self.spans)


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one position, from the raw logits.

    Attributes:
        token: the token chosen or given there.
        logprob: its natural-log probability.
        rank: 1 for the most likely token; ties count towards the lowest id.
        top: the most likely (token, logprob) pairs, best first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SpanResult:
    """What a span came to.

    Attributes:
        length: stored length of the sequence after the step: `span.end`, less the rejected drafts.
        tokens: what was sampled: the accepted drafts and the token after them; empty without a wish.
        logprobs: one per sampled token, where the parameters ask for them.
        accepted: how many drafts were accepted.
        logits: float32 [rows, V] with `Want.LOGITS`.
        hidden: float32 [rows, H] as `Hidden` asks.
        scores: one per target of `Score`.
        attention_weights: per layer [heads, tokens, length], where the backend was asked for them.
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
"""What a span came to: a result, or the error that ended it and left its sequence as it was."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One outcome per span, in the batch's order."""

    results: tuple[Outcome, ...]
    seconds: float = field(default=0.0, compare=False)


class PendingStep(Protocol):
    """A submitted step. On the CPU it is finished when `submit` returns."""

    def result(self) -> StepOutput:
        """Wait for the step's end and return its output; every call returns the same object."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that had ended when `submit` returned."""

    output: StepOutput

    def result(self) -> StepOutput:
        """See `PendingStep`."""
        return self.output
