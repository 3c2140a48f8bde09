"""Results of requests: deltas while one runs, and the `RequestOutput` at its end.

The output is a fold over the deltas (`Collector`), so the two always agree. Names follow vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ferrum.core.errors import EngineDead, FerrumError
from ferrum.core.types import FinishReason
from ferrum.formats.output_parts import Call, Part, joined_parts, message_of


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of one token at one position.

    Attributes:
        logprob: natural logarithm, from the logits before any sampling rule.
        rank: 1 for the most likely token of the position.
        decoded_token: text of the token; None without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


Logprobs: TypeAlias = Mapping[int, Logprob]
"""The requested tokens of a position: the sampled or given one first, then the most likely ones in order."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request: the prompt once, the completions of all choices.

    Attributes:
        cached_tokens: prompt tokens from the prefix cache.
        accepted_prediction_tokens: completion tokens that the request's prediction contained.
        rejected_prediction_tokens: predicted tokens that were not generated, over all choices.
        reasoning_tokens: completion tokens of reasoning, if the output was read.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completions together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Delta:
    """What a choice has generated since its last delta. Only the last delta of a choice has a `finish_reason`.

    Attributes:
        request_id: the request's public id.
        index: the choice, 0 to n - 1.
        token_ids: new tokens, including a stop token, without tokens after a stop string.
        text: new text; None without a tokenizer. Text that may become a stop string is held back. If the request is
            read (`Request.reading`), it is the content alone.
        parts: reasoning, content and tool calls of the new text; None if the request is not read.
        logprobs: one mapping per new token, if requested.
        prompt_logprobs: one per prompt token, the first None; in a choice's first delta, if requested.
        finish_reason: why the choice ended, in its last delta.
        stop_reason: the stop string or stop token id that ended it; None for the model's end token.
        usage: in the last delta of the request.
        error: with `FinishReason.ERROR`.
        seed: the seed of all draws: the given one, or a random one.
        trace_id: as given with the request.
        scheduled: monotonic seconds when the choice last left the queue before its first token; None if it did not.
        preemptions: how often the choice was preempted.
        embedding: vector of the prompt, in the last delta, if requested.
        cached_tokens: prompt tokens from the prefix cache.
    """

    request_id: str
    index: int = 0
    token_ids: tuple[int, ...] = ()
    text: str | None = None
    logprobs: tuple[Logprobs, ...] | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None
    error: FerrumError | None = None
    seed: int = 0
    trace_id: str = ""
    scheduled: float | None = field(default=None, compare=False)
    preemptions: int = field(default=0, compare=False)
    embedding: tuple[float, ...] | None = None
    parts: tuple[Part, ...] | None = None
    cached_tokens: int = field(default=0, compare=False)


def join(first: Delta, second: Delta) -> Delta:
    """Join two consecutive deltas of one choice."""
    return Delta(  # `replace` takes three times as long, and a busy server joins most of its tokens
        request_id=second.request_id,
        index=second.index,
        token_ids=first.token_ids + second.token_ids,
        text=None if first.text is None or second.text is None else first.text + second.text,
        logprobs=None if first.logprobs is None or second.logprobs is None else first.logprobs + second.logprobs,
        prompt_logprobs=second.prompt_logprobs if first.prompt_logprobs is None else first.prompt_logprobs,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
        usage=second.usage,
        error=second.error,
        seed=second.seed,
        trace_id=second.trace_id,
        scheduled=second.scheduled,
        preemptions=second.preemptions,
        embedding=second.embedding,
        parts=None if first.parts is None or second.parts is None else joined_parts((*first.parts, *second.parts)),
        cached_tokens=second.cached_tokens or first.cached_tokens,
    )


def join_all(deltas: Sequence[Delta]) -> Delta:
    """Return consecutive deltas of one choice as one, in O(n log n) of their tokens."""
    while len(deltas) > 1:
        last = deltas[-1:] if len(deltas) % 2 else []
        deltas = [*map(join, deltas[::2], deltas[1::2]), *last]
    return deltas[0]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One finished choice.

    Attributes:
        text: of a reply that was read (`LLM.chat`) the content alone.
        cumulative_logprob: sum over the tokens; None if log-probabilities were not requested.
        finish_reason: `stop`, `length`, `abort`, `deadline` or `error`.
        error: the error, for the finish reason `error`.
        request_id: id of the request; not compared.
        reasoning: of a reply that was read; None if there is none.
        tool_calls: of a reply that was read.
    """

    index: int
    text: str | None
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[Logprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None
    error: FerrumError | None = None
    request_id: str = field(default="", compare=False)
    reasoning: str | None = None
    tool_calls: tuple[Call, ...] = ()

    def check_whole(self) -> None:
        """Raise the error that ended the choice early, or EngineDead after a shutdown.

        For callers that need a complete output and set no deadline.
        """
        if self.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise self.error or EngineDead(f"the engine was closed before the request finished ({self.finish_reason})")


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of a request, in monotonic seconds, and its token counts.

    Attributes:
        first_token_time: arrival of the first token of any choice; None without tokens.
    """

    arrival_time: float
    first_token_time: float | None
    finished_time: float
    usage: Usage
    seed: int


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request, with its choices in order."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Logprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics


@dataclass(slots=True)
class _ChoiceDeltas:
    """The deltas of one choice so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    last: Delta | None = None


class Collector:
    """A fold of one request's deltas into its `RequestOutput`."""

    def __init__(self, request_id: str, prompt: str | None, prompt_token_ids: tuple[int, ...], arrival: float) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._arrival = arrival
        self._choices: dict[int, _ChoiceDeltas] = {}
        self._prompt_logprobs: list[Logprobs | None] | None = None
        self._first_token: float | None = None

    def push(self, delta: Delta, now: float) -> None:
        """Add a delta that arrived at `now`, in monotonic seconds."""
        choice = self._choices.setdefault(delta.index, _ChoiceDeltas())
        choice.text.append(delta.text or "")
        choice.token_ids.extend(delta.token_ids)
        choice.logprobs.extend(delta.logprobs or ())
        choice.parts.extend(delta.parts or ())
        choice.last = delta
        if delta.token_ids and self._first_token is None:
            self._first_token = now
        if delta.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = list(delta.prompt_logprobs)

    def output(self, now: float) -> RequestOutput:
        """Return the output, after the delta with the usage."""
        lasts = [choice.last for choice in self._choices.values() if choice.last is not None]
        usage = next(last.usage for last in lasts if last.usage is not None)
        metrics = RequestMetrics(self._arrival, self._first_token, now, usage, lasts[0].seed)
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=list(self._prompt_token_ids),
            prompt_logprobs=self._prompt_logprobs,
            outputs=[_completion(index, choice) for index, choice in sorted(self._choices.items())],
            finished=True,
            metrics=metrics,
        )


def _completion(index: int, choice: _ChoiceDeltas) -> CompletionOutput:
    last = choice.last
    assert last is not None
    has_logprobs = last.logprobs is not None
    message = message_of(choice.parts)
    return CompletionOutput(
        index=index,
        text=None if last.text is None else "".join(choice.text),
        token_ids=choice.token_ids,
        # The chosen token stands first in each mapping.
        cumulative_logprob=sum(next(iter(each.values())).logprob for each in choice.logprobs) if has_logprobs else None,
        logprobs=choice.logprobs if has_logprobs else None,
        finish_reason=None if last.finish_reason is None else last.finish_reason.value,
        stop_reason=last.stop_reason,
        error=last.error,
        request_id=last.request_id,
        reasoning=message.reasoning,
        tool_calls=message.calls,
    )
