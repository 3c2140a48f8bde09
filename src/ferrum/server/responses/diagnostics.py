"""`prompt_cache_diagnostics`: whether, and why, a prompt shares no longer prefix with that of an earlier response."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final, Literal

from ferrum.client.diagnosis.prefix_explainer import Explanation
from ferrum.server.common.json_bodies import Body, Reply, optional

_REASONS: Final = {
    "variable": "reasoning_effort_changed",
    "tool": "tools_changed",
    "message": "input_changed",
}


class PromptCacheOptions(Body):
    """Options of the prefix cache."""

    NO_OPS = MappingProxyType(
        {
            "mode": "prefixes are always cached",
            "ttl": "prefixes are kept as long as there is room",
            "prewarm": "prefixes are cached when a response is generated",
        }
    )

    comparison_response_id: str | None = optional(
        "Id of the response whose prompt is compared with this one (with --explain-prefixes)."
    )


class PromptCacheDiagnostics(Reply):
    """The comparison with an earlier prompt; fields besides the type are those of a `cache_miss`.

    Attributes:
        cache_missed_tokens: tokens of the prompt from the first differing one on.
        comparison_reusable_tokens: tokens before it.
        first_differing_token: its index in the prompt.
        place: path of what it stands in.
        cause: path of what changed.
    """

    type: Literal["cache_hit", "cache_miss", "comparison_response_not_found", "unavailable"]
    cache_missed_tokens: int = 0
    reason: str = ""
    comparison_reusable_tokens: int = 0
    first_differing_token: int = 0
    place: str | None = None
    cause: str | None = None


def cache_diagnostics(explanation: Explanation | None, prompt: int, cached: int | None) -> PromptCacheDiagnostics:
    """Return the comparison that a client asks for.

    Args:
        explanation: None without `--explain-prefixes`: the comparison is unavailable.
        prompt, cached: tokens of the prompt, and those from the prefix cache.
    """
    if explanation is None:
        return PromptCacheDiagnostics(type="unavailable")
    if not explanation.named or explanation.common is None:
        return PromptCacheDiagnostics(type="comparison_response_not_found")
    miss = explanation.miss
    if miss is None or miss.appended:
        return PromptCacheDiagnostics(type="unavailable" if explanation.evicted(cached) else "cache_hit")
    reason = None if miss.change is None else _REASONS.get(miss.change)
    where: dict[str, Any] = {"first_differing_token": explanation.common, "place": miss.place, "cause": miss.cause}
    if reason is None:
        return PromptCacheDiagnostics(type="unavailable", **where)
    return PromptCacheDiagnostics(
        type="cache_miss",
        cache_missed_tokens=prompt - explanation.common,
        reason=reason,
        comparison_reusable_tokens=explanation.common,
        **where,
    )
