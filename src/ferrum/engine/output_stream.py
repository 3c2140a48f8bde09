"""From a choice's token events to its deltas: text, stop strings, log-probabilities and the one end.

This is the only place where tokens become text. A stop string ends the choice here, at the token that completes it: the
tokens sampled after that token are in no text, no ids, no log-probabilities and no usage.

One running request as its client sees it: folds the engine's events and keeps what has not been fetched yet.

What waits is fetched as one delta per choice, however slow the consumer. It is joined as digits carry over: were each
delta joined to all before it, a long answer that nobody reads would be copied anew at every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from threading import Lock

from ferrum.core.errors import FerrumError
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.request_output import Delta, Logprob, Logprobs, Usage, join
from ferrum.speculative.predicted_output import Follower, Predicted
from ferrum.text.detokenizer import Detokenizer
from ferrum.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Common:
    """What the choices of a request have in common, and what is made of it once: either may be large.

    Attributes:
        prediction: what they may be like.
        prompt_logprobs: the prompt's, named; None until a choice brings them.
    """

    prediction: Predicted
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None


class Choice:
    """Folds the events of one choice. After the delta with a `finish_reason` every further event is ignored.

    Args:
        request: the request as the engine has it.
        index: which of its choices.
        tokenizer: None serves token ids alone.
        request_id: the public id, for the deltas.
        common: shared with the request's other choices.
    """

    def __init__(
        self, request: Request, index: int, tokenizer: Tokenizer | None, request_id: str, common: Common
    ) -> None:
        params = request.params
        self._request = request
        self._index = index
        self._request_id = request_id
        self._common = common
        self._tokenizer = tokenizer
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(
                tokenizer,
                stop=params.stop,
                include_stop=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
                skip_special_tokens=params.skip_special_tokens,
            )
        self._follower = Follower(common.prediction)
        self.tokens = 0
        self.cached_tokens = 0
        self.finished = False

    def push(self, event: TokenEvent) -> Delta | None:
        """The delta of an event; None when it has nothing to tell, or when the choice is over."""
        if self.finished:
            return None
        text, kept, stop = self._decode(event)
        finish = FinishReason.STOP if stop is not None else event.finish_reason
        if finish is not None:
            if text is not None and stop is None and self._detokenizer is not None:
                text += self._detokenizer.finish()
        elif not kept and not text and event.prompt_logprobs is None:
            return None
        if self._request.prediction:
            self._follower.feed(event.token_ids[:kept])
        delta = Delta(
            request_id=self._request_id,
            index=self._index,
            token_ids=event.token_ids[:kept],
            text=text,
            logprobs=self._logprobs(event, kept),
            prompt_logprobs=self._prompt_logprobs(event),
            finish_reason=finish,
            stop_reason=event.stop_reason if stop is None else stop,
            error=event.error if stop is None else None,
            seed=self._request.seed,
            trace_id=self._request.trace_id,
            scheduled=event.scheduled,
            preemptions=event.preemptions,
            embedding=event.embedding,
        )
        # Only now: an event that cannot be folded is followed by one that tells so.
        self.tokens += kept
        if finish is not None:
            self.finished, self.cached_tokens = True, event.cached_tokens
        return delta

    @property
    def predicted(self) -> int:
        """How many of its tokens came as the request's prediction says."""
        return self._follower.accepted

    def _decode(self, event: TokenEvent) -> tuple[str | None, int, str | None]:
        """The new text, how many of the event's tokens belong to the output, and the stop string that ended it.

        A stop token belongs to the ids and, like the stop strings, to the text only with `include_stop_str_in_output`.
        """
        if self._detokenizer is None:
            return None, len(event.token_ids), None
        spoken = event.token_ids
        ended_by_token = event.finish_reason is FinishReason.STOP
        if ended_by_token and not self._request.params.include_stop_str_in_output:
            spoken = spoken[:-1]
        decoded = self._detokenizer.push(spoken)
        kept = len(event.token_ids) if decoded.stop is None else decoded.kept
        return decoded.text, kept, decoded.stop

    def _logprobs(self, event: TokenEvent, kept: int) -> tuple[Logprobs, ...] | None:
        if self._request.params.logprobs is None:
            return None
        return tuple(named_logprobs(each, self._tokenizer) for each in (event.logprobs or ())[:kept])

    def _prompt_logprobs(self, event: TokenEvent) -> tuple[Logprobs | None, ...] | None:
        if event.prompt_logprobs is None:
            return None
        if self._common.prompt_logprobs is None:
            named = (named_logprobs(each, self._tokenizer) for each in event.prompt_logprobs)
            self._common.prompt_logprobs = (None, *named)
        return self._common.prompt_logprobs


