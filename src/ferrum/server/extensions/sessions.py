"""Sessions that clients hold over HTTP: limited per API key, and dropped when idle.

Their routes are in `session_routes`; the tokens of a session are a `GrowingText`.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ferrum.engine.session import GrowingText
from ferrum.server.common.error_replies import ApiError


@dataclass(slots=True, eq=False)
class HeldSession:
    """A client's session.

    Attributes:
        created: seconds since 1970.
        used: monotonic time of the last use, in seconds.
        busy: whether it is generating.
    """

    id: str
    tenant: str
    text: GrowingText
    created: int
    used: float
    busy: bool = False

    def check_idle(self) -> None:
        """Raise ApiError, 409, if the session is generating."""
        if self.busy:
            raise ApiError(409, "the session is generating", code="session_busy", param="id")


class Sessions:
    """All sessions of a server. Not thread-safe: used by the event loop only.

    Args:
        max_sessions: limit per tenant.
        seconds: idle time after which a session is dropped.
        clock: monotonic seconds.
    """

    def __init__(self, max_sessions: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_sessions = max_sessions
        self._seconds = seconds
        self._clock = clock
        self._held: OrderedDict[str, HeldSession] = OrderedDict()  # least recently used first

    def add(self, tenant: str, text: GrowingText) -> HeldSession:
        """Add a session. Raises ApiError, 429, if the tenant has the maximum."""
        own = self.of(tenant)
        now = self._clock()
        if len(own) >= self._max_sessions:
            wait = math.ceil(max(1.0, own[0].used + self._seconds - now))
            reason = f"the limit of {self._max_sessions} sessions is reached; delete one (--max-sessions)"
            raise ApiError(429, reason, code="session_limit", headers={"retry-after": str(wait)})
        held = HeldSession(f"sess-{uuid.uuid4().hex}", tenant, text, int(time.time()), now)
        self._held[held.id] = held
        return held

    def get(self, tenant: str, id: str) -> HeldSession:
        """Return a session of the tenant and mark it as used. Raises ApiError, 404."""
        self._drop_idle()
        held = self._held.get(id)
        if held is None or held.tenant != tenant:
            raise ApiError(404, f"no session {id!r}", code="session_not_found", param="id")
        self._use(held)
        return held

    @contextmanager
    def generating(self, held: HeldSession, begun: tuple[int, ...]) -> Iterator[None]:
        """Mark a session as generating within the block.

        Args:
            begun: its tokens when the request was checked.

        Raises:
            ApiError: 409 if it is generating for another request, or has changed.
        """
        held.check_idle()
        if held.text.token_ids is not begun:
            raise ApiError(409, "the session has changed", code="session_busy", param="id")
        held.busy = True
        try:
            yield
        finally:
            held.busy = False
            if held.id in self._held:
                self._use(held)

    def _use(self, held: HeldSession) -> None:
        held.used = self._clock()
        self._held.move_to_end(held.id)

    def of(self, tenant: str) -> list[HeldSession]:
        """Return the tenant's sessions, least recently used first, without marking them as used."""
        self._drop_idle()
        return [each for each in self._held.values() if each.tenant == tenant]

    def remove(self, tenant: str, id: str) -> None:
        """Drop a session of the tenant. Raises ApiError, 404."""
        self.get(tenant, id)
        del self._held[id]

    def expires_in(self, held: HeldSession) -> float:
        """Return the seconds until an unused session is dropped."""
        return max(0.0, held.used + self._seconds - self._clock())

    def _drop_idle(self) -> None:
        now = self._clock()
        for held in list(self._held.values()):
            if held.used + self._seconds > now:
                break
            if not held.busy:
                del self._held[held.id]
