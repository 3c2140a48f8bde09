"""Conversations on the web page: send, stop, follow, edit, branch, regenerate, continue, tools and reasoning."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from page_kit import SIZES, ask, at_end, begin, finish, press, ready, settings

Open = Callable[..., Any]
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ]
)
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'


@pytest.fixture(params=SIZES)
def size(request: Any) -> dict[str, Any]:
    return {"viewport": SIZES[request.param]}


def test_enter_sends_and_shift_enter_breaks(open_page: Open, page_url: str, size: dict[str, Any]) -> None:
    page = ready(open_page(page_url, **size))
    page.focus("#prompt")
    page.keyboard.type("12 words")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("please")
    assert page.input_value("#prompt") == "12 words\nplease"
    page.keyboard.press("Enter")
    finish(page)
    assert page.input_value("#prompt") == ""
    assert page.locator(".turn.user .bubble").inner_text() == "12 words\nplease"
    assert page.locator(".turn.assistant .body").inner_text() == " ".join(f"word{number}" for number in range(12))


def test_enter_that_ends_the_input_of_a_character_sends_nothing(open_page: Open, page_url: str) -> None:
    page = ready(open_page(page_url))
    page.fill("#prompt", "にほん")
    event = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true})"
    page.locator("#prompt").evaluate(f"box => box.dispatchEvent({event})")
    assert page.locator(".turn").count() == 0


def test_markdown_is_shown_with_code_to_copy(open_page: Open, page_url: str, size: dict[str, Any]) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    page = open_page(page_url, permissions=permissions, **size)
    ask(page, "Show Markdown")
    body = page.locator(".turn.assistant .body")
    assert body.locator("strong").inner_text() == "bold" and body.locator("h2").inner_text() == "A heading"
    assert body.locator("ol > li").count() == 2 and body.locator("ol ul li").inner_text() == "nested"
    assert body.locator("td").nth(1).get_attribute("align") == "right"
    link = body.get_by_role("link")
    assert (link.get_attribute("rel"), link.get_attribute("title")) == (
        "noopener noreferrer",
        "https://example.org/docs",
    )
    assert body.locator(".hljs-keyword").count() > 1 and body.locator(".code-head span").inner_text() == "python"
    press(body, "Copy code")
    assert page.evaluate("navigator.clipboard.readText()") == "def answer() -> int:\n    return 42  # the answer"
    arabic = body.locator("p").last
    assert arabic.evaluate("element => getComputedStyle(element).direction") == "rtl"


def test_a_growing_answer_looks_like_a_whole_one(open_page: Open, page_url: str) -> None:
    """What was rendered block by block equals what a reload renders at once."""
    page = open_page(page_url)
    ask(page, "Show Markdown")
    grown = page.locator(".turn.assistant .body").inner_html()
    page.wait_for_timeout(1200)
    page.reload()
    page.wait_for_selector(".turn.assistant .hljs-keyword")
    assert page.locator(".turn.assistant .body").inner_html() == grown


def test_the_view_follows_every_answer(open_page: Open, page_url: str, size: dict[str, Any]) -> None:
    page = open_page(page_url, **size)
    for question in ("120 words", "121 words", "122 words", "60 paragraphs"):
        ask(page, question)
        assert at_end(page), question


def test_scrolling_up_stops_following_until_the_end(open_page: Open, page_url: str, size: dict[str, Any]) -> None:
    page = open_page(page_url, **size)
    ask(page, "60 paragraphs")
    begin(page, "200 paragraphs")
    page.wait_for_timeout(300)
    page.mouse.move(page.viewport_size["width"] / 2, 300)
    page.mouse.wheel(0, -700)
    page.wait_for_timeout(300)
    place = page.locator("#scroller").evaluate("element => element.scrollTop")
    page.wait_for_timeout(800)
    assert page.locator("#stop").is_visible(), "the answer still grows"
    assert page.locator("#scroller").evaluate("element => element.scrollTop") == place
    page.click("#to-end")
    finish(page)
    assert at_end(page)


def test_stop_keeps_the_text_and_continue_completes_it(open_page: Open, page_url: str) -> None:
    page = open_page(page_url)
    begin(page, "300 words")
    page.wait_for_timeout(400)
    page.click("#stop")
    finish(page)
    text = page.locator(".turn.assistant .body").inner_text()
    assert "You stopped this answer." in page.locator(".notice:visible").inner_text()
    whole = " ".join(f"word{number}" for number in range(300))
    assert whole.startswith(text.strip()) and len(text) < len(whole)
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector("#stop", state="visible")
    finish(page)
    assert page.locator(".turn.assistant .body").inner_text() == whole


def test_an_answer_at_the_limit_can_be_continued(open_page: Open, page_url: str, size: dict[str, Any]) -> None:
    page = open_page(page_url, **size)
    settings(page, max_tokens="90")
    text = ask(page, "30 words")
    whole = " ".join(f"word{number}" for number in range(30))
    assert len(text) < len(whole)
    for _ in range(4):
        if page.locator(".notice:visible").count() == 0:
            break
        assert "limit" in page.locator(".notice:visible").inner_text()
        page.get_by_role("button", name="Continue").click()
        finish(page)
        page.wait_for_timeout(100)
    assert page.locator(".turn.assistant .body").inner_text() == whole
    assert page.locator(".turn.assistant").count() == 1


def test_edits_and_regenerations_are_branches(open_page: Open, page_url: str, size: dict[str, Any]) -> None:
    page = open_page(page_url, **size)
    ask(page, "3 words")
    ask(page, "4 words")
    press(page.locator(".turn.user").first, "Edit")
    page.fill(".edit-box", "5 words")
    page.get_by_role("button", name="Send as a branch").click()
    finish(page)
    assert page.locator(".turn .bubble").all_inner_texts() == ["5 words"]
    assert page.locator(".turn.user .branch").inner_text() == "2 / 2"
    press(page.locator(".turn.user"), "Previous branch")
    assert page.locator(".turn .bubble").all_inner_texts() == ["3 words", "4 words"]
    press(page.locator(".turn.assistant").last, "Regenerate")
    finish(page)
    assert page.locator(".turn.assistant").last.locator(".branch").inner_text() == "2 / 2"
    press(page.locator(".turn.assistant").last, "Edit")
    page.fill(".edit-box", "word0 word1")
    page.get_by_role("button", name="Save as a branch").click()
    page.get_by_role("button", name="Continue").click()
    finish(page)
    assert page.locator(".turn.assistant .body").last.inner_text() == "word0 word1 word2 word3"
    assert page.locator(".turn.assistant").last.locator(".branch").inner_text() == "3 / 3"


def test_branches_stand_next_to_each_other(open_page: Open, page_url: str, size: dict[str, Any]) -> None:
    page = open_page(page_url, **size)
    ask(page, "3 words")
    press(page.locator(".turn.user"), "Edit")
    page.fill(".edit-box", "4 words")
    page.keyboard.press("Enter")
    finish(page)
    press(page.locator(".turn.user"), "Compare branches")
    columns = page.locator("#compare .column")
    assert [column.locator(".bubble").inner_text() for column in columns.all()] == ["3 words", "4 words"]
    boxes = [column.bounding_box() for column in columns.all()]
    assert (boxes[0]["y"] == boxes[1]["y"]) == (page.viewport_size["width"] > 1000)
    columns.first.get_by_role("button", name="Go on with this one").click()
    assert page.locator(".turn .bubble").all_inner_texts() == ["3 words"]


def test_turns_are_deleted(open_page: Open, page_url: str) -> None:
    page = open_page(page_url)
    ask(page, "3 words")
    ask(page, "4 words")
    press(page.locator(".turn.user").last, "Delete")
    page.locator("#ask").get_by_role("button", name="Delete").click()
    page.locator(".turn").nth(2).wait_for(state="detached")
    assert page.locator(".turn .bubble").all_inner_texts() == ["3 words"]


def test_reasoning_is_folded(open_page: Open, agent_url: str) -> None:
    page = open_page(agent_url)
    assert ask(page, "Hi") == "Hello."
    fold = page.locator(".reasoning")
    assert not fold.locator(".reasoning-text").is_visible()
    fold.locator("summary").click()
    assert "The user wants to know something. é世界" in fold.locator(".reasoning-text").inner_text()


def test_tool_calls_are_shown_and_get_results(open_page: Open, agent_url: str, size: dict[str, Any]) -> None:
    page = open_page(agent_url, **size)
    settings(page, tools=TOOLS)
    ask(page, "What is the weather in Paris?")
    card = page.locator(".card")
    assert "get_weather" in card.inner_text() and '"city": "Paris"' in card.inner_text()
    page.get_by_label("Result of get_weather").fill("sunny, 21 degrees")
    page.get_by_role("button", name="Send result").click()
    page.locator(".turn.assistant").nth(1).wait_for()
    finish(page)
    assert page.locator(".turn.tool pre").inner_text() == "sunny, 21 degrees"
    assert page.locator(".turn.assistant .body").last.inner_text() == "It is as the tool says: sunny, 21 degrees"


def test_a_schema_holds_and_a_wrong_one_is_named_at_once(open_page: Open, agent_url: str) -> None:
    page = ready(open_page(agent_url))
    page.click("#toggle-right")
    page.get_by_label("Answer in JSON of a schema").check()
    page.fill("#set-schema", '{"type": "object"')
    assert "Not valid" in page.locator("#fault-schema").inner_text()
    page.fill("#prompt", "Hi")
    page.focus("#prompt")
    page.keyboard.press("Enter")
    assert "JSON schema" in page.get_by_role("alert").inner_text() and page.locator(".turn").count() == 0
    page.fill("#set-schema", SCHEMA)
    assert page.locator("#fault-schema").inner_text() == ""
    assert "city" in json.loads(ask(page, "json please"))


def test_a_limit_within_the_reasoning_leads_to_the_answer(open_page: Open, agent_url: str) -> None:
    page = open_page(agent_url)
    settings(page, max_tokens="25")
    ask(page, "Hi")
    page.get_by_role("button", name="Answer now").click()
    finish(page)
    assert page.locator(".turn.assistant .body").inner_text() == "Hello."


def test_a_conversation_that_is_left_goes_on(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, viewport=SIZES["desktop"])
    begin(page, "200 words")
    page.click("#new")
    assert page.locator(".turn").count() == 0 and page.locator("#send").is_visible()
    ask(page, "3 words")
    page.locator("#conversations").get_by_role("button", name="200 words", exact=True).click()
    finish(page)
    assert page.locator(".turn.assistant .body").inner_text().endswith("word199")


def test_a_conversation_deleted_during_its_answer_stays_deleted(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, viewport=SIZES["desktop"])
    begin(page, "300 words")
    page.get_by_role("button", name="Delete 300 words").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    page.locator("#no-conversations").wait_for()
    page.wait_for_timeout(1500)
    assert page.locator("#conversations li").count() == 0 and page.locator(".turn").count() == 0
