"""What tests do on the web page: wait until it is ready, ask, and find turns."""

from __future__ import annotations

from typing import Any, Final

DESKTOP: Final = {"width": 1440, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
SIZES: Final = {"desktop": DESKTOP, "phone": PHONE}


def ready(page: Any) -> Any:
    """Wait until the page can send."""
    page.wait_for_selector("#send:not([disabled])")
    return page


def begin(page: Any, question: str) -> None:
    """Send a question, and wait for the first text of its answer."""
    ready(page).fill("#prompt", question)
    turns = page.locator(".turn.assistant").count()
    page.keyboard.press("Enter")
    page.locator(".turn.assistant").nth(turns).wait_for()


def finish(page: Any) -> None:
    """Wait for the end of the answer."""
    page.wait_for_selector("#stop", state="hidden", timeout=60_000)


def ask(page: Any, question: str) -> str:
    """Ask and return the whole answer."""
    begin(page, question)
    finish(page)
    return str(page.locator(".turn.assistant .body").last.inner_text())


def press(turn: Any, name: str) -> None:
    turn.get_by_role("button", name=name, exact=True).click()


def settings(page: Any, **values: str) -> None:
    """Fill in settings."""
    ready(page)
    if page.locator("#right").is_hidden():
        page.click("#toggle-right")
    for name, value in values.items():
        page.fill(f"#set-{name}", value)
    page.locator("#right .close").click()


def conversations(page: Any) -> list[str]:
    """Return the titles in the list of conversations."""
    if page.locator("#left").is_hidden():
        page.click("#toggle-left")
    return [str(text) for text in page.locator("#conversations .open").all_inner_texts()]


def distance(page: Any) -> float:
    """Return how far the view is from the end."""
    script = "element => element.scrollHeight - element.scrollTop - element.clientHeight"
    return float(page.locator("#scroller").evaluate(script))


def at_end(page: Any) -> bool:
    """Return whether the view reaches the end; a busy machine paints late."""
    for _ in range(30):
        if distance(page) < 4:
            return True
        page.wait_for_timeout(100)
    return False
