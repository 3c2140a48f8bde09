"""The page in a real browser: by pointer, by keyboard, on a phone, in light and dark."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]
PROMPT = "def read_lines(path):\n"
DONE = "#progress:has-text('done')"


def complete(page: Any, prompt: str = PROMPT, **options: str) -> None:
    """Ask for a completion, and wait for its end."""
    page.wait_for_selector("#send:not([disabled])")
    page.get_by_label("Complete").check()
    if options:
        page.get_by_text("Options").click()
    for name, value in options.items():
        page.fill(f"#{name}", value)
    page.fill("#prompt", prompt)
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector(DONE)


def test_a_completion_shows_every_token(open_page: Open, url: str) -> None:
    page = open_page(url)
    complete(page, max_tokens="24", temperature="0")
    assert page.locator(".given").text_content() == PROMPT
    assert page.locator(".token").count() == 24
    assert "24 out" in page.locator("#progress").text_content()


def test_probabilities_are_shown_on_hover_and_by_the_arrow_keys(open_page: Open, url: str) -> None:
    page = open_page(url)
    complete(page, max_tokens="24", temperature="0")
    page.hover(".token >> nth=3")
    panel = page.locator("#token")
    rows = panel.locator("tr")
    assert rows.count() == 5 and panel.locator("tr.chosen").count() == 1
    parts = [float(text.split()[-2]) for text in rows.all_inner_texts()]
    assert parts == sorted(parts, reverse=True) and 0 < sum(parts) <= 100.1
    assert rows.first.get_attribute("class") == "chosen", "a greedy token is the likeliest one"
    page.mouse.move(0, 0)
    panel.wait_for(state="hidden")
    page.focus("#output")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "shown" in page.locator(".token >> nth=2").get_attribute("class") and panel.is_visible()
    page.keyboard.press("Escape")
    panel.wait_for(state="hidden")


def test_a_chat_goes_on(open_page: Open, url: str) -> None:
    page = open_page(url)
    page.wait_for_selector("#send:not([disabled])")
    assert page.get_by_label("Chat").is_checked(), "the model has a template"
    for turns in (1, 2):
        page.fill("#prompt", "read a file")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(DONE)
        assert page.locator(".turn[data-role=you]").count() == turns
        page.locator("#progress").evaluate("element => (element.textContent = '')")
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#output").text_content() == ""


def test_it_can_be_used_by_keyboard_alone(open_page: Open, url: str) -> None:
    page = open_page(url)
    page.wait_for_selector("#send:not([disabled])")
    seen = []
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert seen[:5] == ["output", "chat", "prompt", "send", "clear"] and "SUMMARY" in seen
    page.focus("#prompt")
    page.keyboard.type("import os")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(DONE)
    assert page.evaluate("document.activeElement.id") == "send"


def test_everything_has_a_name(open_page: Open, url: str) -> None:
    page = open_page(url)
    page.wait_for_selector("#send:not([disabled])")
    page.get_by_text("Options").click()
    for name in ("Prompt", "Max tokens", "Temperature", "Top p", "Seed"):
        assert page.get_by_label(name, exact=True).is_visible()
    for name in ("Send", "Stop", "Clear"):
        assert page.get_by_role("button", name=name).is_visible()
    assert page.get_by_role("heading", level=1).text_content() == "ferrum"
    assert page.get_by_role("img").count() == 5, "a chart is a picture with a name"
    assert all("seconds" in name or "no reading" in name for name in names(page))
    assert page.evaluate("document.documentElement.lang") == "en"


def names(page: Any) -> list[str]:
    return [chart.get_attribute("aria-label") for chart in page.get_by_role("img").all()]


def begin_long(page: Any, mode: str, prompt: str) -> None:
    """Ask for many tokens, and wait for the first ones."""
    page.wait_for_selector("#send:not([disabled])")
    page.get_by_text("Options").click()
    page.fill("#max_tokens", "900")
    page.get_by_label(mode).check()
    page.fill("#prompt", prompt)
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector(".token >> nth=2")


STOP_EARLY = """() => new MutationObserver((_, observer) => {
    if (document.querySelectorAll(".token").length > 2) {
        observer.disconnect();
        document.getElementById("stop").click();
    }
}).observe(document.body, {childList: true, subtree: true})"""
"""Press the button as soon as there are tokens: from out here all may have come before it is found."""


def test_stop_stops(open_page: Open, url: str) -> None:
    page = open_page(url)
    page.evaluate(STOP_EARLY)
    begin_long(page, "Complete", PROMPT)
    page.wait_for_selector("#progress:has-text('stopped')")
    assert page.locator(".token").count() < 900


def test_what_is_cleared_while_it_is_written_is_no_part_of_what_follows(open_page: Open, url: str) -> None:
    page = open_page(url)
    begin_long(page, "Chat", "hi")
    page.get_by_role("button", name="Clear").click()
    page.wait_for_selector("#send:not([disabled])")
    page.fill("#prompt", "anew")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Send").click()
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "anew"}]
    page.get_by_role("button", name="Stop").click()


def test_charts_follow_the_server(open_page: Open, url: str) -> None:
    page = open_page(url)
    complete(page, max_tokens="64")
    page.locator("li").filter(has_text=re.compile("generated [1-9]")).wait_for()
    assert page.locator("figure path[d*=L]").count() > 4, "every chart has its lines"
    page.locator("figure").filter(has_text="To the first token").get_by_text(re.compile("mean [1-9]")).wait_for()


def test_error_is_shown(browser: Any, busy_url: str) -> None:
    """The console is not empty here: browsers write every refused request there."""
    page = browser.new_page()
    page.goto(f"{busy_url}/")
    page.wait_for_selector("#send:not([disabled])")
    page.get_by_text("Options").click()
    page.fill("#max_tokens", "99999")
    page.fill("#prompt", "hi")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("alert").filter(has_text="context").wait_for()
    assert page.locator("#send").is_enabled()
    page.close()


def test_with_keys_on_it_asks_for_one_first(open_page: Open, keyed_url: str) -> None:
    page = open_page(keyed_url)
    field = page.get_by_label("API key")
    assert field.is_visible() and page.evaluate("document.activeElement.id") == "key"
    assert page.locator("#send").is_disabled()
    field.fill("secret")
    page.keyboard.press("Enter")
    complete(page)
    assert page.locator(".token").count() > 0


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("light", (1280, 900), "light"), ("dark", (1280, 900), "dark"), ("phone", (390, 844), "light")],
)
def test_it_fits_and_can_be_read(open_page: Open, url: str, name: str, size: tuple[int, int], scheme: str) -> None:
    page = open_page(url, viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    complete(page, max_tokens="96", seed="3")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is scrolled sideways"
    low = page.evaluate(CONTRASTS)
    assert not low, f"text with too little contrast: {low}"
    small = page.evaluate(SMALL)
    assert not small, f"too small for a finger: {small}"
    page.locator(".token", has_text=re.compile(r"\w")).nth(4).hover()
    page.screenshot(path=Path(os.environ["SHOTS"]) / f"{name}.png", full_page=True)


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b]
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = rgb(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("h1, h2, p, label, legend, summary, button:enabled, li, figcaption, .given")]
    .filter((element) => element.offsetParent && element.textContent.trim())
    .map((element) => {
      const [one, other] = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
      return [element.textContent.trim(), (one + 0.05) / (other + 0.05)];
    })
    .filter(([, ratio]) => ratio < 4.5);
}"""
"""Texts whose contrast is below 4.5 to 1 (WCAG 2.2, 1.4.3)."""

SMALL = """() => [...document.querySelectorAll("button, summary, .modes label")]
  .filter((element) => element.offsetParent && element.getBoundingClientRect().height < 44)
  .map((element) => element.textContent)"""
"""Controls lower than 44 pixels (WCAG 2.2, 2.5.5)."""
