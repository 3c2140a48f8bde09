"""The script that counts changed answers finds a planted reordering of one sum, and its page shows its report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import determinism_page
from determinism import compare
from determinism_engines import ENGINES
from determinism_ferrum import answer
from determinism_job import Facts, Job, draft_of
from determinism_requests import COUNT, messages
from ferrum.quant import dense
from source_tree import REPOSITORY

PROMPTS = [[(7919 * (at + 1) * (number + 3)) % 4000 + 1 for at in range(9 + number)] for number in range(3)]
ALONE = Job("ferrum-tiny", PROMPTS, 3, settings={"kernels": "reference"})


def test_answers_in_a_batch_are_those_alone_until_a_reordering_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "product", dense.product)  # undoes the plant
    alone, batch = answer(ALONE, Facts()), answer(replace(ALONE, batch=3), Facts())
    assert compare(alone, batch) == {"tokens": 0, "logprobs": 0, "largest": 0.0}
    planted = replace(ALONE, batch=3, settings={**ALONE.settings, "planted": True})
    found = compare(alone, answer(planted, Facts()))
    assert found["logprobs"] > 0 and 0 < found["largest"] < 0.1


def test_other_tokens_and_other_logprobs_are_counted_by_answer() -> None:
    before = [([1, 2, 3], [-1.0, -2.0, -3.0])] * 4
    after = [
        before[0],
        ([1, 2, 3], [-1.0, -2.5, -3.0]),
        ([1, 9, 3], [-1.0, -0.1, -0.2]),
        ([1, 2, 3], [-1.0, -2.0, -3.25]),
    ]
    assert compare(before, after) == {"tokens": 1, "logprobs": 3, "largest": 0.5}


def test_lookup_proposes_what_followed_the_last_occurrence() -> None:
    assert draft_of([5, 6, 7, 8, 5, 6]) == [7, 8, 5, 6]
    assert draft_of([5, 6, 7]) == []


def test_requests_are_different_conversations_with_code_tools_and_long_prompts() -> None:
    texts = [json.dumps(messages(index)) for index in range(COUNT)]
    assert len(set(texts)) == COUNT
    assert sum("```python" in text for text in texts) == 60 and sum("<tool_call>" in text for text in texts) == 40
    assert sum(len(text) > 2500 for text in texts) == 5


def test_peers_have_pinned_packages_and_environments_apart_from_ferrums() -> None:
    for name, engine in ENGINES.items():
        assert (REPOSITORY / "bench" / engine.program).is_file()
        assert (name == "ferrum") == (engine.environment is None)
        assert engine.environment is None or "==" in engine.packages[0]


def test_page_and_picture_are_those_of_the_report() -> None:
    report = json.loads(determinism_page.RESULT.read_text())
    for path in (determinism_page.PAGE, determinism_page.README):
        text = path.read_text()
        assert determinism_page.with_tables(text, report) == text, "run python bench/determinism_page.py"
    assert determinism_page.drawn(report) == determinism_page.PICTURE.read_text()


def test_ferrum_changes_no_bit_in_the_report() -> None:
    report = json.loads(determinism_page.RESULT.read_text())
    ours = determinism_page.rows_of(report, "ferrum")
    assert ours and all(row["logprobs"] == row["tokens"] == 0 for row in ours)
