"""The tables of docs/performance.md, from the reports in bench/results/.

    python bench/performance_page.py

A table stands between lines that name its function here. A test compares the page with the reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from script import run_script

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/performance.md"
RESULTS: Final = ROOT / "bench/results"
SECTION: Final = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
SHAPES: Final = (
    "qwen3-30b-a3b-12-layers-q4_k_m",
    "gpt-oss-20b-6-layers-q8_0",
    "deepseek-v2-lite-4-layers-q8_0",
    "gemma-3-4b-17-layers-q4_k_m",
)


def report(name: str) -> Any:
    """Return a report by its name."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: list[str], rows: Iterator[list[str]] | list[list[str]]) -> str:
    """Return a Markdown table, its first two columns of words."""
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def line(row: dict[str, Any]) -> list[str]:
    """Return the cells of a comparison with a peer."""
    speeds = [f"{row[engine]:,.0f}" for engine in ("ferrum", "llama.cpp")]
    return [row["workload"], *speeds, f"{row['times']:.1f}", f"{row['of_limit']:.2f}".removeprefix("0")]


def peers() -> str:
    """Return a table of every file that was measured next to llama.cpp, each machine and shape by itself."""
    parts = []
    for path in sorted(RESULTS.glob("block_peers*.json")):
        found = json.loads(path.read_text())
        rows = [[file["type"], *line(row)] for file in found["files"] for row in file["rows"]]
        threads, speed = found["files"][0]["threads"], max(file["read_gb_per_second"] for file in found["files"])
        parts.append(
            f"{found['shape']}, {found['layers']} layers, {threads} threads of {found['machine']}, which read up to "
            f"{speed:.0f} GB/s; llama-cpp-python {found['peer']}; medians of {found['rounds']} samples "
            f"(`bench/results/{path.name}`).\n\n"
            + table(["type", "work", "ferrum", "llama.cpp", "times", "of the limit"], rows)
        )
    return "\n".join(parts)


def shapes() -> str:
    """Return a table of `ferrum bench --shape NAME --layers N`, a column for each report."""
    found = [report(name) for name in SHAPES]
    names = [f"{each['setting']['model']}, {name.rpartition('-')[2]}" for each, name in zip(found, SHAPES, strict=True)]
    cells = [{cell["workload"]: cell for cell in each["cells"]} for each in found]
    rows = [
        [work, *(f"{cell[work]['figure']:,.0f} ({cell[work]['ratio']:.2f})".replace("(0.", "(.") for cell in cells)]
        for work in cells[0]
        if all(work in each for each in cells)
    ]
    return table(["tokens per second (share of the limit)", *names], rows)


def adapters() -> str:
    """Return what adapters add to a step, from `bench/adapters.py`."""
    rows = [
        [
            cell["cell"],
            f"{cell['milliseconds']:.2f}",
            f"{cell['added_ms']:.2f}",
            f"{cell['reading_ms']:.2f}",
            f"{cell['ratio']:.2f}",
        ]
        for cell in report("adapters")["cells"]
        if "added_ms" in cell
    ]
    return table(["step", "milliseconds", "added", "time to read the adapters", "times"], rows)


def images() -> str:
    """Return what a tower for images takes, from `bench/images.py`, scaled from its layers to 27."""
    rows = []
    for each in report("images"):
        shares = (
            f"{each[name]:.2f}".removeprefix("0") for name in ("of_peak", "products_of_peak", "attention_of_peak")
        )
        seconds = (f"{each[name] / each['layers'] * 27:.1f}" for name in ("seconds", "peer_seconds"))
        rows.append([each["type"], *seconds, f"{each['of_peer']:.2f}".removeprefix("0"), *shares])
    head = ["matrices", "seconds of a thread", "llama.cpp", "times", "of the peak", "products", "attention"]
    return table(head, rows)


def ranks() -> str:
    """Return what a step takes on two ranks and on one with two threads, from `bench/ranks.py`."""
    rows = [
        [
            each["format"],
            str(each["sequences"]),
            f"{each['weights_ms']:.1f}",
            f"{each['one_rank_ms']:.1f}",
            f"{each['ranks_ms']:.1f}",
            f"{each['of_one_rank']:.2f}".removeprefix("0"),
            f"{each['bytes_a_step'] / 1e3:,.0f}",
        ]
        for each in report("ranks")["rows"]
    ]
    return table(["format", "sequences", "reading weights", "two threads", "two ranks", "of two threads", "kB"], rows)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "peers": peers,
    "shapes": shapes,
    "adapters": adapters,
    "images": images,
    "ranks": ranks,
}


def with_tables(text: str) -> str:
    """Return the page with its tables in place."""
    return SECTION.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    run_script(main)
