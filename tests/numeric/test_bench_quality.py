"""`ferrum bench quality` on the built-in model: its figures against independent ones, and what it refuses."""

from __future__ import annotations

import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from ferrum.bench.quality import QualityReport, Tally
from ferrum.bench.quality_plot import drawn, labels
from ferrum.bench.quality_run import DEFAULT_TEXT, SPAN, config_of, reference_of, side_by_side
from ferrum.bench.report import Origin
from ferrum.cli.main import execute
from ferrum.client.llm import LLM
from ferrum.core.errors import ConfigError
from ferrum.sources.hub import BUILT_IN
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import load_tokenizer
from text_samples import write
from tiny import directory_of, find
from tiny_with_tokenizer import letters, spoken

EXACT = {"dtype": "float32", "kv_dtype": "float32"}
ORIGIN = Origin(ferrum="0", numerics_id="n", started="2026-01-01T00:00:00+00:00", processor="p")


def quiet(model: str) -> nullcontext[None]:
    """Show no progress."""
    return nullcontext()


def text_of(spans: float) -> str:
    """Return the beginning of the default text with about that many spans in the built-in model's tokens."""
    return DEFAULT_TEXT.read_text()[: int(spans * SPAN * 2.8)]


def report_on(text: str, *judged: dict[str, Any], reference: str = BUILT_IN) -> QualityReport:
    configs = [config_of(BUILT_IN, options) for options in judged]
    with side_by_side(text, reference_of(reference, {}), configs, quiet) as trial:
        return trial.run("text", ORIGIN, lambda _: None)


@pytest.fixture(scope="module")
def report() -> QualityReport:
    return report_on(text_of(3), EXACT, {"quantize": "int8"}, {**EXACT, "kv_dtype": "int8"})


def test_a_model_does_not_diverge_from_itself(report: QualityReport) -> None:
    quality = report.rows[0].quality
    assert (quality.divergence, quality.divergence_p99, quality.same_choice) == (0.0, 0.0, 1.0)
    assert quality.perplexity == report.perplexity


def test_formats_diverge_and_sizes_are_those_of_their_bytes(report: QualityReport) -> None:
    exact, int8, kv_int8 = report.rows
    assert [row.subject.bits for row in report.rows] == [32.0, 8.5, 32.0]
    assert exact.subject.weight_bytes == report.reference.weight_bytes == int8.subject.weight_bytes * 32 / 8.5
    for row in (int8, kv_int8):
        assert 0 < row.quality.divergence < row.quality.divergence_p99 < 0.1
        assert 0.9 < row.quality.same_choice < 1
    assert [row.subject.kv_format for row in report.rows] == ["float32", "bfloat16", "int8"]


def test_the_perplexity_is_that_of_scored_prompts(report: QualityReport) -> None:
    with LLM(BUILT_IN, **EXACT) as llm:
        assert llm.client.tokenizer is not None
        tokens = llm.client.tokenizer.encode(text_of(3))
        spans = [tokens[begin : begin + SPAN] for begin in range(0, len(tokens), SPAN)]
        scores = [score for found in llm.score(spans, use_tqdm=False) for score in found if score is not None]
    assert report.tokens == len(tokens) and len(spans) > 2
    assert report.perplexity == pytest.approx(math.exp(-np.mean([each.logprob for each in scores])), rel=1e-6)


def test_the_figures_equal_torchs() -> None:
    """150 rows: more than are compared at a time."""
    draws = np.random.default_rng(0)
    tokens = draws.integers(0, 50, 150).tolist()
    expected, found = (draws.normal(0, 3, (150, 50)).astype(np.float32) for _ in range(2))
    tally = Tally()
    tally.add(tokens, expected, found)
    quality = tally.quality()
    p, q = (torch.tensor(each).double().log_softmax(-1) for each in (expected, found))
    each = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    assert quality.divergence == pytest.approx(each.mean().item())
    assert quality.divergence_error == pytest.approx(each.std(correction=0).item() / 150**0.5)
    assert quality.divergence_p99 == pytest.approx(each.quantile(0.99).item())
    assert quality.same_choice == pytest.approx((p.argmax(-1) == q.argmax(-1)).double().mean().item())
    loss = torch.nn.functional.nll_loss(q[:-1], torch.tensor(tokens[1:]))
    assert quality.perplexity == pytest.approx(loss.exp().item())


