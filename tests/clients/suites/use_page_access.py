"""The page for everyone: axe's rules in each state, keys alone, all widths."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_kit import DESKTOP, PHONE, SIZES, ask, finish, press, ready, settings

Open = Callable[..., Any]
AXE = (Path(__file__).parents[1] / "node/node_modules/axe-core/axe.min.js").read_text()
RULES = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => html + failureSummary).join(" ")}`);
}"""
TOOLS = '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]'


@pytest.fixture(params=["light", "dark"])
def scheme(request: Any) -> str:
    return str(request.param)


@pytest.fixture(params=SIZES)
def size(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def check(scheme: str, size: str) -> Callable[[Any, str], None]:
    """Check a state of a page, and keep a picture of it."""

    def checked(page: Any, name: str) -> None:
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "scrolled sideways"
        page.screenshot(path=Path(os.environ["SHOTS"]) / f"{name}-{size}-{scheme}.png")
        page.evaluate(AXE)
        assert page.evaluate(RULES) == [], name

    return checked


@pytest.fixture
def shown(open_page: Open, scheme: str, size: str) -> Open:
    """Open a page of that size and scheme."""
    return lambda url: ready(open_page(url, viewport=SIZES[size], color_scheme=scheme))


def test_axe_finds_nothing_serious_in_a_conversation(
    shown: Open, check: Callable[[Any, str], None], page_url: str
) -> None:
    page = shown(page_url)
    check(page, "empty")
    ask(page, "Show Markdown")
    check(page, "markdown")
    page.locator("#scroller").evaluate("element => (element.scrollTop = 0)")
    check(page, "top")
    press(page.locator(".turn.user"), "Edit")
    check(page, "edit")
    page.fill(".edit-box", "5 words")
    page.keyboard.press("Enter")
    page.locator(".branch").first.wait_for()
    finish(page)
    page.locator(".receipt summary").click()
    check(page, "branches")
    press(page.locator(".turn.user"), "Compare branches")
    check(page, "compare")
    page.keyboard.press("Escape")
    press(page.locator(".turn.user"), "Delete")
    check(page, "dialog")


def test_axe_finds_nothing_serious_in_panels(shown: Open, check: Callable[[Any, str], None], page_url: str) -> None:
    page = shown(page_url)
    settings(page, max_tokens="40")
    ask(page, "100 words")
    check(page, "limit")
    page.click("#toggle-right")
    page.fill("#set-schema", "{")
    check(page, "settings")
    page.get_by_role("tab", name="Charts").click()
    page.wait_for_timeout(2200)
    check(page, "charts")
    page.locator("#right .close").click()
    if page.locator("#left").is_hidden():
        page.click("#toggle-left")
    check(page, "conversations")


def test_axe_finds_nothing_serious_in_tokens_and_calls(
    shown: Open, check: Callable[[Any, str], None], url: str, agent_url: str
) -> None:
    page = shown(url)
    settings(page, max_tokens="40", seed="3")
    page.get_by_role("button", name="Probabilities").click()
    ask(page, "read a file")
    page.hover(".token >> nth=3")
    check(page, "probabilities")
    page = shown(agent_url)
    settings(page, tools=TOOLS)
    ask(page, "Look")
    page.locator(".reasoning summary").click()
    check(page, "call")


def test_axe_finds_nothing_serious_in_images(
    shown: Open, check: Callable[[Any, str], None], seeing_url: str, picture: bytes
) -> None:
    page = shown(seeing_url)
    given = {"name": "picture.png", "mimeType": "image/png", "buffer": picture}
    page.set_input_files("#attach-file", [given, given])
    page.locator("#attached .shot").nth(1).wait_for()
    check(page, "attached")
    ask(page, "Which?")
    check(page, "images")
    page.locator(".turn.user .shot").first.click()
    check(page, "whole")


@pytest.mark.parametrize("width", [320, 768, 1024, 3840])
def test_every_width_fits(open_page: Open, page_url: str, width: int) -> None:
    page = ready(open_page(page_url, viewport={"width": width, "height": 900}))
    ask(page, "Show Markdown")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    box = page.locator("#composer").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] + box["height"] <= 900
    page.screenshot(path=Path(os.environ["SHOTS"]) / f"width-{width}.png")


def test_controls_are_large_enough_for_fingers(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, viewport=PHONE, has_touch=True, is_mobile=True)
    ask(page, "3 words")
    small = """() => [...document.querySelectorAll("button")]
      .filter((each) => each.offsetParent && each.getBoundingClientRect().height < 44)
      .map((each) => each.outerHTML)"""
    assert page.evaluate(small) == []


def test_it_can_be_used_by_keys_alone(open_page: Open, page_url: str) -> None:
    page = ready(open_page(page_url, viewport=DESKTOP))
    assert page.evaluate("document.activeElement.id") == "prompt", "one can write at once"
    page.keyboard.type("3 words")
    page.keyboard.press("Enter")
    page.locator(".turn.assistant").wait_for()
    finish(page)
    assert page.evaluate("document.activeElement.id") == "prompt"
    seen = []
    for _ in range(14):
        page.keyboard.press("Shift+Tab")
        seen.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.tagName")
        )
    assert {"Copy", "Edit", "Regenerate", "Probabilities", "Delete", "SUMMARY", "Conversation"} <= set(seen)
    page.locator(".turn.user").get_by_role("button", name="Edit").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type("4 words")
    page.keyboard.press("Enter")
    page.locator(".turn.user .branch").wait_for()
    finish(page)
    page.locator(".turn.user").get_by_role("button", name="Previous branch").focus()
    page.keyboard.press("Enter")
    assert page.locator(".turn.assistant .body").inner_text() == "word0 word1 word2"
    assert page.evaluate("document.activeElement.closest('.turn.user') !== null"), "the focus stays at the arrows"


def test_panels_take_and_return_the_focus(open_page: Open, page_url: str) -> None:
    page = ready(open_page(page_url, viewport=PHONE))
    for panel in ("left", "right"):
        page.focus(f"#toggle-{panel}")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.classList.contains('close')")
        assert page.evaluate("document.getElementById('main').inert")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == f"toggle-{panel}"
        assert not page.evaluate("document.getElementById('main').inert")


def test_a_chosen_scheme_wins_over_the_system(open_page: Open, page_url: str) -> None:
    page = ready(open_page(page_url, color_scheme="light"))
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#toggle-right")
    page.get_by_label("Colours").select_option("dark")
    dark = page.evaluate(ground)
    page.reload()
    ready(page)
    assert page.evaluate(ground) == dark != light
