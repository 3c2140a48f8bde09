"""Reports of `ferrum bench`: their summary, their file, and the comparison of two."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from bench_kit import cell_of, report_of, sample
from ferrum.bench.report import LEAST, Cell, Report, compare, median_error
from ferrum.cli.tables import BAR, bar
from ferrum.core.errors import RequestError


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_the_ratio_is_the_median_of_each_samples_ratio():
    """The machine has two speeds: every sample reaches 0.8 of the limit of its minute."""
    found = Cell.of("w", [sample(80, 100), sample(40, 50), sample(82, 102.5)])
    assert found.ratio == pytest.approx(0.8)
    assert found.noise == pytest.approx(0.0, abs=1e-12)


def test_the_error_of_a_median_is_that_of_statistics():
    """For normal values sqrt(pi / 2) sigma / sqrt(n)."""
    values = NormalDist(10.0, 2.0).samples(20_001, seed=1)
    assert median_error(values) == pytest.approx(1.2533 * 2.0 / 20_001**0.5, rel=0.03)
    assert median_error([3.0]) is None


def full_report() -> Report:
    return report_of(Cell.of("w", [sample(80)]), cell_of("v", 0.5))


def test_a_report_survives_its_file_and_is_strict_json(tmp_path):
    path = tmp_path / "report.json"
    full_report().write(path)
    json.loads(path.read_text(), parse_constant=refuse_constant)
    assert Report.read(path) == full_report()


def changed(**changes: Any) -> str:
    """Return a report as text with changes to its first cell."""
    values = full_report().to_dict()
    values["cells"][0].update(changes)
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (json.dumps({**full_report().to_dict(), "version": 1}), "version"),
        (json.dumps({**full_report().to_dict(), "extra": 1}), "extra"),
        (changed(ratio=math.nan), "ratio"),
        (changed(ratio=0.0), "ratio"),
        ("[" * 100_000, "Report"),
    ],
    ids=["version", "extra", "nan", "zero", "depth"],
)
def test_an_invalid_report_is_refused_with_field_and_file(tmp_path, text, field):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=path.name) as caught:
        Report.read(path)
    assert caught.value.param == field


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_directories_and_missing_files_are_refused(path):
    with pytest.raises(RequestError, match=path) as caught:
        Report.read(Path(path))
    assert caught.value.param == "report"


def changes(before: float, after: float, noise: float | None = 0.001) -> tuple[float | None, bool]:
    (change,) = compare(report_of(cell_of("w", before)), report_of(cell_of("w", after, noise)))
    return change.relative, change.regressed


def test_only_a_fall_beyond_the_noise_is_a_regression():
    assert changes(0.80, 0.80 * (1 - LEAST / 2))[1] is False
    assert changes(0.80, 0.80 * (1 - 2 * LEAST)) == (pytest.approx(-2 * LEAST), True)
    assert changes(0.80, 0.95)[1] is False
    assert changes(0.80, 0.72, noise=0.04)[1] is False
    assert changes(0.80, 0.40, noise=None)[1] is False, "a single sample has unknown noise"


@pytest.mark.parametrize("count", [2, 4, 7])
def test_equal_samples_are_seldom_a_regression(count):
    normal = NormalDist(80.0, 4.0)
    reports = [
        report_of(Cell.of("w", [sample(value) for value in normal.samples(count, seed=seed)])) for seed in range(1000)
    ]
    pairs = zip(reports[::2], reports[1::2], strict=True)
    assert sum(compare(old, new)[0].regressed for old, new in pairs) <= 8, "of 500"


def test_a_missing_workload_is_a_regression_and_a_new_one_is_not():
    old, new = report_of(cell_of("a", 0.8), cell_of("b", 0.8)), report_of(cell_of("a", 0.8), cell_of("c", 0.1))
    assert {change.workload: change.regressed for change in compare(old, new)} == {"a": False, "b": True, "c": False}


@pytest.mark.parametrize("setting", [{"model": "other"}, {"formats": ("q8_0",)}, {"threads": 1}])
def test_different_settings_are_not_compared(setting):
    with pytest.raises(RequestError) as caught:
        compare(report_of(), report_of(**setting))
    assert caught.value.param == next(iter(setting))


def test_a_bar_ends_at_the_limit():
    assert bar(1.0) == bar(1.3) == "█" * BAR
    assert bar(0.0) == "" and bar(0.5) == "█" * (BAR // 2)