def test_spans_begin_as_a_text_and_fit_the_shorter_context(tmp_path: Path) -> None:
    """The tokenizer puts a begin token before every text, so each span is one."""
    shutil.copytree(directory_of(find("llama3")), tmp_path, dirs_exist_ok=True)
    write(tmp_path, letters(), add_bos_token=True)
    name, text = str(tmp_path), text_of(1)
    short = config_of(name, {"max_sequence_length": 100})
    with side_by_side(text, reference_of(name, {}), [short], quiet) as trial:
        tokenizer = load_tokenizer(DirectoryFiles(tmp_path))
        assert tokenizer is not None
        begin, *tokens = tokenizer.encode(text)
        assert begin == tokenizer.bos_token_id
        assert [len(span) for span in trial.spans[:-1]] == [100] * (len(trial.spans) - 1)
        assert all(span[0] == begin for span in trial.spans)
        assert [token for span in trial.spans for token in span[1:]] == tokens


@pytest.mark.parametrize("speaks", [True, False])
def test_a_model_of_another_vocabulary_is_refused(speaks: bool) -> None:
    other = str(spoken("llama3") if speaks else directory_of(find("llama3")))
    reason = "different tokens" if speaks else "has 4,096 tokens, that of .* 131"
    with pytest.raises(ConfigError, match=reason) as refused:
        report_on(text_of(2), EXACT, reference=other)
    assert refused.value.param == "against"


def test_a_packed_directory_needs_the_model_it_was_made_from(tmp_path: Path) -> None:
    packed = str(tmp_path / "packed")
    assert execute(["quantize", BUILT_IN, packed, "--quantize", "q8_0"]) == 0
    config = config_of(packed, {})
    with (
        pytest.raises(ConfigError, match="made from") as refused,
        side_by_side(text_of(2), reference_of(packed, {}), [config], quiet),
    ):
        pass
    assert refused.value.param == "against"
    with side_by_side(text_of(2), reference_of(BUILT_IN, {}), [config], quiet) as trial:
        assert trial.run("text", ORIGIN, lambda _: None).rows[0].subject.bits == 8.5


def test_the_plot_has_a_point_and_a_label_for_each_row(report: QualityReport) -> None:
    plot = ElementTree.fromstring(drawn(report))
    tag = "{http://www.w3.org/2000/svg}"
    texts = [each.text for each in plot.iter(f"{tag}text")]
    assert len([*plot.iter(f"{tag}circle")]) == len(report.rows)
    assert len(set(labels(report))) == len(report.rows) and set(labels(report)) <= set(texts)
    width, height = float(plot.attrib["width"]), float(plot.attrib["height"])
    for point in plot.iter(f"{tag}circle"):
        assert 0 < float(point.attrib["cx"]) < width and 0 < float(point.attrib["cy"]) < height


def test_the_command_prints_a_row_for_each_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, output, plot = (tmp_path / name for name in ("text.txt", "report.json", "plot.svg"))
    text.write_text(text_of(2))
    options = ["--quantize", "none,int8", "--kv-dtype", "float32,int8"]
    files = ["--text", str(text), "--output", str(output), "--plot", str(plot)]
    assert execute(["bench", "quality", BUILT_IN, *options, *files]) == 0
    found = QualityReport.read(output)
    assert len(found.rows) == 4 and found.text == "text.txt"
    shown = capsys.readouterr().out
    for label, row in zip(labels(found), found.rows, strict=True):
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{label} "))
        assert f"{row.quality.divergence:.5f}" in line and f"{row.quality.same_choice:.1%}" in line
    assert plot.read_text() == drawn(found)
