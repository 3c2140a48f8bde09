"""Draw docs/images/peers.svg, the README's bar chart, from a report of `bench/peers.py`: ferrum against other engines.

python bench/peers_plot.py bench/results/qwen3-0.6b-int4-all-128-peers.json docs/images/peers.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean
from xml.sax.saxutils import escape

GROUPS = {"decode": "decode, 1 sequence", "batch": "8-32 sequences", "prefill": "prefill", "serve": "16 requests"}
"""Beginnings of workload names, and what the chart calls them."""

NAMES = {"openvino int8": "OpenVINO GenAI int8", "vllm-cpu -w8a8": "vLLM w8a8"}
COLORS = ("#2f6f9f", "#c0612b")
WIDTH, BAR, GAP, LEFT = 560, 22, 16, 150


def bars(report: dict) -> dict[str, dict[str, float]]:
    """Return, for each peer and group of workloads, how many times as fast ferrum is (geometric mean)."""
    found: dict[str, dict[str, list[float]]] = {}
    for each in report["peers"]:
        group = next(name for name in GROUPS if each["workload"].startswith(name))
        found.setdefault(each["peer"], {}).setdefault(group, []).append(each["times"])
    return {peer: {group: geometric_mean(times) for group, times in by.items()} for peer, by in found.items()}


def draw(peers: dict[str, dict[str, float]]) -> str:
    """Return the chart as SVG, readable on light and dark pages."""
    top = max(value for by in peers.values() for value in by.values())
    scale = (WIDTH - LEFT - 60) / top
    lines, y = [], 40
    for group, label in GROUPS.items():
        lines.append(f'<text x="{LEFT - 10}" y="{y + BAR}" text-anchor="end">{escape(label)}</text>')
        for color, by in zip(COLORS, peers.values(), strict=True):
            width = by[group] * scale
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 4}" rx="2" fill="{color}"/>')
            lines.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 14}">{by[group]:.1f}x</text>')
            y += BAR
        y += GAP
    line = LEFT + scale
    lines.append(f'<path d="M{line:.1f} 32V{y - GAP + 4}" stroke="#888" stroke-dasharray="4 3"/>')
    x = LEFT
    for color, peer in zip(COLORS, peers, strict=True):
        lines.append(f'<rect x="{x}" y="10" width="12" height="12" rx="2" fill="{color}"/>')
        lines.append(f'<text x="{x + 18}" y="21">{escape(NAMES.get(peer, peer))}</text>')
        x += 170
    lines.append(
        f'<text x="{line:.1f}" y="{y + 4}" text-anchor="middle" font-size="11">1x: as fast as the other engine</text>'
    )
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 14}" width="{WIDTH}" height="{y + 14}" '
        f'font-family="sans-serif" font-size="13" fill="#888">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(bars(json.loads(Path(sys.argv[1]).read_text()))))
