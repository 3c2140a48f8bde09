"""What a client gets: deltas while a request runs, and the whole when it is over.

The whole is a fold over the deltas (`Collector`), so the two can never disagree. `RequestOutput`, `CompletionOutput`
and `Logprob` carry the names that vLLM's users know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ferrum.core.errors import EngineDead, FerrumError
from ferrum.core.types import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """The raw log-probability of one token at one position.

    Attributes:
        logprob: natural logarithm, from the logits before any sampling rule.
        rank: 1 for the most likely token of the position.
        decoded_token: the token as text; None without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


Logprobs: TypeAlias = Mapping[int, Logprob]
"""The tokens of a position that were asked about: the sampled or given one first, then the most likely, best first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole request: the prompt once, the completions of all its choices.

    Attributes:
        cached_tokens: of the prompt, those whose keys and values were there.
        accepted_prediction_tokens: of the completions, those that came as the request's prediction says.
        rejected_prediction_tokens: of the prediction, those that did not come, over all choices.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completions together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one choice since its last delta. Exactly one delta of a choice has a `finish_reason`, its last.

    Attributes:
        request_id: the request's public id.
        index: the choice, 0 to n - 1.
        token_ids: new tokens; a stop token is among them, tokens after a stop string are not.
        text: new text; None without a tokenizer. It lags the tokens while it may still become a stop string.
        logprobs: one mapping per new token, where asked for.
        prompt_logprobs: one per prompt token, the first None; in a choice's first delta, where asked for.
        finish_reason: why the choice ended, in its last delta.
        stop_reason: the stop string or the stop token id that ended it; None at the model's own end of text.
        usage: in the very last delta of the request.
        error: what went wrong, with `FinishReason.ERROR`.
        seed: the seed of all draws: the one given, or the one chosen at admission.
        trace_id: as given with the request.
        scheduled: monotonic seconds when the choice last left the queue before its first token; None if it never did.
        preemptions: how often it lost its pages.
        embedding: the prompt's vector, in the last delta, where asked for.
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


def join(first: Delta, second: Delta) -> Delta:
    """Two consecutive deltas of one choice as one."""
    return Delta(  # by hand: a busy server does it for most of its tokens, and `replace` takes three times as long
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
        cumulative_logprob: sum over the tokens; None where log-probabilities were not asked for.
        finish_reason: `stop`, `length`, `abort`, `deadline` or `error`.
        error: what went wrong, with `error`.
        request_id: of the request that it belongs to; two requests with the same outcome are equal.
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

    def check_whole(self) -> None:
        """Raise what ended the choice early: its error, or EngineDead for a shutdown, which is an end without one.

        For those who can use only the whole. None of them gives its requests a deadline.
        """
        if self.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise self.error or EngineDead(f"the engine was closed before the request was done ({self.finish_reason})")


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Moments of a request in seconds on the monotonic clock, and what it cost.

    Attributes:
        first_token_time: when the first token of any choice arrived; None where none did.
    """

    arrival_time: float
    first_token_time: float | None
    finished_time: float
    usage: Usage
    seed: int


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request; `outputs` has its choices in order."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Logprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics


@dataclass(slots=True)
class _Gathered:
    """The deltas of one choice, so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    last: Delta | None = None


class Collector:
    """Folds the deltas of one request into its `RequestOutput`."""

    def __init__(self, request_id: str, prompt: str | None, prompt_token_ids: tuple[int, ...], arrival: float) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._arrival = arrival
        self._choices: dict[int, _Gathered] = {}
        self._prompt_logprobs: list[Logprobs | None] | None = None
        self._first_token: float | None = None

    def push(self, delta: Delta, now: float) -> None:
        """Add a delta that arrived at `now`, monotonic seconds."""
        choice = self._choices.setdefault(delta.index, _Gathered())
        choice.text.append(delta.text or "")
        choice.token_ids.extend(delta.token_ids)
        choice.logprobs.extend(delta.logprobs or ())
        choice.last = delta
        if delta.token_ids and self._first_token is None:
            self._first_token = now
        if delta.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = list(delta.prompt_logprobs)

    def output(self, now: float) -> RequestOutput:
        """The whole, once the delta with the usage is in."""
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


def _completion(index: int, choice: _Gathered) -> CompletionOutput:
    last = choice.last
    assert last is not None
    asked = last.logprobs is not None
    return CompletionOutput(
        index=index,
        text=None if last.text is None else "".join(choice.text),
        token_ids=choice.token_ids,
        # The chosen token stands first in each mapping.
        cumulative_logprob=sum(next(iter(each.values())).logprob for each in choice.logprobs) if asked else None,
        logprobs=choice.logprobs if asked else None,
        finish_reason=None if last.finish_reason is None else last.finish_reason.value,
        stop_reason=last.stop_reason,
        error=last.error,
        request_id=last.request_id,
    )
