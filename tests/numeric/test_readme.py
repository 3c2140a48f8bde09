"""The README's programs run as they stand there, and what it claims of size holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ferrum

README = Path(__file__).parents[2] / "README.md"
PACKAGE = Path(ferrum.__file__).parent


def programs() -> list[str]:
    """The blocks that use ferrum (another one is a sample of what the built-in model writes)."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return [block for block in blocks if "import" in block.splitlines()[0]]


@pytest.mark.parametrize("program", programs(), ids=lambda text: text.splitlines()[0])
def test_every_program_runs(program, capsys):
    exec(compile(program, "README.md", "exec"), {})


def test_there_are_programs():
    assert len(programs()) >= 2


def test_the_package_fits_into_a_small_wheel():
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 25e6


def test_the_built_in_model_is_within_its_bounds():
    weights = PACKAGE / "assets/ferrum-tiny/model.safetensors"
    assert weights.stat().st_size <= 16e6
    with ferrum.load_executor("ferrum-tiny") as executor:
        assert executor.info.num_parameters <= 8e6
        assert executor.info.family == "qwen3"


def test_the_training_record_shows_convergence_and_compression():
    """The record is written by the training script; what it claims of the end is checked from its own curve."""
    record = json.loads((PACKAGE / "assets/ferrum-tiny/training.json").read_text())
    curve = {point["step"]: point["held_out_bits_per_byte"] for point in record["curve"]}
    last = max(curve)
    at_80 = max(step for step in curve if step <= 0.8 * last)
    assert at_80 >= 0.7 * last, "the curve has a point near four fifths"
    assert (curve[at_80] - curve[last]) / curve[at_80] < 0.01
    assert record["held_out"]["bits_per_byte"] < record["held_out"]["xz_9e_bits_per_byte"]