def named_logprobs(position: TokenLogprobs, tokenizer: Tokenizer | None) -> Logprobs:
    """The log-probabilities of one position under the public names: the chosen token first, then the top ones."""
    texts = (lambda _: None) if tokenizer is None else tokenizer.token_text
    named = {position.token: Logprob(position.logprob, position.rank, texts(position.token))}
    for rank, (token, logprob) in enumerate(position.top, start=1):
        named.setdefault(token, Logprob(logprob, rank, texts(token)))
    return named


class RequestStream:
    """The deltas of one request, written by the engine's reports and read by its consumer, on two threads.

    Args:
        request: the request as the engine has it; its `request_id` is unique in the engine.
        request_id: the public id.
        tokenizer: None serves token ids alone.
        wake: called, from any thread, when there is something to `take`.
        observe: told of every delta when it is made, whenever it is taken.

    Attributes:
        begun: whether any delta was taken.
    """

    def __init__(
        self,
        request: Request,
        request_id: str,
        tokenizer: Tokenizer | None,
        wake: Callable[[], None],
        observe: Callable[[Request, Delta], None] | None = None,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.wake = wake
        self.begun = False
        self._observe = observe
        common = Common(Predicted(request.prediction))
        self._choices = [Choice(request, index, tokenizer, request_id, common) for index in range(request.params.n)]
        self._running = set(range(request.params.n))
        self._waiting: dict[int, list[Delta]] = {}  # of each choice, every one with fewer tokens than the one before it
        self._lock = Lock()

    @property
    def over(self) -> bool:
        """Whether every choice has had its last delta, fetched or not."""
        return all(choice.finished for choice in self._choices)

    @property
    def settled(self) -> bool:
        """Whether the engine, too, is done with every choice."""
        return not self._running

    def push(self, event: TokenEvent) -> bool:
        """Fold an event in; whether its choice ended here while the engine still computes it."""
        with self._lock:
            if event.finish_reason is not None:
                self._running.discard(event.choice)
            choice = self._choices[event.choice]
            before = choice.finished
            self._keep(choice.push(event))
            return choice.finished and not before and event.choice in self._running

    def fail(self, error: FerrumError) -> None:
        """End every choice that has not ended yet with this error; the engine will say nothing more about them."""
        with self._lock:
            self._running.clear()
            for index, choice in enumerate(self._choices):
                end = TokenEvent(
                    self.request.request_id, index, finish_reason=FinishReason.ERROR, error=error
                )  # the choice knows its trace id
                self._keep(choice.push(end))

    def take(self) -> Delta | None:
        """All that waits of the choice that had news first; None while nothing does."""
        with self._lock:
            if not self._waiting:
                return None
            self.begun = True
            deltas = self._waiting.pop(next(iter(self._waiting)))
            return reduce(lambda later, first: join(first, later), reversed(deltas))

    def _keep(self, delta: Delta | None) -> None:
        """Put a delta with those that wait, as the newest of them."""
        if delta is None:
            return
        if delta.finish_reason is not None and self.over:
            delta = replace(delta, usage=self._usage())
        if self._observe is not None:
            self._observe(self.request, delta)
        deltas = self._waiting.pop(delta.index, [])
        while deltas and len(deltas[-1].token_ids) <= len(delta.token_ids):
            delta = join(deltas.pop(), delta)
        self._waiting[delta.index] = [*deltas, delta]

    def _usage(self) -> Usage:
        predicted = [choice.predicted for choice in self._choices]
        length = len(self.request.prediction)
        return Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=sum(choice.tokens for choice in self._choices),
            cached_tokens=max(choice.cached_tokens for choice in self._choices),
            accepted_prediction_tokens=sum(predicted),
            rejected_prediction_tokens=sum(max(0, length - count) for count in predicted),
        )
