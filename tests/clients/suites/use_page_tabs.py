"""Tabs of one browser: what each of them writes, deletes and sets stays, whatever the others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from page_kit import DESKTOP, ask, begin, conversations, finish, press, ready, settings

Open = Callable[..., Any]
LONG = "500 words"


@pytest.fixture
def tabs(open_page: Open, page_url: str) -> tuple[Any, Any]:
    """Two tabs of a conversation with one answer."""
    page = open_page(page_url, viewport=DESKTOP)
    ask(page, "2 words")
    other = page.context.new_page()
    other.goto(page.url)
    ready(other).locator(".turn.assistant").wait_for()
    return page, other


def bubbles(page: Any) -> list[str]:
    return [str(text) for text in page.locator(".bubble").all_inner_texts()]


def send(page: Any, question: str) -> None:
    """Ask, and wait for the end of the answer."""
    page.fill("#prompt", question)
    page.focus("#prompt")
    page.keyboard.press("Enter")
    page.locator(".bubble").get_by_text(question, exact=True).wait_for()
    finish(page)


def branches(page: Any) -> list[str]:
    """Return the numbers of the branches of the shown turns, after a reload."""
    page.wait_for_timeout(1200)
    page.reload()
    ready(page).locator(".turn").first.wait_for()
    return [str(text) for text in page.locator(".branch").all_inner_texts()]


def delete(page: Any, title: str) -> None:
    page.get_by_role("button", name=f"Delete {title}").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()


def test_questions_of_two_tabs_stay_as_branches(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    begin(page, LONG)
    send(other, "3 words")
    finish(page)
    assert bubbles(page) == ["2 words", LONG] and bubbles(other) == ["2 words", "3 words"]
    for tab in tabs:
        assert branches(tab) == [tab.locator(".branch").inner_text()]
        texts = {bubbles(tab)[1]: tab.locator(".turn.assistant .body").last.inner_text()}
        tab.locator(".turn-bar button:enabled:is([aria-label='Previous branch'], [aria-label='Next branch'])").click()
        texts[bubbles(tab)[1]] = tab.locator(".turn.assistant .body").last.inner_text()
        assert texts["3 words"] == "word0 word1 word2" and texts[LONG].endswith("word499")


def test_edits_and_regenerations_of_two_tabs_stay_as_branches(tabs: tuple[Any, Any]) -> None:
    for number, tab in enumerate(tabs):
        press(tab.locator(".turn.user"), "Edit")
        tab.fill(".edit-box", f"{400 + number} words")
        tab.keyboard.press("Enter")
    for tab in tabs:
        finish(tab)
    for tab in tabs:
        press(tab.locator(".turn.assistant"), "Regenerate")
    for tab in tabs:
        finish(tab)
    questions, answers = branches(tabs[0])
    assert questions.endswith("/ 3") and answers.endswith("/ 2")


def test_an_answer_is_continued_in_one_tab_while_another_asks(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    settings(page, max_tokens="100")
    ask(page, LONG)
    settings(page, max_tokens="")
    page.get_by_role("button", name="Continue").click()
    other.locator(".notice:visible").wait_for(state="detached")
    send(other, "3 words")
    finish(page)
    assert page.locator(".turn.assistant .body").last.inner_text().endswith("word499")
    assert branches(page)[0].endswith("/ 2")


def test_an_answer_grows_in_every_tab_and_is_not_taken_for_a_broken_one(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    begin(page, "1500 words")
    third = page.context.new_page()
    third.goto(page.url)
    for tab in (other, third):
        tab.locator(".turn.assistant").nth(1).get_by_text("word9").wait_for()
        assert tab.locator(".notice:visible").count() == 0
        assert tab.locator(".turn.assistant").nth(1).get_by_role("button", name="Regenerate").count() == 0
    page.click("#stop")
    for tab in (other, third):
        tab.locator(".notice").filter(has_text="You stopped this answer").wait_for()


def test_a_closed_tab_leaves_what_came_of_its_answer(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    begin(page, "1500 words")
    other.locator(".turn.assistant").nth(1).get_by_text("word9").wait_for()
    page.close()
    other.locator(".notice").filter(has_text="The connection broke").wait_for()
    other.get_by_role("button", name="Continue").click()
    other.wait_for_selector("#stop", state="visible")
    finish(other)
    assert other.locator(".turn.assistant .body").nth(1).inner_text().endswith("word1499")


def test_a_conversation_deleted_in_another_tab_stays_deleted(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    begin(page, LONG)
    other.locator(".turn.user").nth(1).wait_for()
    delete(other, "2 words")
    page.locator("#no-conversations").wait_for()
    assert page.locator(".turn").count() == 0 and page.locator("#stop").is_hidden()
    page.wait_for_timeout(1500)
    for tab in tabs:
        tab.reload()
        assert conversations(ready(tab)) == []


def test_a_turn_deleted_in_another_tab_stays_deleted(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    begin(page, LONG)
    press(other.locator(".turn.user").nth(1), "Delete")
    other.locator("#ask").get_by_role("button", name="Delete").click()
    page.locator(".turn.user").nth(1).wait_for(state="detached")
    page.wait_for_timeout(1500)
    for tab in tabs:
        tab.reload()
        ready(tab).locator(".turn").first.wait_for()
        assert bubbles(tab) == ["2 words"]


def test_a_title_given_in_another_tab_stays(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    begin(page, LONG)
    other.get_by_role("button", name="Rename 2 words").click()
    other.get_by_label("Title").fill("Sky")
    other.keyboard.press("Enter")
    page.locator("#conversations [aria-label=Sky]").wait_for()
    finish(page)
    page.wait_for_timeout(1200)
    page.reload()
    assert conversations(ready(page)) == ["Sky"]


def test_settings_of_two_tabs_are_kept_together(tabs: tuple[Any, Any]) -> None:
    page, other = tabs
    page.click("#toggle-right")
    other.click("#toggle-right")
    page.fill("#set-temperature", "0.5")
    other.wait_for_function("document.querySelector('#set-temperature').value === '0.5'")
    other.fill("#set-top_k", "7")
    page.wait_for_function("document.querySelector('#set-top_k').value === '7'")
    page.reload()
    ready(page).click("#toggle-right")
    assert [page.input_value(f"#set-{name}") for name in ("temperature", "top_k")] == ["0.5", "7"]


OLD = """
const root = { id: "root", parent: null, role: "root", children: ["q"], chosen: "q" };
const turns = {
  root,
  q: { id: "q", parent: "root", role: "user", content: "Old question", children: ["a", "b"], chosen: "a", created: 5 },
  a: { id: "a", parent: "q", role: "assistant", content: "Old answer", children: [], chosen: null, created: 6 },
  b: { id: "b", parent: "q", role: "assistant", content: "Other answer", children: [], chosen: null, created: 7 },
};
for (const id of ["a", "b"]) {
  Object.assign(turns[id], { reasoning: "", calls: [], parts: [], pieces: null, finish: "stop" });
}
const request = indexedDB.open("ferrum", 1);
request.onupgradeneeded = () => {
  const store = request.result.createObjectStore("conversations", { keyPath: "id" });
  store.put({ id: "old", title: "Old", mode: "chat", created: 5, updated: 7, turns });
};
request.onsuccess = () => request.result.close();
request.onerror = (event) => event.preventDefault(); // after a reload it is there in its new form
"""
"""A conversation as the page stored it when each was one record."""


def test_conversations_of_older_pages_are_kept(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, viewport=DESKTOP, script=OLD)
    for _ in range(2):
        assert conversations(ready(page)) == ["Old"]
        page.locator("#conversations .open").click()
        assert page.locator(".turn.assistant .body").inner_text() == "Old answer"
        assert page.locator(".branch").inner_text() == "1 / 2"
        page.reload()
