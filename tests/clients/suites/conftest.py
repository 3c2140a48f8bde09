"""Where the servers are, and a browser. These suites run in the clients' environment (see ../test_clients.py)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """A server of the built-in model with a chat template."""
    return os.environ["REAL_URL"]


@pytest.fixture(scope="session")
def keyed_url() -> str:
    """The same, for the key `secret`."""
    return os.environ["KEYED_URL"]


@pytest.fixture(scope="session")
def recorded_url() -> str:
    """A server of the built-in model that records requests."""
    return os.environ["RECORDED_URL"]


@pytest.fixture(scope="session")
def busy_url() -> str:
    """A slow server that takes one request at a time."""
    return os.environ["BUSY_URL"]


@pytest.fixture(scope="session")
def page_url() -> str:
    """A server of an assistant with Qwen3's template that gives long, marked up and hostile answers."""
    return os.environ["PAGE_URL"]


@pytest.fixture(scope="session")
def seeing_url() -> str:
    """A server of a tiny random model that reads images."""
    return os.environ["SEEING_URL"]


@pytest.fixture(scope="session")
def picture() -> bytes:
    """A PNG file."""
    return Path(os.environ["IMAGE"]).read_bytes()


@pytest.fixture(scope="session")
def agent_url() -> str:
    """A server of an assistant that thinks and calls tools."""
    return os.environ["AGENT_URL"]


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    # Debian's Chromium or Chrome where there is one, else the one that playwright has installed.
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: object) -> Iterator[Callable[..., object]]:
    """Open a page whose console stays empty and which sends requests to its server only.

    Browsers write every refused request to the console: with `refused=True` those are no fault.
    """
    faults: list[str] = []
    contexts = []

    def open_at(url: str, *, refused: bool = False, script: str = "", **options: object) -> object:
        context = browser.new_context(**options)  # type: ignore[attr-defined]
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(script)
        page.on(
            "console",
            lambda message: (
                (refused and "Failed to load resource" in message.text) or faults.append(f"console: {message.text}")
            ),
        )
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: request.url.startswith((url, f"blob:{url}")) or faults.append(f"asked {request.url}"),
        )
        page.goto(f"{url}/")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert not faults
