"""The name of the arithmetic, which the reference and all native tiers share."""

from __future__ import annotations

from typing import Final

VERSION: Final = 2
"""Incremented with every change of the results or of raw pages; `kNumerics` of the native library equals it."""

NUMERICS_ID: Final = f"ferrum-{VERSION}"
"""Equal ids give equal bits, on every processor and in every instruction tier."""
