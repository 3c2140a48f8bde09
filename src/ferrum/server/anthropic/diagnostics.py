"""`diagnostics`: why a prompt shares no longer prefix with that of an earlier message, in Anthropic's terms."""

from __future__ import annotations

from typing import Any, Literal

from ferrum.client.diagnosis.prefix_explainer import Explanation, Miss
from ferrum.server.anthropic.events import CacheMiss, Diagnostics


def diagnostics(wanted: str | None, explanation: Explanation | None) -> Diagnostics | None:
    """Return the field of a message whose client asks for it; None if the prompts do not differ.

    Args:
        wanted: id of the message to compare with.
        explanation: None without `--explain-prefixes`: the reason is unavailable.
    """
    if wanted is None:
        return None
    if explanation is None:
        return Diagnostics(cache_miss_reason=CacheMiss(type="unavailable"))
    if not explanation.named:
        return Diagnostics(cache_miss_reason=CacheMiss(type="previous_message_not_found"))
    miss = explanation.miss
    if miss is None or miss.appended:
        return None
    kind = _kind(miss)
    where: dict[str, Any] = {"first_differing_token": explanation.common, "place": miss.place, "cause": miss.cause}
    if kind != "unavailable":
        where["cache_missed_input_tokens"] = explanation.missed
    return Diagnostics(cache_miss_reason=CacheMiss(type=kind, **where))


def _kind(miss: Miss) -> Literal["system_changed", "tools_changed", "messages_changed", "unavailable"]:
    """Return what changed. A change of `thinking` has no kind in this API."""
    if miss.change == "tool":
        return "tools_changed"
    if miss.change != "message":
        return "unavailable"
    return "system_changed" if miss.cause == "system" else "messages_changed"
