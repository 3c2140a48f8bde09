"""Images on the web page: chosen, pasted, dropped, removed, sent unchanged, shown whole, and refused in time."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_kit import SIZES, ask, begin, finish, press, ready

Open = Callable[..., Any]
GIVE = """([kind, files]) => {
  const data = new DataTransfer();
  for (const [name, type, text] of files) {
    data.items.add(new File([Uint8Array.from(atob(text), (each) => each.charCodeAt(0))], name, { type }));
  }
  const common = { bubbles: true, cancelable: true };
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, ...common })
    : new DragEvent(kind, { dataTransfer: data, ...common });
  document.getElementById("prompt").dispatchEvent(event);
}"""
HIDDEN = "document.getElementById('attach').hidden"


def grey(width: int, height: int) -> bytes:
    """Return a black PNG of a bit for each pixel."""
    rows = zlib.compress(bytes((1 + -(-width // 8)) * height), 9)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def file(name: str, content: bytes, kind: str = "image/png") -> dict[str, Any]:
    return {"name": name, "mimeType": kind, "buffer": content}


def give(page: Any, kind: str, *files: dict[str, Any]) -> None:
    """Paste or drop files."""
    listed = [[each["name"], each["mimeType"], b64encode(each["buffer"]).decode()] for each in files]
    page.evaluate(GIVE, [kind, listed])


def url(content: bytes) -> str:
    return "data:image/png;base64," + b64encode(content).decode()


def attached(page: Any) -> list[str]:
    return [str(each.get_attribute("aria-label")) for each in page.locator("#attached .shot").all()]


def wait(page: Any, count: int) -> None:
    page.locator("#attached .shot").nth(count - 1).wait_for()
    ready(page)
    assert len(attached(page)) == count


def warned(page: Any, reason: str) -> None:
    """Wait for a message of the page."""
    page.locator("#alert", has_text=reason).wait_for()
    ready(page)


@pytest.fixture(params=SIZES)
def size(request: Any) -> dict[str, Any]:
    return {"viewport": SIZES[request.param]}


def test_images_are_chosen_pasted_dropped_and_sent_unchanged(
    open_page: Open, seeing_url: str, picture: bytes, size: dict[str, Any]
) -> None:
    page, bodies = ready(open_page(seeing_url, **size)), list[Any]()
    page.on("request", lambda request: request.method == "POST" and bodies.append(request.post_data_json))
    assert not page.evaluate(HIDDEN)
    small = grey(9, 5)
    page.set_input_files("#attach-file", [file("one.png", picture), file("gone.png", small)])
    wait(page, 2)
    give(page, "paste", file("two.png", small))
    wait(page, 3)
    give(page, "drop", file("three.png", picture))
    wait(page, 4)
    press(page.locator("#attached"), "Remove gone.png")
    assert attached(page) == ["Show one.png whole", "Show two.png whole", "Show three.png whole"]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Remove two.png"
    ask(page, "Which?")
    assert page.locator("#attached").is_hidden()
    (message,) = bodies[0]["messages"]
    shown = [{"type": "image_url", "image_url": {"url": url(each)}} for each in (picture, small, picture)]
    assert message["content"] == [*shown, {"type": "text", "text": "Which?"}]
    ask(page, "And now?")
    assert bodies[1]["messages"][0] == message and bodies[1]["messages"][2]["content"] == "And now?"


def test_images_stay_in_the_history_and_are_shown_whole(
    open_page: Open, seeing_url: str, picture: bytes, size: dict[str, Any], tmp_path: Path
) -> None:
    page = ready(open_page(seeing_url, **size))
    page.set_input_files("#attach-file", file("one.png", picture))
    wait(page, 1)
    page.focus("#prompt")
    page.keyboard.press("Enter")
    page.locator(".turn.assistant").wait_for()
    finish(page)
    assert page.locator(".turn.user .bubble").count() == 0, "an image needs no text"
    page.wait_for_timeout(1200)
    page.reload()
    shot = page.locator(".turn.user .shot")
    shot.wait_for()
    assert shot.locator("img").get_attribute("src") == url(picture)
    shot.click()
    whole = page.locator("#whole img")
    assert whole.get_attribute("src") == url(picture) and whole.get_attribute("alt") == "one.png"
    assert "one.png, 61 x 37" in page.locator("#whole h2").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#whole").is_visible() and shot.evaluate("each => each === document.activeElement")
    press(page.locator(".turn.user"), "Edit")
    page.fill(".edit-box", "Again?")
    page.keyboard.press("Enter")
    page.locator(".turn.user .branch").wait_for()
    finish(page)
    assert page.locator(".turn.user .shot").count() == 1, "an edited question keeps its images"
    press(page.locator(".turn.user"), "Compare branches")
    assert page.locator("#compare .shot").count() == 2
    page.keyboard.press("Escape")
    if page.locator("#left").is_hidden():
        page.click("#toggle-left")
    assert page.locator("#conversations .open").inner_text() == "one.png"
    with page.expect_download() as download:
        page.click("#export")
    exported = tmp_path / "exported.json"
    download.value.save_as(exported)
    page.get_by_role("button", name="Delete one.png").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    page.locator("#conversations li").wait_for(state="detached")
    page.set_input_files("#import-file", exported)
    if page.locator("#left").is_hidden():
        page.click("#toggle-left")
    page.locator("#conversations .open").click()
    page.locator(".turn.user .shot").wait_for()


def test_what_the_server_would_refuse_is_named_before_it_is_sent(
    open_page: Open, seeing_url: str, picture: bytes
) -> None:
    page = ready(open_page(seeing_url))
    for given, reason in (
        (file("notes.txt", b"text", "text/plain"), '"notes.txt" is no image that the model reads. Use PNG, JPEG'),
        (file("drawn.svg", b"<svg/>", "image/svg+xml"), "is no image that the model reads"),
        (file("cut.png", picture[:40]), '"cut.png" is damaged, or it is no PNG file'),
        (file("large.png", grey(7680, 4328)), "has 7680 x 4328 pixels, more than 33 megapixels"),
    ):
        give(page, "drop", given)
        warned(page, reason)
        assert attached(page) == []
    page.set_input_files("#attach-file", [file(f"{number}.png", grey(3, 3)) for number in range(33)])
    warned(page, "33 images, more than the 32 of a request")
    assert len(attached(page)) == 32


def test_the_images_before_count(open_page: Open, seeing_url: str) -> None:
    page = ready(open_page(seeing_url))
    page.set_input_files("#attach-file", file("first.png", grey(7680, 4000)))
    wait(page, 1)
    assert ask(page, "Large?")
    page.set_input_files("#attach-file", [file(f"{number}.png", grey(7680, 4000)) for number in range(2)])
    warned(page, "92 megapixels, more than the 66 of a request")
    assert attached(page) == ["Show 0.png whole"]


def test_a_model_without_eyes_offers_nothing(open_page: Open, page_url: str, picture: bytes) -> None:
    page = ready(open_page(page_url))
    assert page.evaluate(HIDDEN)
    give(page, "paste", file("one.png", picture))
    warned(page, "does not read images")
    begin(page, "3 words")
    finish(page)
