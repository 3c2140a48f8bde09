"""Writes the table of chat templates in docs/formats.md: which format is found for each, and how.

python tests/support/format_table.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ferrum.core.output_format import ArgumentStyle, Calls, CallStyle, OutputFormat
from ferrum.formats.find import facts_of
from real_templates import TEMPLATES

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- templates: tests/support/format_table.py -->\n", "<!-- end of templates -->\n"


def table() -> str:
    """Return the table."""
    head = "| template | tools | found by | reasoning | calls |\n|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows())


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of each template."""
    for name, template in TEMPLATES.items():
        facts = facts_of(template)
        calls = None if facts.format is None else facts.format.calls
        how = "refused: " + facts.reason.removeprefix("the chat template ")
        if calls is not None and facts.format is not None:
            how = {"template": "analysis", "known": "hand-written format"}[facts.format.source]
            how += f" ({facts.format.name})" if facts.format.source == "known" else ""
        elif not facts.renders_tools:
            how = "-"
        tools = "yes" if facts.renders_tools else "no"
        yield name, tools, how, _reasoning(facts.format), _calls(calls)


def _reasoning(format: OutputFormat | None) -> str:
    if format is None or format.reasoning is None:
        return ""
    return f"{_code(format.reasoning.open)} {_code(format.reasoning.close)}"


def _calls(calls: Calls | None) -> str:
    if calls is None:
        return ""
    begin = _code(calls.section_open + calls.open)
    if calls.style is CallStyle.OBJECT:
        return f"{begin} object with {_code(calls.name_key)}, {_code(calls.arguments_key)}".strip()
    if calls.style is CallStyle.PYTHONIC:
        return f"{begin} Python"
    style = {ArgumentStyle.JSON: "name, JSON", ArgumentStyle.TAGGED: "name, tags", ArgumentStyle.GEMMA: "name, Gemma's"}
    return f"{begin} {style[calls.arguments.style]}"


def _code(text: str) -> str:
    """Return a text as code in a cell; line breaks are written as in Python."""
    shown = text.strip().replace("\n", "\\n").replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def with_table(text: str) -> str:
    """Return a text with the table between its marks."""
    return re.sub(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: table(), text, flags=re.DOTALL)


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text("utf-8")), "utf-8")
