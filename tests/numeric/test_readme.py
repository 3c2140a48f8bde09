"""What the README claims of sizes and speeds holds. Its programs run in tests/process/test_documents.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ferrum
import performance_page
import readme_sizes
import readme_table
from ferrum.bench.quality import QualityReport
from ferrum.bench.quality_plot import drawn

README = Path(__file__).parents[2] / "README.md"
RESULTS = README.parent / "bench" / "results"
PACKAGE = Path(ferrum.__file__).parent


def test_first_table_comes_within_one_screen() -> None:
    lines = README.read_text().splitlines()
    assert next(number for number, line in enumerate(lines) if line.startswith("|")) < 40


def test_tables_of_the_performance_page_are_those_of_the_reports() -> None:
    text = performance_page.PAGE.read_text()
    assert performance_page.with_tables(text) == text, "run python bench/performance_page.py"
    assert set(performance_page.TABLES) == {name for _, name, _ in performance_page.SECTION.findall(text)}


def test_the_table_of_speeds_is_that_of_the_report() -> None:
    text, result = README.read_text(), README.parent / readme_table.RESULT
    if result.exists():
        assert readme_table.with_table(text, json.loads(result.read_text())) == text
    else:
        shown = text.partition(readme_table.BEGIN)[2].partition(readme_table.END)[0]
        assert "Not measured yet." in shown and "?" in shown


def test_the_table_of_sizes_is_that_of_the_plans() -> None:
    sizes = {name: readme_sizes.planned_bytes(file) for name, file in readme_sizes.MODELS.items()}
    text = README.read_text()
    assert readme_sizes.with_table(text, readme_sizes.table_of(sizes)) == text, "run tests/support/readme_sizes.py"


def test_the_answer_is_that_of_the_demo() -> None:
    question = re.search(r"^QUESTION := (.+)$", (README.parent / "Makefile").read_text(), re.MULTILINE)
    assert question is not None and f'echo "{question[1]}" | .venv/bin/ferrum chat' in README.read_text()


def test_start_figure_is_that_of_the_report() -> None:
    report = json.loads((RESULTS / "cold_start.json").read_text())
    total = report["cases"]["text"]["median"]["total"]
    assert f"first token {total:.2f} s after" in README.read_text()


def test_chart_is_drawn_from_the_report() -> None:
    report = QualityReport.read(RESULTS / "quality_formats.json")
    assert drawn(report) == (README.parent / "docs" / "images" / "quality.svg").read_text()


def test_package_fits_into_a_small_wheel() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 25e6


def test_built_in_model_is_within_its_bounds() -> None:
    weights = PACKAGE / "assets/ferrum-tiny/model.safetensors"
    assert weights.stat().st_size <= 16e6
    with ferrum.load_executor("ferrum-tiny") as executor:
        assert executor.info.num_parameters <= 8e6
        assert executor.info.family == "qwen3"


def test_training_record_shows_convergence_and_compression() -> None:
    """The training script writes the record. Its claims about the end are checked against its own curve."""
    record = json.loads((PACKAGE / "assets/ferrum-tiny/training.json").read_text())
    curve = {point["step"]: point["held_out_bits_per_byte"] for point in record["curve"]}
    last = max(curve)
    at_80 = max(step for step in curve if step <= 0.8 * last)
    assert at_80 >= 0.7 * last, "the curve has a point near four fifths"
    assert (curve[at_80] - curve[last]) / curve[at_80] < 0.01
    assert record["held_out"]["bits_per_byte"] < record["held_out"]["xz_9e_bits_per_byte"]
