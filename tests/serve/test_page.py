"""Files of the web page: served without a key, with restrictive headers. tests/clients runs a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_kit import agent
from ferrum.server.common.web_ui import STATIC, WEB_UI_PATHS
from serve_kit import Served, chat_parts, serving

SMALL = 400_000
"""Maximum size of the whole page with its libraries, in bytes."""

LONGEST_FILE = 400
"""Maximum lines of a file of the page. Libraries are as their authors built them."""

OWN = sorted(name for name in WEB_UI_PATHS.values() if not name.startswith("vendor/"))


@pytest.mark.parametrize("path", WEB_UI_PATHS)
def test_every_file_is_served_with_restrictive_headers(server: Served, path: str) -> None:
    response = server.http.get(path)
    assert response.status_code == 200 and response.content
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_page_refers_only_to_its_own_files(server: Served) -> None:
    named = set()
    for name in OWN:
        text = server.http.get("/" if name == "index.html" else f"/page/{name}").text
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)\w", text), name
        named |= set(re.findall(r'(?:href|src)="(page/[^"]+)"', text))
        named |= {f"page/{found}" for found in re.findall(r'(?:from|import|import\() ?"\./([^"]+)"', text)}
    languages = re.findall(r'"(\w+)"', _between(server.http.get("/page/code.js").text, "LANGUAGES = [", "];"))
    named |= {f"page/vendor/languages/{each}.js" for each in languages}
    licenses = {path for path in WEB_UI_PATHS if path.startswith("/page/vendor/LICENSE.")}
    assert {f"/{name}" for name in named} == set(WEB_UI_PATHS) - {"/"} - licenses


def _between(text: str, begin: str, end: str) -> str:
    return text.split(begin)[1].split(end)[0]


def test_page_is_small(server: Served) -> None:
    assert sum(len(server.http.get(path).content) for path in WEB_UI_PATHS) < SMALL


@pytest.mark.parametrize("name", OWN)
def test_no_file_of_the_page_is_long(name: str) -> None:
    lines = STATIC.joinpath(name).read_text().splitlines()
    assert len(lines) < LONGEST_FILE


def test_no_style_or_script_is_inline(server: Served) -> None:
    """The policy forbids them, so that the browser would write an error to its console."""
    page = server.http.get("/").text
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert all('src="page/' in script for script in re.findall(r"<script[^>]*>", page))


@pytest.mark.parametrize(("library", "license"), [("marked", "MIT"), ("purify", "Apache"), ("highlight", "BSD")])
def test_every_library_has_its_license(library: str, license: str) -> None:
    vendor = STATIC.joinpath("vendor")
    assert license in vendor.joinpath(f"{library}.js").read_text()[:1000]
    [text] = [path for path in vendor.iterdir() if path.name.startswith("LICENSE.") and library in path.name]
    assert len(text.read_text()) > 1000


def test_page_needs_no_key_but_knows_that_requests_do(tmp_path: Path, server: Served) -> None:
    assert 'data-keys="none"' in server.http.get("/").text
    (tmp_path / "keys").write_text("secret\n")
    with serving(api_key_file=str(tmp_path / "keys")) as keyed:
        assert 'data-keys="needed"' in keyed.http.get("/").text
        assert all(keyed.http.get(path).status_code == 200 for path in WEB_UI_PATHS)
        assert keyed.http.get("/v1/config").status_code == 401


def test_page_is_not_in_the_openapi_document(server: Served) -> None:
    assert not set(WEB_UI_PATHS) & set(server.http.get("/openapi.json").json()["paths"])
    assert server.http.post("/").status_code == 405
    assert server.http.get("/page/app.py").status_code == 404
    assert server.http.get("/v1/config").json()["model"]["chat_template"] is True


def test_config_says_what_the_page_offers(server: Served) -> None:
    """Qwen3's template reads `enable_thinking` and tools; the template of `server` reads neither."""
    model = server.http.get("/v1/config").json()["model"]
    assert (model["reasoning"], model["tools"], model["recorded"]) == ([], False, False)
    with agent() as other:
        model = other.http.get("/v1/config").json()["model"]
        assert (model["reasoning"], model["tools"]) == (["enable_thinking"], True)
    with serving(chat_parts(sampling={"temperature": 0.6, "top_k": 20})) as recommending:
        assert recommending.http.get("/v1/config").json()["sampling"] == {"temperature": 0.6, "top_k": 20}
