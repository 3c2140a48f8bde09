"""Who is served first. A policy ranks requests and says which of them share one place in the turns.

The scheduler gives turns to shares, to the one that was served least first, and within a share goes by rank. Where all
requests are of one share, the rank alone decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from ferrum.core.types import Request

Rank: TypeAlias = tuple[float, ...]
"""Compared as tuples; smaller is served first."""


class Policy(Protocol):
    """An order of requests."""

    def rank(self, request: Request) -> Rank:
        """Where the request stands, asked once, when it is added; ties are served in the order they were added."""
        ...

    def share(self, request: Request) -> str:
        """Whose turn it takes; always the same for a request."""
        ...


class FirstComeFirstServed:
    """By arrival."""

    def rank(self, request: Request) -> Rank:
        """The time of arrival."""
        return (request.arrival,)

    def share(self, request: Request) -> str:  # noqa: ARG002 - a policy's signature
        """One for all."""
        return ""


class PriorityFirst(FirstComeFirstServed):
    """By priority, the smaller value first, then by arrival."""

    def rank(self, request: Request) -> Rank:
        """Priority, then the time of arrival."""
        return (request.priority, request.arrival)


class FairShares(FirstComeFirstServed):
    """Tenants take turns by the tokens that they were served; a tenant's own requests go by arrival."""

    def share(self, request: Request) -> str:
        """The tenant's."""
        return request.tenant


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {"fcfs": FirstComeFirstServed(), "priority": PriorityFirst(), "fair": FairShares()}
)
"""The policies by the names that options use."""
