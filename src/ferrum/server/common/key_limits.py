"""API keys, read from a file, and their limits: concurrent requests, requests and tokens per minute.

Keys are checked in `http_guard`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from ferrum.client.request_output import Delta
from ferrum.core.errors import ConfigError
from ferrum.core.types import Request
from ferrum.engine.messages import EngineStats
from ferrum.server.common.error_replies import ApiError

_UNNAMED: Final = "key "
"""Prefix of tenants without a name. Given names contain no space."""

_ONLY: Final = "key"
"""The tenant of the only key."""

_error: Final = partial(ConfigError, param="api_key_file")
_LIMIT: Final = re.compile("([a-z_]+)=([1-9][0-9]{0,17})")


class ApiKeys:
    """The accepted API keys and their tenants.

    Only digests of keys are stored. They have equal length, so comparison time reveals nothing about a key.

    Args:
        keys: tenants by key.
        limits: by tenant.
    """

    def __init__(self, keys: dict[str, str], limits: dict[str, KeyLimits]) -> None:
        self.limits = limits
        self._names = [(_digest(key), name) for key, name in keys.items()]

    def tenant(self, key: str) -> str | None:
        """Return the tenant of a key, or None for an unknown key. Compares every key."""
        digest, found = _digest(key), None
        for each, name in self._names:
            if hmac.compare_digest(each, digest):
                found = name
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def only_key(key: str, limits: KeyLimits) -> ApiKeys:
    """Return the one accepted key. Raises ConfigError if it is not of visible ASCII characters."""
    if not re.fullmatch("[!-~]+", key):  # the value is a secret, and not repeated
        raise ConfigError("must be visible ASCII characters, at least one", param="api_key")
    return ApiKeys({key: _ONLY}, {_ONLY: limits})


def read_keys(path: str, limits: KeyLimits) -> ApiKeys:
    """Read a file of API keys: one per line, `key` or `name:key`.

    Empty lines and lines that begin with # are skipped. A key may be followed by limits such as
    `tokens_per_minute=1000`. Keys with the same name share their limits.

    Args:
        limits: defaults for keys without limits in the file.

    Raises:
        ConfigError: the file is missing or has no keys; a key is repeated or not ASCII; a limit is invalid.
    """
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _error(f"cannot read {path}: {error}") from None
    keys: dict[str, str] = {}
    by_name: dict[str, KeyLimits] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        entry, *words = line.split()
        name, _, key = entry.rpartition(":")
        if not key or key in keys or not key.isascii():  # the encoding of other characters depends on the client
            fault = "no key" if not key else "repeated key" if key in keys else "a key must be ASCII"
            raise _error(f"{path}, line {number}: {fault}")
        keys[key] = name = name or f"{_UNNAMED}{number}"
        own = _own_limits(words, limits, f"{path}, line {number}")
        if by_name.setdefault(name, own) != own:
            raise _error(f"{path}, line {number}: limits of {name} differ from an earlier line")
    if not keys:
        raise _error(f"{path} contains no keys")
    return ApiKeys(keys, by_name)


def _own_limits(words: list[str], limits: KeyLimits, place: str) -> KeyLimits:
    """Return the limits with those of a line replaced."""
    known = {each.name for each in fields(KeyLimits)}
    own: dict[str, int] = {}
    for word in words:
        match = _LIMIT.fullmatch(word)
        if match is None or match[1] not in known:
            raise _error(f"{place}: {word!r} is not a limit; use NAME=NUMBER with {', '.join(sorted(known))}")
        own[match[1]] = int(match[2])
    return replace(limits, **own)


# Limits


MINUTE: Final = 60.0

RATE_WINDOW: Final = 32
"""Finished requests over which the drain rate is measured."""
MAX_RETRY_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, and the limits that apply to it.

    Attributes:
        trace_id: its `traceparent` header, else the id of the HTTP request.
        deadline: seconds that a request may take; None: no limit.
        max_requests: limit of its requests in progress, one per prompt.
        max_logprobs: limit of top tokens per position.
    """

    tenant: str
    trace_id: str
    deadline: float | None
    max_requests: int
    max_logprobs: int


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key; None: unlimited.

    Attributes:
        max_live: requests in progress, one per prompt.
        requests_per_minute: requests begun.
        tokens_per_minute: prompt and generated tokens.
    """

    max_live: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class DrainRate:
    """The rate at which requests finish.

    Attributes:
        ends: when the last requests ended; each end is appended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.ends: deque[float] = deque(maxlen=RATE_WINDOW)

    def retry_after(self) -> int:
        """Return the mean time between two ends in whole seconds, at least 1, at most 60."""
        if len(self.ends) < 2:
            return 1
        mean = (self._clock() - self.ends[0]) / len(self.ends)
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(mean)))


