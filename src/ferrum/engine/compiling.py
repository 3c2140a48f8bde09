"""`CompilingRequests`: requests outside the scheduler, until their grammars are compiled on another thread."""

from __future__ import annotations

from functools import partial
from typing import Final

from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.inbox import Inbox
from ferrum.engine.messages import Compiled
from ferrum.engine.waiting_requests import WaitingRequests, last_events
from ferrum.scheduler.guides import Guides, StartGuide

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

    def add(self, request: Request, left: frozenset[int] = frozenset()) -> list[TokenEvent]:
        """Begin to compile a request's grammar; return its last events if it is refused.

        Args:
            request: the request, with a guidance.
            left: the choices that have ended already.
        """
        if self._guides is None or request.guidance is None:
            error = RequestError(_NO_GUIDES, param="guidance")
            return last_events(request, FinishReason.ERROR, error, left)
        done = partial(_report, self._inbox, request)
        self.hold(request, left, self._guides.compile(request.guidance, request.eos_token_ids, done))
        return []


def _report(inbox: Inbox, request: Request, found: StartGuide | FerrumError) -> None:
    inbox.put(Compiled(request, found))
