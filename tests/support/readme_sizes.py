"""Writes the README's table of which models fit into how much memory, from their plans.

    python tests/support/readme_sizes.py

A plan reads no tensor, so the census's configurations suffice. A model fits if its plan leaves `REST` to the system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from census import FOLDER
from ferrum.core.config import ModelConfig
from ferrum.runtime import memory
from ferrum.runtime.load import Bounds, assemble
from ferrum.sources.random_checkpoint import RandomCheckpoint

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- sizes: tests/support/readme_sizes.py -->\n", "<!-- end of sizes -->\n"
GIB = 1 << 30
REST = 3 * GIB // 2
"""Bytes for the system and other programs."""
TOKENS = 16_384
"""Tokens of keys and values, of all sequences together."""
USERS = 4
MACHINES = (8, 16, 64)
"""Memory in GB."""

MODELS: Mapping[str, str] = {
    "Qwen3-0.6B": "Qwen--Qwen3-0.6B",
    "Llama 3.2 3B": "meta-llama--Llama-3.2-3B",
    "Qwen3.5-4B": "Qwen--Qwen3.5-4B",
    "Gemma 3 4B": "google--gemma-3-4b-it",
    "Gemma 4 E4B": "google--gemma-4-E4B-it",
    "LFM2-8B-A1B": "LiquidAI--LFM2-8B-A1B",
    "Llama 3.1 8B": "meta-llama--Llama-3.1-8B-Instruct",
    "Qwen3-8B": "Qwen--Qwen3-8B",
    "Mistral Nemo 12B": "mistralai--Mistral-Nemo-Instruct-2407",
    "Gemma 3 12B": "google--gemma-3-12b-it",
    "Qwen3-14B": "Qwen--Qwen3-14B",
    "Phi-4 14B": "microsoft--phi-4",
    "Mistral Small 3.2 24B": "mistralai--Mistral-Small-3.2-24B-Instruct-2506",
    "Gemma 3 27B": "google--gemma-3-27b-it",
    "Qwen3.6-27B": "Qwen--Qwen3.6-27B",
    "Qwen3-30B-A3B": "Qwen--Qwen3-30B-A3B",
    "Qwen3.6-35B-A3B": "Qwen--Qwen3.6-35B-A3B",
    "Llama 3.1 70B": "meta-llama--Llama-3.1-70B",
    "Qwen3-Next-80B-A3B": "Qwen--Qwen3-Next-80B-A3B-Instruct",
}
"""Files of the census by the names that the table shows."""


def planned_bytes(file: str) -> int:
    """Return the memory of a model in q4_k_m, with everything else that it needs."""
    config = json.loads((FOLDER / f"{file}.json").read_text())["config"]
    options = ModelConfig(model=file, quantize="q4_k_m", kv_capacity=TOKENS, max_batch_size=USERS, threads=2)
    with patch.object(memory, "available_memory", lambda: 1 << 44):  # no machine is too small to plan
        plan = assemble(options, Bounds(), RandomCheckpoint(file, config), planning=True).plan
    return plan.traits.memory.total


def table_of(sizes: Mapping[str, int]) -> str:
    """Return the table: memory, and the models that fit, each in the first row whose memory suffices."""
    rows, left = [], dict(sorted(sizes.items(), key=lambda item: item[1]))
    for gigabytes in MACHINES:
        fitting = {name: size for name, size in left.items() if size + REST <= gigabytes * 10**9}
        rows.append(f"| {gigabytes} GB | {', '.join(f'{name} ({size / GIB:.0f})' for name, size in fitting.items())} |")
        left = {name: size for name, size in left.items() if name not in fitting}
    assert not left, f"no row has room for {sorted(left)}"
    return "\n".join(("| memory | models in 4 bits (GiB with everything) |", "|---|---|", *rows)) + "\n"


def with_table(text: str, table: str) -> str:
    """Return a text with the table between its marks."""
    return re.sub(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: table, text, flags=re.DOTALL)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(), table_of({n: planned_bytes(f) for n, f in MODELS.items()})))
