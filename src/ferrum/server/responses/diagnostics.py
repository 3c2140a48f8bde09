"""`prompt_cache_diagnostics`: whether, and why, a prompt shares no longer prefix with that of an earlier response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from ferrum.server.common.json_bodies import Body, Reply, optional
from ferrum.server.common.prefix_report import PrefixReport
from ferrum.server.common.prompt_paths import Fragment, PromptPaths

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

    comparison_response_id: str | None = optional("Id of the response whose prompt is compared with this one.")


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


def response_paths(sources: Sequence[Sequence[Fragment]], tools: Sequence[str]) -> PromptPaths:
    """Return the paths of a prompt's parts: items of the input, and tools."""
    efforts = dict.fromkeys(("enable_thinking", "reasoning_effort"), "reasoning.effort")
    return PromptPaths(sources, tools, efforts, list="input")


def cache_diagnostics(report: PrefixReport) -> Mapping[str, Any]:
    """Return the field of a response whose client asks for it, at the end of the response."""
    if report.wanted is None:
        return {}
    return {"prompt_cache_diagnostics": _diagnostics(report)}


def _diagnostics(report: PrefixReport) -> PromptCacheDiagnostics:
    if not report.found:
        return PromptCacheDiagnostics(type="comparison_response_not_found")
    comparison = report.comparison
    assert comparison is not None, "there is a response"
    miss = comparison.miss
    if miss is None or miss.appended:
        return PromptCacheDiagnostics(type="unavailable" if report.evicted else "cache_hit")
    reason = None if miss.change is None else _REASONS.get(miss.change)
    where: dict[str, Any] = {"first_differing_token": comparison.common, "place": miss.place, "cause": miss.cause}
    if reason is None:
        return PromptCacheDiagnostics(type="unavailable", **where)
    return PromptCacheDiagnostics(
        type="cache_miss",
        cache_missed_tokens=report.num_tokens - comparison.common,
        reason=reason,
        comparison_reusable_tokens=comparison.common,
        **where,
    )
