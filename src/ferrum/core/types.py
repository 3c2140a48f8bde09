"""Requests, sequences and events: what travels between a client and the engine, and what the scheduler keeps.

Messages are frozen, picklable and made of ints and strings, so that the engine may live in a thread or in a process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from ferrum.core.errors import FerrumError
from ferrum.core.params import SamplingParams
from ferrum.core.pickling import pickled_by_fields
from ferrum.core.step import Array, Sampling, TokenLogprobs


class FinishReason(StrEnum):
    """Why a sequence ended; every sequence ends with exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


class Pooling(StrEnum):
    """How the final hidden states of a prompt become one vector: their mean, or the last one."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request: token ids and numbers only.

    Attributes:
        request_id: unique among the live ones.
        prompt: prompt token ids, at least one.
        params: the sampling parameters; `params.n` choices are generated.
        seed: the resolved 64-bit seed (drawn at admission where the request named none).
        stop_token_ids: every id that ends a sequence and is reported as its stop reason or as end of text.
        eos_token_ids: the model's own end tokens among them (empty with `ignore_eos`).
        bad_words: `params.bad_words` as token sequences.
        priority: smaller is served first, under the priority policy.
        deadline: seconds on the monotonic clock after which the request is ended, or None.
        arrival: monotonic seconds at the front end.
        tenant, salt: whose request it is, and what keeps its cached prefixes apart.
        trace_id: echoed in every event.
        adapter: name of a loaded adapter, or None.
        pooling: the prompt is to become a vector (`params.max_tokens` is 0 and `n` 1 then), or None.
        prediction: tokens that the output may be like: guesses to verify, without any effect on what comes.
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
    adapter: str | None = None
    pooling: Pooling | None = None
    prediction: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request while the scheduler knows it: the only mutable thing in the scheduler's books.

    Attributes:
        tokens: prompt and generated ids; `sampling.history` is this very list. Choices that have generated nothing have
            one together, for many may wait, and prompts are long.
        computed: how many of them are in the KV cache. What is left is what the next spans process.
        names: of the full pages of `tokens`, as the prefix cache knows them; where there is none, empty.
        cached: how many tokens of the prompt came from the prefix cache.
        preemptions: how often it lost its pages and began anew.
        scheduled: monotonic seconds when it last left the queue before its first token; None while it waits.
        pooled: the hidden states that count so far, added up; an array of the executor's kind.
    """

    request: Request
    choice: int
    cache_id: str
    tokens: list[int]
    sampling: Sampling
    computed: int = 0
    names: list[bytes] = field(default_factory=list)
    cached: int = 0
    preemptions: int = 0
    scheduled: float | None = None
    pooled: Array | None = None
    finish: FinishReason | None = field(default=None)

    @property
    def generated(self) -> int:
        """Number of sampled tokens."""
        return len(self.tokens) - len(self.request.prompt)

    def extend(self, tokens: tuple[int, ...]) -> None:
        """Add sampled tokens, the first of them to a list of its own."""
        if not self.generated:
            self.tokens = list(self.tokens)
            self.sampling = replace(self.sampling, history=self.tokens)
        self.tokens += tokens


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class TokenEvent:
    """News of one choice: new tokens, perhaps its end. Exactly one event per choice has a `finish_reason`.

    Attributes:
        token_ids: the tokens sampled since the last event, in order (a stop token included).
        logprobs: one per token, where asked for.
        prompt_logprobs: the prompt's, from its second token on; complete, in the first event of a choice that asks.
        stop_reason: the stop token id that ended the choice (None at the model's own end of text).
        cached_tokens: prompt tokens that came from a cache; meaningful in the terminal event.
        error: what went wrong, with `FinishReason.ERROR`.
        scheduled, preemptions: of the sequence, as it stands.
        embedding: the prompt's vector, where asked for, in the terminal event.
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
