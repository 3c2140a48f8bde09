"""What each process knows of a model on several ranks: how long one of them may be silent."""

from __future__ import annotations

from typing import Final

BEAT_SECONDS: Final = 0.5
"""Interval of the beats of ranks, and of looks at them."""

SILENT_BEATS: Final = 7
"""Beats in a row that a rank may miss. They are counted, so that a machine that sleeps loses no rank."""
