"""Sessions that clients hold over HTTP: bounded for each key, and dropped when nobody has used them for long."""

from __future__ import annotations

import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ferrum.engine.session import GrowingText
from ferrum.server.error_replies import ApiError


@dataclass(slots=True, eq=False)
class HeldSession:
    """A session of a client.

    Attributes:
        created: seconds since 1970.
        used: monotonic seconds when it was used last.
        busy: it is generating.
    """

    id: str
    tenant: str
    text: GrowingText
    created: int
    used: float
    busy: bool = False

    def check_idle(self) -> None:
        """Refuse to change what is generating. Raises ApiError, 409."""
        if self.busy:
            raise ApiError(409, "the session is generating", code="session_busy", param="id")


class Sessions:
    """All sessions. Not safe to use from several threads: the event loop owns them.

    Args:
        most: of one tenant.
        seconds: without use after which one is dropped.
        clock: monotonic seconds.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._held: OrderedDict[str, HeldSession] = OrderedDict()  # those used longest ago first

    def add(self, tenant: str, text: GrowingText) -> HeldSession:
        """Hold a new session. Raises ApiError, 429, where the tenant has as many as it may."""
        now = self._drop_idle()
        its = [each for each in self._held.values() if each.tenant == tenant]
        if len(its) >= self._most:
            wait = math.ceil(max(1.0, its[0].used + self._seconds - now))
            headers = {"retry-after": str(wait)}
            raise ApiError(
                429, f"{len(its)} sessions are held, as many as may be", code="session_limit", headers=headers
            )
        held = HeldSession(f"sess-{uuid.uuid4().hex}", tenant, text, int(time.time()), now)
        self._held[held.id] = held
        return held

    def get(self, tenant: str, id: str) -> HeldSession:
        """A session of the tenant, used now. Raises ApiError, 404."""
        now = self._drop_idle()
        held = self._held.get(id)
        if held is None or held.tenant != tenant:
            raise ApiError(404, f"no session {id!r}", code="session_not_found", param="id")
        self._use(held, now)
        return held

    @contextmanager
    def generating(self, held: HeldSession, begun: tuple[int, ...]) -> Iterator[None]:
        """Within the block it generates, from the tokens that it had when the request was checked; so long it is used.

        Raises:
            ApiError: 409; it generates for another request, or has changed.
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
                self._use(held, self._clock())

    def _use(self, held: HeldSession, now: float) -> None:
        held.used = now
        self._held.move_to_end(held.id)

    def of(self, tenant: str) -> list[HeldSession]:
        """The sessions of the tenant; this uses none of them."""
        self._drop_idle()
        return [each for each in self._held.values() if each.tenant == tenant]

    def remove(self, tenant: str, id: str) -> None:
        """Drop a session of the tenant. Raises ApiError, 404."""
        self.get(tenant, id)
        del self._held[id]

    def expires_in(self, held: HeldSession) -> float:
        """Seconds until it is dropped, if nobody uses it."""
        return max(0.0, held.used + self._seconds - self._clock())

    def _drop_idle(self) -> float:
        """Drop what nobody has used for long; the time."""
        now = self._clock()
        for held in list(self._held.values()):
            if held.used + self._seconds > now:
                break
            if not held.busy:
                del self._held[held.id]
        return now
