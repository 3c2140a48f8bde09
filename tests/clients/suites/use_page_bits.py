"""What only this server can: probabilities of tokens and branches from them, the same bits again, receipts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from page_kit import SIZES, ask, finish, press, ready, settings

Open = Callable[..., Any]


@pytest.fixture(params=SIZES)
def page(request: Any, open_page: Open, url: str) -> Any:
    page = ready(open_page(url, viewport=SIZES[request.param]))
    settings(page, max_tokens="24", temperature="0", seed="5")
    return page


def test_probabilities_are_asked_for_only_when_wanted(page: Any) -> None:
    with page.expect_request("**/v1/chat/completions") as asked:
        text = ask(page, "read a file")
    assert "logprobs" not in asked.value.post_data_json
    press(page.locator(".turn.assistant"), "Probabilities")
    page.locator(".token").first.wait_for()
    assert "".join(page.locator(".token").all_inner_texts()).split()[-8:] == text.split()[-8:], "the same tokens again"
    press(page.locator(".turn.assistant"), "Probabilities")
    assert page.locator(".token").count() == 0


def test_a_token_shows_its_alternatives_and_goes_on_from_one(page: Any) -> None:
    page.get_by_role("button", name="Probabilities").click()
    ask(page, "read a file")
    page.hover(".token >> nth=3")
    panel = page.locator("#alternatives")
    rows = panel.get_by_role("button")
    assert rows.count() == 8 and panel.locator("[aria-current]").count() == 1
    parts = [float(text.removesuffix(" %").removeprefix("< ")) for text in panel.locator(".percent").all_inner_texts()]
    assert parts == sorted(parts, reverse=True) and 0 < sum(parts) <= 100.1
    assert rows.first.get_attribute("aria-current") == "true", "a greedy token is the likeliest one"
    before = "".join(page.locator(".token").all_inner_texts()[:3])
    other = panel.locator("button:enabled .token-text").first.inner_text().replace("␣", " ").replace("⏎", "\n")
    panel.locator("button:enabled").first.click()
    page.locator(".branch").filter(has_text="2 / 2").wait_for()
    finish(page)
    texts = page.locator(".token").all_inner_texts()
    assert "".join(texts).startswith(before + other) and len(texts) > 4


def test_alternatives_can_be_reached_by_keys(page: Any) -> None:
    page.get_by_role("button", name="Probabilities").click()
    ask(page, "read a file")
    page.focus(".tokens")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "shown" in page.locator(".token >> nth=2").get_attribute("class")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('#alternatives') !== null")
    page.keyboard.press("Escape")
    assert page.locator("#alternatives").is_hidden()
    assert page.evaluate("document.activeElement.className") == "tokens"


def test_an_answer_comes_out_again_bit_for_bit(page: Any) -> None:
    page.get_by_role("button", name="Probabilities").click()
    ask(page, "read a file")
    page.locator(".receipt summary").click()
    page.get_by_role("button", name="Run again").click()
    result = page.locator(".receipt [role=status]").filter(has_text="Same bits")
    result.wait_for()
    assert "24 tokens and their log-probabilities are equal" in result.inner_text()


def test_another_server_is_found_out(page: Any) -> None:
    """A reply that differs is not called the same."""
    ask(page, "read a file")
    body = 'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "other"}}]}\n\ndata: [DONE]\n\n'
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.locator(".receipt summary").click()
    page.get_by_role("button", name="Run again").click()
    page.locator(".differs").filter(has_text="Not the same").wait_for()


def test_a_recorded_answer_is_replayed_by_the_server(open_page: Open, recorded_url: str) -> None:
    page = open_page(recorded_url)
    settings(page, max_tokens="16")
    ask(page, "read a file")
    page.locator(".receipt summary").click()
    page.get_by_role("button", name="Run again").click()
    page.locator(".same").filter(has_text="the server replayed its record, 16 tokens").wait_for()


def test_the_receipt_names_seed_tokens_and_the_prefix_found(page: Any) -> None:
    ask(page, "read a file " * 40)
    ask(page, "go on")
    receipt = page.locator(".receipt").last
    receipt.locator("summary").click()
    rows = dict(zip(receipt.locator("dt").all_inner_texts(), receipt.locator("dd").all_inner_texts(), strict=True))
    assert rows["Seed"] == "5" and rows["Answer"] == "24 tokens" and "temperature 0" in rows["Settings"]
    assert int(rows["Prompt"].split(", ")[1].split(" ")[0]) > 16, "the first turn is found in the cache"
    assert rows["Fingerprint"].startswith("ferrum")


def test_a_continued_answer_and_a_branch_come_out_again(page: Any) -> None:
    page.get_by_role("button", name="Probabilities").click()
    ask(page, "read a file")
    page.get_by_role("button", name="Continue").click()
    finish(page)
    page.locator(".receipt summary").click()
    page.get_by_role("button", name="Run again").click()
    page.locator(".same").filter(has_text="Same bits").wait_for()
    page.hover(".token >> nth=5")
    page.locator("#alternatives button:enabled").first.click()
    page.locator(".branch").filter(has_text="2 / 2").wait_for()
    finish(page)
    page.mouse.move(1, 1)
    page.locator(".receipt summary").click()
    page.get_by_role("button", name="Run again").click()
    page.locator(".same").filter(has_text="Same bits").wait_for()
