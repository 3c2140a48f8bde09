"""`diagnostics`: why a prompt shares no longer prefix with that of an earlier message, in Anthropic's terms."""

from __future__ import annotations

from typing import Literal

from ferrum.server.anthropic.events import CacheMiss, Diagnostics
from ferrum.server.common.prefix_report import Miss, PrefixReport


def diagnostics(report: PrefixReport) -> Diagnostics | None:
    """Return the field of a message whose client asks for it; None if the prompts do not differ."""
    if report.wanted is None:
        return None
    if not report.found:
        return Diagnostics(cache_miss_reason=CacheMiss(type="previous_message_not_found"))
    comparison = report.comparison
    assert comparison is not None, "there is a message"
    miss = comparison.miss
    if miss is None or miss.appended:
        return None
    kind = _kind(miss)
    missed = {} if kind == "unavailable" else {"cache_missed_input_tokens": report.missed}
    reason = CacheMiss(type=kind, first_differing_token=comparison.common, place=miss.place, cause=miss.cause, **missed)
    return Diagnostics(cache_miss_reason=reason)


def _kind(miss: Miss) -> Literal["system_changed", "tools_changed", "messages_changed", "unavailable"]:
    """Return what changed. A change of `thinking` has no kind in this API."""
    if miss.change == "tool":
        return "tools_changed"
    if miss.change != "message":
        return "unavailable"
    return "system_changed" if miss.cause == "system" else "messages_changed"
