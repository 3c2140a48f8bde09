"""The constants that steer adaptive policies, in one place. docs/policies.md has the measurement behind each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Constants of the policies that adapt to load. No bit of an answer depends on them."""


POLICY: Final = PolicyConfig()
"""The constants in effect."""
