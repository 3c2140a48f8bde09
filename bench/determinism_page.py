"""The tables and the picture of docs/determinism.md, and the README's table, from bench/results/determinism.json.

    python bench/determinism_page.py

A test compares them with the report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from determinism import ALONE, CONDITIONS
from determinism_engines import ENGINES
from determinism_models import LABELS
from script import run_script

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/determinism.md"
PICTURE: Final = ROOT / "docs/images/determinism.svg"
README: Final = ROOT / "README.md"
RESULT: Final = ROOT / "bench/results/determinism.json"
SECTION: Final = re.compile(r"(<!-- bits: (\w+) -->\n).*?(<!-- end of bits -->)", re.DOTALL)
COMPANY: Final = "batch of 32"
"""The condition of the README's first column: every server has it."""

TIMED: Final = (ALONE, COMPANY)
"""Conditions whose speeds the page shows."""

CELL, LABEL, HEAD, MARGIN = (70, 24), 190, 110, 60
"""Size of a cell of the picture, width of its labels, height of its head, and room for the last condition's name."""

WHITE, RED = (232, 240, 232), (200, 70, 50)
"""Colours of no difference and of all answers."""

Row = Mapping[str, Any]


def rows_of(report: Mapping[str, Any], engine: str, model: str | None = None) -> list[Row]:
    """Return the rows of an engine, of one model or of all."""
    return [row for row in report["rows"] if row["engine"] == engine and model in (None, row["model"])]


def measured(report: Mapping[str, Any]) -> list[str]:
    """Return the engines that have a result, in the order of the script."""
    return [
        name for name in ENGINES if any("tokens" in row and row["condition"] != ALONE for row in rows_of(report, name))
    ]


def models_of(report: Mapping[str, Any]) -> list[str]:
    """Return the models of a report."""
    return [name for name in LABELS if any(row["model"] == name for row in report["rows"])]


def cell(row: Row | None, count: int) -> str:
    """Return answers with other tokens / other log-probabilities (largest difference), or why there is none.

    Args:
        row: of the condition.
        count: requests of the engine's other conditions; a condition with fewer says how many it has.
    """
    if row is None:
        return ""
    if "failed" in row:
        return "failed"
    if "not_offered" in row:
        return "-"
    fewer = f" of {row['requests']}" if row["requests"] < count else ""
    if not row["logprobs"]:
        preempted = row["seen"].get("preemptions", 0)
        return f"exact{fewer} ({preempted} preemptions)" if preempted else f"exact{fewer}"
    return f"{row['tokens']} / {row['logprobs']}{fewer} ({row['largest']:.1g})"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its first column of words."""
    return "".join(f"| {' | '.join(each)} |\n" for each in (head, ["---", *["---:"] * (len(head) - 1)], *lines))


def counts(report: Mapping[str, Any]) -> str:
    """Return a table for each model: engines by conditions."""
    parts = []
    for model in models_of(report):
        lines = []
        for name in ENGINES:
            found = {row["condition"]: row for row in rows_of(report, name, model)}
            if found:
                count = max(row["requests"] for row in found.values())
                lines.append([name, str(count), *(cell(found.get(condition), count) for condition in CONDITIONS)])
        digests = {row["digest"] for row in report["rows"] if row["model"] == model}
        title = f"**{LABELS[model]}** (digest of the requests: {', '.join(sorted(digests))})"
        parts.append(title + "\n\n" + table(["", "requests", *CONDITIONS], lines))
    return "\n".join(parts)


def settings(report: Mapping[str, Any]) -> str:
    """Return a table of versions and settings, of their speeds in the measured run, and of what the best ones cost."""
    lines = []
    for name in measured(report):
        engine = ENGINES[name]
        version = next((each for each in engine.packages if not each.startswith("torch")), "")
        speeds = [" / ".join(f"{each:.3g}" for each in _speeds(report, name, at).values()) or "-" for at in TIMED]
        cost = ", ".join(_costs(report, name)) if engine.best else ""
        lines.append([name, version or f"ferrum {report['setting']['ferrum']}", engine.about, *speeds, cost])
    head = ["", "version", "settings", "tokens per CPU second, alone", f"in a {COMPANY}", "cost of the best settings"]
    return table(head, lines)


def _speeds(report: Mapping[str, Any], engine: str, condition: str) -> dict[str, float]:
    """Return the tokens per processor second of a condition by model."""
    rows = [row for row in rows_of(report, engine) if row["condition"] == condition]
    return {row["model"]: row["tokens_per_cpu_second"] for row in rows if "tokens_per_cpu_second" in row}


def _costs(report: Mapping[str, Any], best: str) -> Iterator[str]:
    """Yield how many times as long the best settings take as the defaults, for the first model of both."""
    for condition in TIMED:
        slow = _speeds(report, best, condition)
        quick = _speeds(report, best.removesuffix(", best"), condition)
        model = next((name for name in LABELS if name in slow and name in quick), None)
        if model is not None:
            yield f"{quick[model] / slow[model]:.2g} times as long {'alone' if condition == ALONE else 'in the batch'}"


def summary(report: Mapping[str, Any]) -> str:
    """Return the README's table: one row an engine, its answers that differ over all models."""
    lines = []
    for name in measured(report):
        rows = [row for row in rows_of(report, name) if row["condition"] != ALONE and "tokens" in row]
        company = [row for row in rows if row["condition"] == COMPANY]
        exact, total = sum(not row["logprobs"] for row in rows), sum(row["requests"] for row in rows)
        lines.append([name, f"{total:,}", *_shares(company), *_shares(rows), f"{exact} of {len(rows)}"])
    shares = [f"other {what}, {where}" for where in (COMPANY, "all") for what in ("tokens", "log-probabilities")]
    head = ["", "answers compared", *shares, "conditions without a change"]
    return table(head, lines) + f"\n{_how(report)}\n"


