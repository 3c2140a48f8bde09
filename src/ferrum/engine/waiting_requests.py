"""`WaitingRequests`: requests outside the scheduler, until another thread has what they need."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.inbox import Inbox
from ferrum.engine.messages import Compiled
from ferrum.scheduler.guides import Guides, StartGuide


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request, what cancels the work for it, and its choices that have ended."""

    request: Request
    cancel: Callable[[], object]
    ended: set[int] = field(default_factory=set)


class WaitingRequests(dict[str, _Waiting]):
    """Requests that wait, by id, in the order of their arrival. The engine's thread owns it."""

    def requests(self) -> list[Request]:
        """Return the requests that wait."""
        return [each.request for each in self.values()]

    @property
    def choices(self) -> int:
        """Number of choices that wait."""
        return sum(each.request.params.n - len(each.ended) for each in self.values())

    def hold(self, request: Request, ended: frozenset[int], cancel: Callable[[], object] = bool) -> None:
        """Let a request wait.

        Args:
            request: with an id that no waiting one has.
            ended: the choices that have ended already.
            cancel: called if all choices end before.
        """
        self[request.request_id] = _Waiting(request, cancel, set(ended))

    def take(self, request: Request) -> frozenset[int] | None:
        """Remove a request that need not wait; return its choices that have ended, or None if all have."""
        kept = self.get(request.request_id)
        if kept is None or kept.request is not request:
            return None
        del self[request.request_id]
        return frozenset(kept.ended)

    def abort(
        self, request_id: str, choice: int | None = None, reason: FinishReason = FinishReason.ABORT
    ) -> list[TokenEvent]:
        """End a request, or one choice of it; ignore those that are not here."""
        if request_id not in self:
            return []
        kept = self[request_id]
        request, ended = kept.request, kept.ended
        events = [each for each in last_events(request, reason, ended=ended) if choice in (None, each.choice)]
        ended.update(each.choice for each in events)
        if len(ended) == request.params.n:
            del self[request_id]
            kept.cancel()  # else those who leave would keep others waiting
        return events

    def expire(self, now: float) -> list[TokenEvent]:
        """End the requests whose deadline has passed."""
        deadlines = ((name, each.request.deadline) for name, each in self.items())
        due = [name for name, deadline in deadlines if deadline is not None and deadline <= now]
        return [event for name in due for event in self.abort(name, reason=FinishReason.DEADLINE)]

    def abort_all(self) -> list[TokenEvent]:
        """End all requests."""
        return [event for name in list(self) for event in self.abort(name)]


def last_events(
    request: Request, reason: FinishReason, error: FerrumError | None = None, ended: Collection[int] = ()
) -> list[TokenEvent]:
    """Return the last events of a request that never ran, except for the choices that have ended already."""
    return [
        TokenEvent(request.request_id, choice, finish_reason=reason, error=error, trace_id=request.trace_id)
        for choice in request.choices
        if choice not in ended
    ]


# ---- `CompilingRequests`: requests outside the scheduler, until their grammars are compiled on another thread ----

_NO_GUIDES: Final = "this engine cannot limit the tokens of a request: its model has no tokenizer"


class CompilingRequests(WaitingRequests):
    """The requests whose grammars are being compiled. The engine's thread owns it.

    Args:
        guides: compile them; None: such requests are refused.
        inbox: gets a `Compiled` for each request, from another thread.
    """

    def __init__(self, guides: Guides | None, inbox: Inbox) -> None:
        super().__init__()
        self._guides, self._inbox = guides, inbox

    def add(self, request: Request, ended: frozenset[int] = frozenset()) -> list[TokenEvent]:
        """Begin to compile a request's grammar; return its last events if it is refused.

        Args:
            request: the request, with a guidance.
            ended: the choices that have ended already.
        """
        if self._guides is None or request.guidance is None:
            error = RequestError(_NO_GUIDES, param="guidance")
            return last_events(request, FinishReason.ERROR, error, ended)
        done = partial(_report, self._inbox, request)
        self.hold(request, ended, self._guides.compile(request.guidance, request.eos_token_ids, done))
        return []


def _report(inbox: Inbox, request: Request, found: StartGuide | FerrumError) -> None:
    inbox.put(Compiled(request, found))
