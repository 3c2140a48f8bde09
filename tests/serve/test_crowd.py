"""200 streaming clients of the built-in model and 50 slow readers: no loss and constant memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "slow_readers.py"


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [20, 300])
def test_nothing_is_lost_and_memory_is_constant(seconds: int) -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", str(seconds)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads(run.stdout[: run.stdout.rindex("}") + 1])
    for phase in ("without", "with", "later"):
        assert results[phase]["streams"] > 0 and results[phase]["faults"] == []
    assert results["with"]["slow_streams"] > 0
    _, begun, ended = results["resident_mib"]
    assert ended <= begun + 8, "memory grows under the same load"
