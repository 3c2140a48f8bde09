"""The page's files: served to everybody, asking nobody else for anything. A browser tries them in tests/clients."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from ferrum.server.web_ui import PAGE_PATHS
from serve_kit import Served, serving

SMALL = 40_000
"""Bytes of the whole page."""


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_every_file_is_served_and_held_to_its_promise(server: Served, path: str) -> None:
    response = server.http.get(path)
    assert response.status_code == 200 and response.content
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_page_refers_to_its_own_files_alone(server: Served) -> None:
    texts = {path: server.http.get(path).text for path in PAGE_PATHS}
    named = set(re.findall(r'(?:href|src)="([^"]+)"', texts["/"]))
    named |= {f"page/{name}" for text in texts.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    assert {f"/{name}" for name in named} == set(PAGE_PATHS) - {"/"}
    assert not any(re.search(r"https?://(?!www\.w3\.org/2000/svg)", text) for text in texts.values())
    assert sum(map(len, texts.values())) < SMALL


def test_no_file_lies_there_unserved() -> None:
    assert {path.name for path in (files("ferrum.server") / "static").iterdir()} == set(PAGE_PATHS.values())


def test_it_needs_no_key_but_says_that_the_rest_does(tmp_path: Path, server: Served) -> None:
    assert 'data-keys="none"' in server.http.get("/").text
    (tmp_path / "keys").write_text("secret\n")
    with serving(api_key_file=str(tmp_path / "keys")) as keyed:
        assert 'data-keys="needed"' in keyed.http.get("/").text
        assert all(keyed.http.get(path).status_code == 200 for path in PAGE_PATHS)
        assert keyed.http.get("/v1/config").status_code == 401


def test_it_is_no_part_of_the_api(server: Served) -> None:
    assert not set(PAGE_PATHS) & set(server.http.get("/openapi.json").json()["paths"])
    assert server.http.post("/").status_code == 405
    assert server.http.get("/page/app.py").status_code == 404
    assert server.http.get("/v1/config").json()["model"]["chat_template"] is True
