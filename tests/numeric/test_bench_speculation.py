"""`ferrum bench speculation`: recorded texts come out whatever the model says; what can be looked up saves steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ferrum.bench.speculation import Gain, SpeculationReport, scripts_of
from ferrum.bench.speculation_texts import RECORDED
from ferrum.cli.main import app, execute
from ferrum.core.errors import ConfigError
from fixed_costs import SetCosts


def test_there_are_ten_texts_from_all_copied_to_nothing_known() -> None:
    scripts = scripts_of([], 64)
    assert len(scripts) == len(RECORDED) == 10
    assert all(len(script.answer) == 64 < len(script.prompt) + 64 for script in scripts.values())
    with pytest.raises(ConfigError, match="copy-edits") as caught:
        scripts_of(["poem"], 64)
    assert caught.value.param == "workload"


def test_the_bound_is_below_the_mean_by_two_standard_errors() -> None:
    gain = Gain("copy", 1, 9, 9, 3, 6, 6, (1.0, 4.0, 2.0, 2.0))
    assert gain.speedup == pytest.approx(2.0)
    assert gain.least == pytest.approx(2.0 * 2 ** -(1.96 * (2 / 3) ** 0.5 / 2))
    assert Gain("copy", 1, 9, 9, 3, 6, 6, (2.0,)).least == 0.0


def test_the_command_measures_copies_and_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.engine.build.StepCosts", SetCosts)  # else the clock decides what is guessed
    report = tmp_path / "gains.json"
    asked = ["--workload", "copy", "--workload", "noise", "--batch", "1", "--batch", "2", "--pairs", "1"]
    result = CliRunner().invoke(
        app, ["bench", "speculation", "ferrum-tiny", *asked, "--tokens", "40", "--output", str(report)]
    )
    assert result.exit_code == 0, result.output
    gains = SpeculationReport.read(report).gains
    assert [(gain.workload, gain.sequences, gain.steps_off) for gain in gains] == [
        ("copy", 1, 39),
        ("copy", 2, 39),
        ("noise", 1, 39),
        ("noise", 2, 39),
    ]
    assert gains[0].accepted > 39 // 2 and gains[0].steps_on <= 39 // 2
    assert gains[2].accepted < 10


def test_a_report_is_added_to_text_by_text(tmp_path: Path) -> None:
    report = tmp_path / "gains.json"

    def measure(text: str, *options: str) -> Result:
        asked = ["--workload", text, "--batch", "1", "--pairs", "1", "--tokens", "4", "--output", str(report), "--add"]
        return CliRunner().invoke(app, ["bench", "speculation", "ferrum-tiny", *asked, *options])

    for text in ("copy", "noise", "copy"):
        assert measure(text).exit_code == 0
    assert [gain.workload for gain in SpeculationReport.read(report).gains] == ["noise", "copy"]
    other = measure("chat", "--quantize", "int8")
    assert isinstance(other.exception, ConfigError) and other.exception.param == "output"
    assert len(SpeculationReport.read(report).gains) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--batch", "4", "--max-batch-size", "2"], "batch"),
        (["--batch", "-1", "--batch", "1"], "--batch"),
        (["--max-sequence-length", "100"], "workload"),
        (["--kv-capacity", "100"], "kv_capacity"),
        (["--record", "records"], "--record"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["bench", "speculation", "ferrum-tiny", "--workload", "copy", "--tokens", "4", *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ferrum: ") and named in told and "copy x" not in told
