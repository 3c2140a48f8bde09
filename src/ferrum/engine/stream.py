"""One running request as its client sees it: folds the engine's events and keeps what has not been fetched yet.

What waits is fetched as one delta per choice, however slow the consumer. It is joined as digits carry over: were each
delta joined to all before it, a long answer that nobody reads would be copied anew at every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from threading import Lock

from ferrum.core.errors import FerrumError
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.choice import Choice, Common
from ferrum.engine.outputs import Delta, Usage, join
from ferrum.speculative.prediction import Predicted
from ferrum.text.tokenizer import Tokenizer


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
