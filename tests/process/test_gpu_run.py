"""The script for a machine with a GPU runs on the emulated device, and a stage that fails or hangs hides no other."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from source_tree import REPOSITORY

FOLDER = REPOSITORY / "bench" / "gpu"


def run(tmp_path: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return the exit code, the lines of JSON and the whole output."""
    out = tmp_path / "out.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--emulated", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=tmp_path, check=False)
    return done.returncode, [json.loads(line) for line in out.read_text().splitlines()], done.stdout


def test_facts_are_lines_of_json_and_a_table(tmp_path: Path) -> None:
    code, found, shown = run(tmp_path, "--only", "facts")
    values = {each["name"]: each["value"] for each in found}
    assert code == 0 and values["device"] == "emulated device" and values["launch"] > 0
    assert shown.splitlines()[-1].split()[:2] == ["facts", "seconds"]


@pytest.mark.cuda
@pytest.mark.timeout(1200)
def test_all_stages_are_right_on_the_emulated_device(tmp_path: Path) -> None:
    code, found, shown = run(tmp_path, "--seconds", "1100")
    wrong = [each for each in found if each.get("ok") is False]
    assert code == 0 and wrong == [], shown


def test_a_stage_that_hangs_or_fails_is_a_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script = pytest.importorskip("run", reason="the folder of the script")
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    options = argparse.Namespace(emulated=True, wheels=None)
    said = 'import json; print(json.dumps({"name": "said", "value": 5}), flush=True)\n'
    (tmp_path / "stages.py").write_text(said + "import time; time.sleep(60)")
    first, second = script.run_stage("spans", 1.0, options)
    assert first["value"] == 5 and (second["value"], second["ok"]) == ("stopped after 1 seconds", False)
    (tmp_path / "stages.py").write_text(said + "raise SystemExit(3)")
    first, second = script.run_stage("spans", 20.0, options)
    assert first["value"] == 5 and (second["value"], second["ok"]) == ("exit code 3", False)
