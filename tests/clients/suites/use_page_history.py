"""The list of conversations in the browser's storage: reload, search, rename, delete, export, import."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_kit import SIZES, ask, begin, conversations, finish, ready

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


def export(page: Any, path: Path) -> list[dict[str, Any]]:
    """Save the conversations of a page as a file, and return them."""
    conversations(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export").click()
    saved.value.save_as(path)
    found: list[dict[str, Any]] = json.loads(path.read_text())["conversations"]
    return found


def import_file(page: Any, path: Path) -> None:
    page.evaluate("document.querySelector('#announcer').textContent = ''")
    page.set_input_files("#import-file", path)
    page.locator("#announcer").get_by_text("conversations added").wait_for(state="attached")


def test_what_is_exported_can_be_imported(page: Any, open_page: Open, page_url: str, tmp_path: Path) -> None:
    two(page)
    path = tmp_path / "saved.json"
    assert [len(each["turns"]) for each in export(page, path)] == [3, 3]
    other = ready(open_page(page_url))
    assert conversations(other) == []
    for _ in range(2):  # what is here already is not added again
        import_file(other, path)
        assert conversations(other) == ["4 words", "3 words"]
    other.locator("#conversations .open").first.click()
    assert other.locator(".turn.assistant .body").inner_text() == "word0 word1 word2 word3"


def test_an_import_of_the_own_export_changes_nothing(open_page: Open, page_url: str, tmp_path: Path) -> None:
    """Every kind of turn is in it; names may come in another order, and an older file adds its state once."""
    page = open_page(page_url, viewport=SIZES["desktop"])
    two(page)
    page.click("#odds")
    page.get_by_role("button", name="Regenerate").click()
    finish(page)
    first = export(page, tmp_path / "first.json")
    for again in (False, True):
        if again:
            page.reload()
            ready(page)
        import_file(page, tmp_path / "first.json")
        assert export(page, tmp_path / "second.json") == first
    whole = json.loads((tmp_path / "first.json").read_text())
    (tmp_path / "sorted.json").write_text(json.dumps(whole, sort_keys=True))
    import_file(page, tmp_path / "sorted.json")
    assert len(conversations(page)) == 2
    ask(page, "5 words")
    for _ in range(2):
        import_file(page, tmp_path / "first.json")
        assert len(conversations(page)) == 3, "as it was, next to what it has become"


WRONG = (None, 5, -1.5, "x", True, [], [1], {}, {"a": 1}, "constructor", "__proto__", [["x"]], [{}], [None])
"""Values of which most fields take few."""


def with_wrong_values(whole: Any, place: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield copies of a conversation in which one value is of another type, each of its values and types once."""
    value = whole
    for key in place:
        value = value[key]
    for wrong in WRONG:
        copy = json.loads(json.dumps(whole))
        inner = copy
        for key in place[:-1]:
            inner = inner[key]
        if place:
            inner[place[-1]] = wrong
            yield copy
    for key in value if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ():
        yield from with_wrong_values(whole, (*place, key))


SOUND_OR_NOT = """async (conversations) => {
  const { canonical, checked } = await import("/page/checks.js");
  const faults = [];
  const kept = [];
  for (const each of conversations) {
    let whole;
    try {
      whole = checked(each);
    } catch (error) {
      if (error.constructor !== Error) faults.push(`${error}: ${JSON.stringify(each)}`);
      continue;
    }
    if (canonical(whole) !== canonical(JSON.parse(JSON.stringify(whole)))) faults.push(JSON.stringify(each));
    kept.push(whole);
  }
  return [faults, kept];
}"""


def test_no_value_of_a_file_stops_the_page(open_page: Open, page_url: str, tmp_path: Path) -> None:
    """Each value of an export is replaced by ones of other types: the file is refused, or what is imported is shown."""
    page = open_page(page_url, viewport=SIZES["desktop"])
    page.click("#odds")
    ready(page)
    ask(page, "1 words")
    [whole] = export(page, tmp_path / "saved.json")
    faults, kept = page.evaluate(SOUND_OR_NOT, list(with_wrong_values(whole)))
    assert faults == []
    shapes = {json.dumps({**each, "id": ""}, sort_keys=True): each for each in kept}
    saved = [{**each, "id": f"c{number}"} for number, each in enumerate(shapes.values())]
    assert len(saved) > 50
    (tmp_path / "wrong.json").write_text(json.dumps({"format": "ferrum-conversations", "conversations": saved}))
    import_file(page, tmp_path / "wrong.json")
    rows = page.locator("#conversations .open")
    for number in range(rows.count()):
        rows.nth(number).click()
        page.locator(".turn .receipt summary, .turn .bubble").first.click()
    page.reload()
    assert len(conversations(ready(page))) == rows.count()


def test_back_and_forward_lead_through_the_conversations(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, viewport=SIZES["desktop"])
    two(page)

    def shown() -> list[str]:
        return [str(text) for text in page.locator(".bubble").all_inner_texts()]

    page.go_back()
    page.locator(".bubble").get_by_text("3 words").wait_for()
    page.go_forward()
    page.locator(".bubble").get_by_text("4 words").wait_for()
    page.click("#new")
    assert shown() == []
    page.go_back()
    page.locator(".bubble").get_by_text("4 words").wait_for()
    page.go_forward()
    page.locator(".bubble").wait_for(state="detached")
    page.locator("#conversations .open").nth(1).click()
    page.keyboard.press("Tab")
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt" and shown() == ["3 words"]
    page.reload()
    page.locator(".bubble").get_by_text("3 words").wait_for()
    page.get_by_role("button", name="Delete 3 words").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    page.locator(".bubble").wait_for(state="detached")
    page.go_back()
    page.locator("#conversations .current").wait_for(state="detached")
    assert shown() == []


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
