"""Loading of the native library, its instruction tiers, and the number of available threads."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ferrum.core.control_groups import MEMBERSHIP, ROOT, cpu_quota
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.kernels.numerics import VERSION


def load() -> Any:
    """Import the compiled module.

    Raises:
        Unsupported: the module was not built (no compiler at installation), does not load on this machine, or is of
            another version of the arithmetic.
    """
    try:
        library = importlib.import_module("ferrum.kernels.cpu._native")
    except ImportError as error:
        raise Unsupported("native CPU kernels", f"the library was not built or does not load: {error}") from error
    if library.NUMERICS != VERSION:
        reason = (
            f"the library computes version {library.NUMERICS} of the arithmetic, not {VERSION}: install ferrum again"
        )
        raise Unsupported("native CPU kernels", reason)
    return library


def tiers() -> tuple[str, ...]:
    """Return the instruction tiers that this machine runs, best first. Raises Unsupported as `load`."""
    return tuple(load().tiers())


def chosen_tier(name: str) -> str:
    """Return the tier of that name, or the best one for "auto".

    Raises:
        ConfigError: this machine lacks the tier.
        Unsupported: as `load`.
    """
    known = tiers()
    if name == "auto":
        return known[0]
    if name not in known:
        raise ConfigError(
            f"instruction tier {name!r} is not available: this machine has {', '.join(known)}", param="isa"
        )
    return name


def available_threads() -> int:
    """Return the number of CPUs in the affinity mask, limited by the quota of the control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(MEMBERSHIP, ROOT)
    return max(1, count if quota is None else min(count, int(quota + 0.5)))
