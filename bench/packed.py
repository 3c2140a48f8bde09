"""Model and options of the scripts in this folder: the shape of Qwen3-0.6B, random weights packed to int8."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ferrum.bench.shapes import shape_config
from ferrum.runtime.packing import pack_directory
from ferrum.sources.random_checkpoint import RandomCheckpoint

SHAPE: Final = "qwen3-0.6b"


def options_of(description: str) -> argparse.ArgumentParser:
    """Parse the options that all scripts have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--model", type=Path, help="where the packed model is kept, or made")
    parser.add_argument("--out", type=Path)
    return parser


@contextmanager
def packed_model(kept: Path | None) -> Iterator[str]:
    """Yield the model's directory and pack the model if it is missing. With None, delete it after the block."""
    with tempfile.TemporaryDirectory() as scratch:
        model = kept or Path(scratch) / "packed"
        if not model.exists():
            pack_directory(RandomCheckpoint(SHAPE, shape_config(SHAPE)), model, "int8")
        yield str(model)


def write(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write a report of measurements and machine, if a path is given."""
    if path is not None:
        origin = {"shape": SHAPE, "quantize": "int8", "machine": platform.processor() or platform.machine()}
        path.write_text(json.dumps({**origin, **report}, indent=1) + "\n")