def _how(report: Mapping[str, Any]) -> str:
    """Return a line on models, numbers of requests and the machine."""
    parts = []
    for model in models_of(report):
        rows = [row for row in report["rows"] if row["model"] == model]
        requests, lengths = (_range(row[name] for row in rows) for name in ("requests", "length"))
        parts.append(f"{requests} requests on {LABELS[model]}, answers of {lengths} tokens")
    return f"{'; '.join(parts)}; {report['setting']['machine']}."


def _range(numbers: Iterable[int]) -> str:
    known = sorted(set(numbers))
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _shares(rows: Sequence[Row]) -> list[str]:
    total = sum(row["requests"] for row in rows)
    if not total:
        return ["-", "-"]
    return [f"{100 * sum(row[name] for row in rows) / total:.0f}%" for name in ("tokens", "logprobs")]


TABLES: Final = {"counts": counts, "settings": settings, "summary": summary}


def with_tables(text: str, report: Mapping[str, Any]) -> str:
    """Return a document with its tables in place."""
    return SECTION.sub(lambda found: found[1] + TABLES[found[2]](report) + found[3], text)


def drawn(report: Mapping[str, Any]) -> str:
    """Return the picture as SVG: a cell for each engine and condition, redder with more answers that differ."""
    names = measured(report)
    width, height = LABEL + CELL[0] * len(CONDITIONS) + MARGIN, HEAD + CELL[1] * len(names) + 10
    lines = [*_heads(), *(line for place, name in enumerate(names) for line in _line(report, place, name))]
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="#888">\n{body}\n</svg>\n'
    )


def _heads() -> Iterator[str]:
    for place, condition in enumerate(CONDITIONS):
        x, y = LABEL + CELL[0] * place + 24, HEAD - 8
        yield f'<text x="{x}" y="{y}" transform="rotate(-40 {x} {y})">{escape(condition)}</text>'


def _line(report: Mapping[str, Any], place: int, name: str) -> Iterator[str]:
    y = HEAD + CELL[1] * place
    yield f'<text x="{LABEL - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
    for column, condition in enumerate(CONDITIONS):
        known = [row for row in rows_of(report, name) if row["condition"] == condition]
        rows = [row for row in known if "tokens" in row]
        x, text = LABEL + CELL[0] * column, "-" if known else ""
        if rows:
            share = sum(row["logprobs"] for row in rows) / sum(row["requests"] for row in rows)
            text = f"{100 * share:.0f}%" if share else "exact"
            colour = ",".join(f"{a + (b - a) * share:.0f}" for a, b in zip(WHITE, RED, strict=True))
            yield f'<rect x="{x}" y="{y}" width="{CELL[0] - 2}" height="{CELL[1] - 2}" fill="rgb({colour})"/>'
        ink = "#222" if rows else "#888"
        yield f'<text x="{x + CELL[0] // 2}" y="{y + 16}" text-anchor="middle" fill="{ink}">{text}</text>'


def main() -> None:
    """Write the page, the picture and the README."""
    report = json.loads(RESULT.read_text())
    for path in (PAGE, README):
        path.write_text(with_tables(path.read_text(), report))
    PICTURE.write_text(drawn(report))


if __name__ == "__main__":
    run_script(main)
