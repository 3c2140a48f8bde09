"""What one API key may ask for: requests at a time, requests a minute and tokens a minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from ferrum.core.types import Request
from ferrum.engine.messages import EngineStats
from ferrum.engine.request_output import Delta
from ferrum.server.error_replies import ApiError

MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key; None: none.

    Attributes:
        max_live: requests that wait or run at a time, one per prompt.
        requests_per_minute: requests that are begun.
        tokens_per_minute: prompt and generated tokens.
    """

    max_live: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Bucket:
    """What is left of a rate: it fills up evenly, to one minute's worth, and may go into debt.

    What is asked for is granted while at least one is left, for nobody knows beforehand how much it will cost.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    @property
    def left(self) -> float:
        """How much may be taken now; negative when in debt."""
        now = self._clock()
        self._level = min(float(self.per_minute), self._level + (now - self._at) * self.per_minute / MINUTE)
        self._at = now
        return self._level

    def take(self, count: int) -> None:
        """Take so much, whatever is left."""
        self._level = self.left - count

    def seconds_until(self, level: float) -> float:
        """The time until so much is left."""
        return max(0.0, (level - self.left) * MINUTE / self.per_minute)


class _Key:
    """The books of one key."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float]) -> None:
        self.max_live = limits.max_live
        self.live = 0
        rates = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        self.buckets = {name: Bucket(rate, clock) for name, rate in rates.items() if rate is not None}


class Limits:
    """The books of all keys. An `Observer` of the engine; safe to use from any thread.

    Args:
        limits: by tenant; the others have none.
        retry_after: whole seconds after which a place should be free.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        limits: Mapping[str, KeyLimits],
        retry_after: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = {tenant: _Key(each, clock) for tenant, each in limits.items()}
        self._retry_after = retry_after
        self._lock = Lock()

    def begin(self, tenant: str) -> None:
        """Count a request of the tenant. Raises ApiError, 429, when one of its rates is used up."""
        with self._lock:
            buckets = {} if (key := self._keys.get(tenant)) is None else key.buckets
            waits = {name: seconds for name, bucket in buckets.items() if (seconds := bucket.seconds_until(1.0))}
            if waits:
                name = max(waits, key=lambda name: waits[name])
                told = f"the key's {buckets[name].per_minute} {name} a minute are used up"
                raise _refused(told, math.ceil(waits[name]))
            if "requests" in buckets:
                buckets["requests"].take(1)

    def together(self, tenant: str, most: int) -> int:
        """How many requests the tenant may have at a time, of `most` that anyone may have."""
        key = self._keys.get(tenant)
        return most if key is None or key.max_live is None else min(most, key.max_live)

    def check_place(self, tenant: str, count: int) -> None:
        """Refuse so many requests at a time beside those that the tenant has. Raises ApiError, 429."""
        key = self._keys.get(tenant)
        if key is not None and key.max_live is not None and key.live + count > key.max_live:
            raise _refused(f"{key.live} requests of the key wait or run; {key.max_live} may", self._retry_after())

    def enter(self, tenant: str, count: int) -> None:
        """So many requests of the tenant have a place."""
        if tenant in self._keys:
            self._keys[tenant].live += count

    def queue(self, tenant: str, requests: Sequence[Request]) -> None:
        """The tenant's requests are queued: the tokens of their prompts count."""
        key = self._keys.get(tenant)
        if key is not None:
            self._spend(key, sum(len(request.prompt) for request in requests))

    def leave(self, tenant: str, count: int) -> None:
        """So many places of the tenant's are free."""
        if tenant in self._keys:
            self._keys[tenant].live -= count

    def step(self, stats: EngineStats) -> None:
        """See `Observer`."""

    def delta(self, request: Request, delta: Delta) -> None:
        """See `Observer`: tokens count when they are generated."""
        key = self._keys.get(request.tenant)
        if key is not None:
            self._spend(key, len(delta.token_ids))

    def _spend(self, key: _Key, tokens: int) -> None:
        with self._lock:
            if "tokens" in key.buckets:
                key.buckets["tokens"].take(tokens)

    def headers(self, tenant: str) -> list[tuple[bytes, bytes]]:
        """What a reply tells of the tenant's rates, under OpenAI's names; `reset` is when they are full again."""
        key = self._keys.get(tenant)
        told: dict[str, str] = {}
        with self._lock:
            for name, bucket in () if key is None else key.buckets.items():
                told[f"limit-{name}"] = str(bucket.per_minute)
                told[f"remaining-{name}"] = str(max(0, math.floor(bucket.left)))
                told[f"reset-{name}"] = f"{bucket.seconds_until(bucket.per_minute):.3f}s"
        return [(f"x-ratelimit-{name}".encode(), value.encode()) for name, value in told.items()]


def _refused(message: str, seconds: int) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", headers={"retry-after": str(seconds)})
