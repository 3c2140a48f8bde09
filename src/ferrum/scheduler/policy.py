"""Who is served first. A policy ranks requests; the scheduler admits in that order and preempts against it."""

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


class FirstComeFirstServed:
    """By arrival."""

    def rank(self, request: Request) -> Rank:
        """The time of arrival."""
        return (request.arrival,)


class PriorityFirst:
    """By priority, the smaller value first, then by arrival."""

    def rank(self, request: Request) -> Rank:
        """Priority, then the time of arrival."""
        return (request.priority, request.arrival)


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType({"fcfs": FirstComeFirstServed(), "priority": PriorityFirst()})
"""The policies by the names that options use."""
