"""Settings of Hypothesis for the native library: length of its searches, and their seeds.

`make soak` searches FERRUM_FUZZ times as long, also under the sanitizers (test_native_sanitized.py).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Verbosity, settings
from hypothesis import strategies as st

TIMES = int(os.environ.get("FERRUM_FUZZ", "1"))
# A sanitizer ends the process, so print each example before it runs.
LOUD = Verbosity.verbose if "FERRUM_LIBRARY_ASIDE" in os.environ else Verbosity.normal

seeds = st.integers(0, 2**32 - 1)


def examples(count: int) -> settings:
    return settings(
        max_examples=count * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        verbosity=LOUD,
        suppress_health_check=list(HealthCheck),
    )
