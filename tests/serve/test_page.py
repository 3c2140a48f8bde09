"""Files of the web page: served without a key, with restrictive headers. tests/clients runs a browser."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from ferrum.server.common.web_ui import WEB_UI_PATHS
from serve_kit import Served, serving

SMALL = 40_000
"""Maximum size of the whole page, in bytes."""


@pytest.mark.parametrize("path", WEB_UI_PATHS)
def test_every_file_is_served_with_restrictive_headers(server: Served, path: str) -> None:
    response = server.http.get(path)
    assert response.status_code == 200 and response.content
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_page_refers_only_to_its_own_files(server: Served) -> None:
    texts = {path: server.http.get(path).text for path in WEB_UI_PATHS}
    named = set(re.findall(r'(?:href|src)="([^"]+)"', texts["/"]))
    named |= {f"page/{name}" for text in texts.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    assert {f"/{name}" for name in named} == set(WEB_UI_PATHS) - {"/"}
    assert not any(re.search(r"https?://(?!www\.w3\.org/2000/svg)", text) for text in texts.values())
    assert sum(map(len, texts.values())) < SMALL


def test_every_static_file_is_served() -> None:
    assert {path.name for path in (files("ferrum.server") / "static").iterdir()} == set(WEB_UI_PATHS.values())


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
