"""Writes the tables of known answers and golden hashes again, from the reference.

    python tests/support/golden_table.py

Run it after a change of bits, with a new `VERSION` in `kernels/numerics.py` and `kNumerics` in the native library.
"""

from __future__ import annotations

import json
from pathlib import Path

from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.self_check import TABLE, hashes
from golden_models import CASES, key, logits_hash

GOLDEN = Path(__file__).parents[1] / "data" / "golden_hashes.json"


def write(path: Path, name: str, table: dict[str, str]) -> None:
    path.write_text(json.dumps({"numerics_id": NUMERICS_ID, name: table}, indent=1) + "\n")


if __name__ == "__main__":
    write(TABLE, "answers", hashes(ReferenceKernels())[0])
    write(GOLDEN, "logits", {key(*case): logits_hash(*case, kernels="reference") for case in CASES})
