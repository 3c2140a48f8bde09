"""Writes the README's table of models from the census.

    python tests/support/readme_models.py

A model line without a published model in `tests/data/published/` is not in the table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from census import Published, models

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- models: tests/support/readme_models.py -->\n", "<!-- end of models -->\n"

LINES = {
    "Llama": ("Llama 2", "Llama 3.x", "Llama 4 (text)"),
    "Qwen": ("Qwen2", "Qwen2.5", "Qwen3", "Qwen2-MoE", "Qwen3-MoE", "Qwen3-Next", "Qwen3.5", "Qwen3.6", "Qwen3.8"),
    "Mistral": ("Mistral", "Ministral", "Mistral Small 3.x", "Devstral, Devstral 2", "Ministral 3", "Mixtral"),
    "Gemma": (
        *("Gemma 2", "Gemma 3", "Gemma 4 dense", "Gemma 4 with experts (26B-A4B)"),
        "Gemma 4 with per-layer embeddings (E2B, E4B)",
    ),
    "gpt-oss": ("20B", "120B"),
    "DeepSeek": ("V2", "V2-Lite", "V3", "R1", "Kimi-K2"),
    "GLM": ("GLM-4", "GLM-4.5", "GLM-4.7", "GLM-4.7-Flash"),
    "Phi": ("Phi-3", "Phi-3.5", "Phi-4", "Phi-4-mini"),
    "OLMo": ("OLMo 2", "OLMo 3"),
    "Granite": ("Granite 3", "GraniteMoe"),
    "Ernie": ("Ernie 4.5 dense", "Ernie 4.5 with experts"),
    "MiniMax": ("MiniMax-M2",),
    "Cohere": ("Command R7B", "Command A"),
    "LFM": ("LFM2", "LFM2 with experts (8B-A1B)", "LFM2.5 with experts (8B-A1B)"),
    "SmolLM": ("SmolLM2", "SmolLM3"),
    "others": ("EXAONE 4", "Seed-OSS", "StarCoder 2", "Hunyuan (dense)"),
}
"""The order of families and their model lines. A line is in the table if the census has a model of it."""


def table_of(published: Sequence[Published]) -> str:
    """Return the table: families, their model lines, and how many published models of each are checked."""
    counts = Counter(model.line for model in published)
    unknown = counts.keys() - {(family, line) for family, lines in LINES.items() for line in lines}
    assert not unknown, f"LINES lacks {sorted(unknown)}"
    rows = []
    for family, lines in LINES.items():
        held = [line for line in lines if counts[family, line]]
        rows.append(f"| {family} | {', '.join(held)} | {sum(counts[family, line] for line in held)} |")
    return "\n".join(("| family | models | files |", "|---|---|---:|", *rows)) + "\n"


def with_table(text: str, table: str) -> str:
    """Return a text with the table between its marks."""
    return re.sub(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: table, text, flags=re.DOTALL)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(), table_of(models())))