class Bucket:
    """A token bucket: refills evenly, up to one minute's worth, and may go into debt.

    Requests are admitted while at least one is left, because their cost is unknown in advance.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    @property
    def left(self) -> float:
        """The amount available now; negative in debt."""
        now = self._clock()
        self._level = min(float(self.per_minute), self._level + (now - self._at) * self.per_minute / MINUTE)
        self._at = now
        return self._level

    def take(self, count: int) -> None:
        """Take an amount, which may exceed what is left."""
        self._level = self.left - count

    def seconds_until(self, level: float) -> float:
        """Return the time until `level` is available."""
        return max(0.0, (level - self.left) * MINUTE / self.per_minute)


class _KeyState:
    """The state of one key."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float]) -> None:
        self.max_live = limits.max_live
        rates = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        self.buckets = {name: Bucket(rate, clock) for name, rate in rates.items() if rate is not None}


class Limits:
    """The limits of all keys; an `Observer` of the engine, safe for threads.

    Args:
        limits: by tenant; other tenants have none.
        retry_after: returns whole seconds after which a queue slot should be free.
        clock: monotonic seconds.

    Attributes:
        tenants: those with limits.
    """

    def __init__(
        self,
        limits: Mapping[str, KeyLimits],
        retry_after: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = {tenant: _KeyState(each, clock) for tenant, each in limits.items()}
        self.tenants = frozenset(limits)
        self._retry_after = retry_after
        self._lock = Lock()

    def begin(self, tenant: str) -> None:
        """Count a request. Raises ApiError, 429, if one of the tenant's rates is exceeded."""
        with self._lock:
            buckets = {} if (key := self._keys.get(tenant)) is None else key.buckets
            waits = {name: seconds for name, bucket in buckets.items() if (seconds := bucket.seconds_until(1.0))}
            if waits:
                name = max(waits, key=lambda name: waits[name])
                reason = f"the API key exceeds its limit of {buckets[name].per_minute} {name} per minute"
                raise _refused(reason, math.ceil(waits[name]))
            if "requests" in buckets:
                buckets["requests"].take(1)

    def max_live(self, tenant: str, most: int) -> int:
        """Return the tenant's limit of concurrent requests, at most `most`."""
        key = self._keys.get(tenant)
        return most if key is None or key.max_live is None else min(most, key.max_live)

    def check_live(self, tenant: str, live: int, count: int) -> None:
        """Refuse `count` more requests of a tenant with `live` ones. Raises ApiError, 429."""
        key = self._keys.get(tenant)
        if key is not None and key.max_live is not None and live + count > key.max_live:
            reason = f"the API key has {live} requests in progress, limit {key.max_live}; retry when one has ended"
            raise _refused(reason, self._retry_after())

    def queue(self, tenant: str, requests: Sequence[Request]) -> None:
        """Count the prompt tokens of queued requests."""
        key = self._keys.get(tenant)
        if key is not None:
            self._spend(key, sum(len(request.prompt) for request in requests))

    def step(self, stats: EngineStats) -> None:
        """Do nothing; see `Observer`."""

    def delta(self, request: Request, delta: Delta) -> None:
        """Count generated tokens; see `Observer`."""
        key = self._keys.get(request.tenant)
        if key is not None:
            self._spend(key, len(delta.token_ids))

    def _spend(self, key: _KeyState, tokens: int) -> None:
        with self._lock:
            if "tokens" in key.buckets:
                key.buckets["tokens"].take(tokens)

    def headers(self, tenant: str) -> list[tuple[bytes, bytes]]:
        """Return rate limit headers under OpenAI's names; `reset` is the time until full."""
        key = self._keys.get(tenant)
        values: dict[str, str] = {}
        with self._lock:
            for name, bucket in () if key is None else key.buckets.items():
                values[f"limit-{name}"] = str(bucket.per_minute)
                values[f"remaining-{name}"] = str(max(0, math.floor(bucket.left)))
                values[f"reset-{name}"] = f"{bucket.seconds_until(bucket.per_minute):.3f}s"
        return [(f"x-ratelimit-{name}".encode(), value.encode()) for name, value in values.items()]


def _refused(message: str, seconds: int) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", headers={"retry-after": str(seconds)})
