"""A request alone: one span for its prompt and one for each later token, without scheduler, engine or batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ferrum.core.step import AdapterUse, Sampling, Score, Span, SpanExtras, SpanResult, StepBatch, TokenLogprobs, Want
from ferrum.core.types import FinishReason, Request
from ferrum.verbs.model_executor import ModelExecutor


@dataclass(frozen=True)
class Alone:
    """The expected result of one choice, in any batch."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...] | None
    finish: FinishReason
    stop_reason: int | None


def alone(executor: ModelExecutor, request: Request, choice: int, context: int) -> Alone:
    """Run one choice on an otherwise unused executor; `context` bounds prompt and output together."""
    params, prompt = request.params, request.prompt
    history = list(prompt)
    resolved = (request.eos_token_ids, request.bad_words, request.dry_sequence_breakers)
    sampling = Sampling(params, request.seed, len(prompt), history, choice, *resolved)
    score = None if params.prompt_logprobs is None else Score(prompt[1:], params.prompt_logprobs)
    uses = [each.use for each in request.adapters]
    logprobs: list[TokenLogprobs] = []
    scores: tuple[TokenLogprobs, ...] | None = None
    finish, stop_reason = FinishReason.LENGTH, None
    stored = 0
    while stored == 0 or (len(history) < context and len(history) - len(prompt) != params.max_tokens):
        if params.max_tokens == 0:
            extras = SpanExtras(score=score, adapters=_begun(uses, len(prompt)))
            span = Span("alone", 0, prompt, Want.NONE, extras=extras.or_none())
        else:
            extras = SpanExtras(score=None if stored else score, adapters=_begun(uses, len(history)))
            span = Span("alone", stored, tuple(history[stored:]), sampling=sampling, extras=extras.or_none())
        (result,) = executor.submit(StepBatch((span,))).result().results
        assert isinstance(result, SpanResult), result
        if stored == 0 and score is not None:
            scores = result.scores
        stored = len(history)
        history += result.tokens
        logprobs += result.logprobs or ()
        token = history[-1]
        if token in request.stop_token_ids and len(history) - len(prompt) > params.min_tokens and result.tokens:
            finish, stop_reason = FinishReason.STOP, None if token in request.eos_token_ids else token
            break
    executor.release_cache("alone")
    return Alone(tuple(history[len(prompt) :]), tuple(logprobs), scores, finish, stop_reason)


def _begun(uses: Iterable[AdapterUse], end: int) -> tuple[AdapterUse, ...]:
    """Return the adapters that change tokens before `end`."""
    return tuple(each for each in uses if each.start < end)
