"""Hostile answers: nothing of them runs, loads or leads to a script, wherever the page shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from page_kit import ask, press

Open = Callable[..., Any]
COUNT = 229
STEP = 46

FAULTS = """() => {
  const allowed = new Set("A ARTICLE B BLOCKQUOTE BR BUTTON CODE DEL DETAILS DIV EM FORM H1 H2 H3 H4 H5 H6 HR I KBD LI"
    .concat(" MARK OL P PATH PRE S SMALL SPAN STRONG SUB SUMMARY SECTION SUP SVG TABLE TBODY TD TH THEAD TR U UL")
    .concat(" DL DT DD")
    .split(" "));
  const faults = [];
  for (const element of document.querySelectorAll("#transcript *, #compare .columns *, #conversations *")) {
    if (!allowed.has(element.tagName.toUpperCase())) faults.push(element.outerHTML);
    for (const { name, value } of element.attributes) {
      if (/^on|^style$|^src|^srcdoc|^formaction|^data$/i.test(name)) faults.push(`${name}=${value}`);
      if (/^(href|xlink:href|action)$/i.test(name) && !/^(https?:\\/\\/|mailto:)/i.test(value)) faults.push(value);
    }
  }
  if (window.hacked) faults.push("a script ran");
  return faults;
}"""


@pytest.mark.parametrize("first", range(0, COUNT, STEP))
def test_hostile_answers_do_nothing(open_page: Open, page_url: str, first: int) -> None:
    page = open_page(page_url)
    ask(page, f"hostile answers {first} to {first + STEP}")
    assert page.locator(".turn.assistant .body").inner_text()
    for element in page.locator(".turn.assistant .body :is(a, b, code, td)").all()[:40]:
        element.dispatch_event("mouseover")
    assert page.evaluate(FAULTS) == []


def test_hostile_texts_in_every_other_place_do_nothing(open_page: Open, page_url: str, tmp_path: Any) -> None:
    """Questions, titles, reasoning, calls and results of an imported conversation are texts."""
    vector = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>[x](javascript:window.hacked=1)"
    call = {"id": vector, "type": "function", "name": vector, "arguments": vector}
    turns = {
        "root": {"id": "root", "role": "root", "parent": None, "children": ["q"], "chosen": "q"},
        "q": {"role": "user", "content": vector, "parent": "root", "children": ["a", "b"], "chosen": "a"},
        "a": {"role": "assistant", "content": vector, "parent": "q", "children": ["t"], "chosen": "t"},
        "t": {"role": "tool", "content": vector, "name": vector, "call": vector, "parent": "a", "children": []},
        "b": {"role": "assistant", "content": vector, "parent": "q", "children": [], "calls": []},
    }
    answer = {"reasoning": vector, "calls": [call], "pieces": None, "parts": [], "finish": "stop"}
    whole = {name: {**answer, "chosen": None, **turn, "id": name} for name, turn in turns.items()}
    conversation = {"id": "hostile", "title": vector, "turns": whole, "updated": 1}
    saved = {"format": "ferrum-conversations", "conversations": [conversation]}
    (tmp_path / "hostile.json").write_text(json.dumps(saved))
    page = open_page(page_url, viewport={"width": 1440, "height": 900})
    page.set_input_files("#import-file", tmp_path / "hostile.json")
    page.locator("#conversations .open").click()
    page.locator(".turn.tool").wait_for()
    assert page.evaluate(FAULTS) == []
    press(page.locator(".turn.assistant").first, "Compare branches")
    page.locator("#compare .column").nth(1).wait_for()
    assert page.evaluate(FAULTS) == []
