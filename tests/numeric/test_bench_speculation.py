"""bench/speculation.py: recorded texts are generated whatever the model predicts; copies take fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrum.core.errors import ConfigError
from fixed_costs import SetCosts
from speculation import Gain, SpeculationReport, measure, parsed, scripts_of
from speculation_texts import RECORDED


def test_there_are_ten_texts() -> None:
    scripts = scripts_of([], 64)
    assert len(scripts) == len(RECORDED) == 10
    assert all(len(script.answer) == 64 < len(script.prompt) + 64 for script in scripts.values())
    with pytest.raises(ConfigError, match="copy-edits") as caught:
        scripts_of(["poem"], 64)
    assert caught.value.param == "workload"


def test_the_bound_is_two_standard_errors_below_the_mean() -> None:
    gain = Gain("copy", 1, 9, 9, 3, 6, 6, (1.0, 4.0, 2.0, 2.0))
    assert gain.speedup == pytest.approx(2.0)
    assert gain.least == pytest.approx(2.0 * 2 ** -(1.96 * (2 / 3) ** 0.5 / 2))


def test_copies_take_fewer_steps_and_a_report_can_be_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.engine.recipe.StepCosts", SetCosts)  # else the clock decides what is drafted
    report = tmp_path / "gains.json"
    given = ["ferrum-tiny", "--batch", "1", "2", "--pairs", "1", "--tokens", "40", "--out", str(report), "--add"]
    for text in ("copy", "noise"):
        measure(parsed([*given, "--workload", text]))
    gains = SpeculationReport.read(report).gains
    assert [(gain.workload, gain.sequences, gain.steps_off) for gain in gains] == [
        ("copy", 1, 39),
        ("copy", 2, 39),
        ("noise", 1, 39),
        ("noise", 2, 39),
    ]
    assert gains[0].accepted > 39 // 2 and gains[0].steps_on <= 39 // 2
    assert gains[2].accepted < 10
    with pytest.raises(ConfigError):
        measure(parsed([*given, "--workload", "chat", "--quantize", "int8"]))
