"""The list of conversations in the browser's storage: reload, search, rename, delete, export, import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_kit import SIZES, ask, begin, conversations, ready

Open = Callable[..., Any]


@pytest.fixture(params=SIZES)
def page(request: Any, open_page: Open, page_url: str) -> Any:
    return open_page(page_url, viewport=SIZES[request.param])


def two(page: Any) -> None:
    """Make two conversations."""
    ask(page, "3 words")
    page.click("#new")
    ask(page, "4 words")


def test_a_reload_restores_the_conversation(page: Any) -> None:
    two(page)
    page.reload()
    assert page.locator(".turn.assistant .body").inner_text() == "word0 word1 word2 word3"
    assert conversations(page) == ["4 words", "3 words"]
    page.locator("#conversations .open").nth(1).click()
    assert page.locator(".turn.assistant .body").inner_text() == "word0 word1 word2"


def test_a_reload_during_an_answer_keeps_what_came(page: Any) -> None:
    begin(page, "900 words")
    page.wait_for_timeout(1500)
    page.reload()
    page.wait_for_selector(".notice:visible")
    assert page.locator(".turn.assistant .body").inner_text().startswith("word0 word1")
    assert page.get_by_role("button", name="Continue").is_visible()


def test_search_finds_titles_and_texts(page: Any) -> None:
    two(page)
    assert len(conversations(page)) == 2
    page.fill("#search", "WORD3")
    assert conversations(page) == ["4 words"]
    page.fill("#search", "nothing")
    assert conversations(page) == [] and page.locator("#no-conversations").is_visible()


def test_rename_and_delete(page: Any) -> None:
    two(page)
    assert len(conversations(page)) == 2
    page.locator("#conversations li").nth(1).hover()
    page.get_by_role("button", name="Rename 3 words").click()
    page.get_by_label("Title").fill("Sky")
    page.keyboard.press("Enter")
    page.wait_for_selector("#conversations [aria-label=Sky]")
    page.get_by_role("button", name="Delete 4 words").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    page.locator("#conversations li").nth(1).wait_for(state="detached")
    page.reload()
    ready(page)
    assert conversations(page) == ["Sky"]
    assert page.locator(".turn").count() == 0


def test_what_is_exported_can_be_imported(page: Any, open_page: Open, page_url: str, tmp_path: Path) -> None:
    two(page)
    conversations(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export").click()
    path = tmp_path / "saved.json"
    saved.value.save_as(path)
    assert [len(each["turns"]) for each in json.loads(path.read_text())["conversations"]] == [3, 3]
    other = ready(open_page(page_url))
    assert conversations(other) == []
    for _ in range(2):  # what is here already is not added again
        other.set_input_files("#import-file", path)
        other.wait_for_selector("#conversations li")
    assert conversations(other) == ["4 words", "3 words"]
    other.locator("#conversations .open").first.click()
    assert other.locator(".turn.assistant .body").inner_text() == "word0 word1 word2 word3"


@pytest.mark.parametrize(
    "text", ["no JSON", "{}", '{"format": "ferrum-conversations", "conversations": [{"id": "a", "turns": {}}]}']
)
def test_a_damaged_file_is_refused(page: Any, tmp_path: Path, text: str) -> None:
    ready(page)
    (tmp_path / "damaged.json").write_text(text)
    page.set_input_files("#import-file", tmp_path / "damaged.json")
    page.get_by_role("alert").filter(has_text="damaged.json cannot be imported").wait_for()
    assert conversations(page) == []


def test_two_tabs_show_the_same(page: Any) -> None:
    ask(page, "3 words")
    other = page.context.new_page()
    other.goto(page.url)
    ready(other).locator(".turn.assistant").wait_for()
    ask(other, "4 words")
    page.locator(".turn.user").nth(1).wait_for()
    ask(page, "5 words")
    assert page.locator(".bubble").all_inner_texts() == ["3 words", "4 words", "5 words"]
    other.locator(".turn.user").nth(2).wait_for()
