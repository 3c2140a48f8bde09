"""The constants that steer adaptive policies, in one place. docs/policies.md has the measurement behind each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Constants of the policies that adapt to load. No bit of an answer depends on them."""

    team_interval_seconds: float = 0.1
    """Seconds of steps between two decisions about the number of threads."""

    team_crowded_rate: float = 50
    """Preemptions per second of the main thread from which on the team is halved."""

    team_calm_rate: float = 20
    """Preemptions per second up to which the team may be doubled."""

    team_max_patience: int = 32
    """Calm intervals to wait before a doubling, at most. The wait doubles after each doubling that did not hold."""


POLICY: Final = PolicyConfig()
"""The constants in effect."""
