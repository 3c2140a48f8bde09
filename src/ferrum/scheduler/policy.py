"""Scheduling policies: the order of requests, and which of them share a tenant queue.

The scheduler serves the tenant queue that was served least, and within a queue the lowest rank. With one queue the rank
alone decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from ferrum.core.types import Request

Rank: TypeAlias = tuple[float, ...]
"""Compared as tuples; smaller is served first."""


class Policy(Protocol):
    """Order of requests."""

    def rank(self, request: Request) -> Rank:
        """Return the rank, asked once on arrival; ties are served in the order of arrival."""

    def tenant(self, request: Request) -> str:
        """Return the name of the request's tenant queue, always the same for a request."""


class FirstComeFirstServed:
    """Order of arrival."""

    def rank(self, request: Request) -> Rank:
        return (request.arrival,)

    def tenant(self, request: Request) -> str:  # noqa: ARG002 - a policy's signature
        return ""


class PriorityFirst(FirstComeFirstServed):
    """Order of priority, smaller values first, then of arrival."""

    def rank(self, request: Request) -> Rank:
        return (request.priority, request.arrival)


class FairTenants(FirstComeFirstServed):
    """Tenants in turn by the tokens they were served; each tenant's requests in order of arrival."""

    def tenant(self, request: Request) -> str:
        return request.tenant


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {"fcfs": FirstComeFirstServed(), "priority": PriorityFirst(), "fair": FairTenants()}
)
"""The policies by the names that options use."""
