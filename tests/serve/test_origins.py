"""CORS: pages of other origins may use the server only if --allow-origin names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrum.core.errors import ConfigError
from ferrum.server.server_config import ServerConfig
from serve_kit import error_of, serving


def test_origin_in_another_form_than_browsers_send_is_rejected() -> None:
    for origin in ("*", "null", "http://localhost:3000", "https://a.example", "tauri://localhost", "http://[::1]:8080"):
        assert ServerConfig(allow_origin=origin).allow_origin == origin
    no_origins = ("localhost:3000", "http://a.example/", "http://a.example/x", "http://A.example", "http://a,http://b")
    for origin in (*no_origins, "http://a.example:80", "https://a.example:443", "http://", ""):
        with pytest.raises(ConfigError) as caught:
            ServerConfig(allow_origin=origin)
        assert caught.value.param == "allow_origin"


def test_other_origins_are_not_allowed_by_default() -> None:
    origin = {"origin": "http://elsewhere.example"}
    with serving() as server:
        assert "access-control-allow-origin" not in server.http.get("/health", headers=origin).headers
    with serving(allow_origin="http://elsewhere.example") as server:
        response = server.http.get("/health", headers=origin)
        assert response.headers["access-control-allow-origin"] == "http://elsewhere.example"


def test_allowed_origin_may_send_requests_and_read_errors(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one requests_per_minute=60\n")
    origin = {"origin": "http://elsewhere.example"}
    asks = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with serving(allow_origin="http://elsewhere.example", api_key_file=str(path), max_body_bytes=1000) as server:
        assert server.http.options("/v1/completions", headers=asks).status_code == 200
        large = server.http.post("/v1/completions", content=b"x" * 2000, headers={**origin, "x-api-key": "one"})
        refused = [server.http.get("/v1/models", headers=origin), large]
        assert [response.status_code for response in refused] == [401, 413]
        for response in refused:
            assert response.headers["access-control-allow-origin"] == "http://elsewhere.example"
            exposed = response.headers["access-control-expose-headers"].split(", ")
            assert {"retry-after", "x-request-id", "x-ratelimit-remaining-tokens"} <= set(exposed)
        private = server.http.options(
            "/v1/completions", headers={**asks, "access-control-request-private-network": "true"}
        )
        assert private.status_code == 200 and private.headers["access-control-allow-private-network"] == "true"
        another = server.http.options("/v1/completions", headers={**asks, "origin": "http://third.example"})
        assert "access-control-allow-origin" not in another.headers
        assert error_of(another, 400)["message"] == "CORS refuses the origin"
        brew = server.http.options("/v1/completions", headers={**asks, "access-control-request-method": "BREW"})
        assert error_of(brew, 400)["message"] == "CORS refuses the method"
        assert brew.headers["access-control-allow-origin"] == "http://elsewhere.example"


def test_preflights_and_odd_methods_get_json_without_the_option() -> None:
    with serving() as server:
        for method in ("OPTIONS", "BREW", "TRACE", "PUT"):
            asks = {"origin": "http://a.example", "access-control-request-method": "BREW"}
            assert error_of(server.http.request(method, "/v1/completions", headers=asks), 405)["message"]
