"""`CompilingRequests`: requests outside the scheduler, until their grammars are compiled on another thread."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.hosts.inbox import Inbox
from ferrum.engine.messages import Compiled
from ferrum.scheduler.guides import Guides, StartGuide

_NO_GUIDES: Final = "this engine cannot limit the tokens of a request: its model has no tokenizer"


@dataclass(frozen=True, slots=True)
class _Compiling:
    """A request, what cancels its compilation, and its choices that have ended."""

    request: Request
    cancel: Callable[[], object]
    left: set[int] = field(default_factory=set)


class CompilingRequests:
    """The requests whose grammars are being compiled. The engine's thread owns it.

    Args:
        guides: compile them; None: such requests are refused.
        inbox: gets a `Compiled` for each request, from another thread.
    """

    def __init__(self, guides: Guides | None, inbox: Inbox) -> None:
        self._guides, self._inbox = guides, inbox
        self._requests: dict[str, _Compiling] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def choices(self) -> int:
        """Number of choices that wait."""
        return sum(each.request.params.n - len(each.left) for each in self._requests.values())

    def add(self, request: Request, *, taken: bool) -> list[TokenEvent]:
        """Begin to compile a request's grammar; return its last events if it is refused.

        Args:
            request: the request, with a guidance.
            taken: another request in the scheduler has its id.
        """
        if taken or request.request_id in self._requests:
            error = RequestError(f"{request.request_id!r} is in use", param="request_id")
            return last_events(request, FinishReason.ERROR, error)
        if self._guides is None or request.guidance is None:
            return last_events(request, FinishReason.ERROR, RequestError(_NO_GUIDES, param="guidance"))
        done = partial(_report, self._inbox, request)
        cancel = self._guides.compile(request.guidance, request.eos_token_ids, done)
        self._requests[request.request_id] = _Compiling(request, cancel)
        return []

    def take(self, request: Request) -> frozenset[int] | None:
        """Remove a compiled request; return its choices that have ended, or None if all have."""
        kept = self._requests.get(request.request_id)
        if kept is None or kept.request is not request:
            return None
        del self._requests[request.request_id]
        return frozenset(kept.left)

    def abort(
        self, request_id: str, choice: int | None = None, reason: FinishReason = FinishReason.ABORT
    ) -> list[TokenEvent]:
        """End a request, or one choice of it; ignore those that are not here."""
        if request_id not in self._requests:
            return []
        kept = self._requests[request_id]
        request, left = kept.request, kept.left
        events = [each for each in last_events(request, reason, left=left) if choice in (None, each.choice)]
        left.update(each.choice for each in events)
        if len(left) == request.params.n:
            del self._requests[request_id]
            kept.cancel()  # else those who leave would keep others waiting
        return events

    def expire(self, now: float) -> list[TokenEvent]:
        """End the requests whose deadline has passed."""
        if not self._requests:
            return []
        deadlines = ((name, each.request.deadline) for name, each in self._requests.items())
        due = [name for name, deadline in deadlines if deadline is not None and deadline <= now]
        return [event for name in due for event in self.abort(name, reason=FinishReason.DEADLINE)]

    def abort_all(self) -> list[TokenEvent]:
        """End all requests."""
        return [event for name in list(self._requests) for event in self.abort(name)]


def _report(inbox: Inbox, request: Request, found: StartGuide | FerrumError) -> None:
    inbox.put(Compiled(request, found))


def last_events(
    request: Request, reason: FinishReason, error: FerrumError | None = None, left: Collection[int] = ()
) -> list[TokenEvent]:
    """Return the last events of a request that never ran, except for the choices that have ended already."""
    return [
        TokenEvent(request.request_id, choice, finish_reason=reason, error=error, trace_id=request.trace_id)
        for choice in range(request.params.n)
        if choice not in left
    ]
