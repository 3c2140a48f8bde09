"""Bodies, targets and methods that are refused, and unusual ones that are accepted."""

from __future__ import annotations

import gzip

import pytest

from serve_kit import USER, Served, error_of, wire


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b'{"model": NaN}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "fake", "prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
        b'{"model": "fake", "prompt": "a", "temperature": 1e999}',
        b'{"model": "fake", "prompt": "a", "max_tokens": 1e99}',
        b'{"model": "fake", "prompt": "a", "logit_bias": {"99999999999999999999999": 1}}',
    ],
    ids=lambda body: body[:24],
)
def test_invalid_json_is_a_400(server: Served, body: bytes) -> None:
    response = server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    error_of(response, 400)
    assert server.complete(max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("path", "field", "value", "fault"),
    [
        ("/v1/completions", "prompt", ["a", 1], "prompt[1]: Input should be a valid string"),
        ("/v1/completions", "prompt", [1, "a"], "prompt[1]: Input should be a valid integer"),
        ("/v1/completions", "prompt", [[1], "a"], "prompt[1]: Input should be a valid list"),
        ("/v1/completions", "prompt", [[1], [2, "a"]], "prompt[1][1]: Input should be a valid integer"),
        ("/v1/completions", "prompt", 5, "prompt: Input should be a valid string"),
        ("/v1/completions", "stop", ["a", None], "stop[1]: Input should be a valid string"),
        ("/v1/chat/completions", "messages", [*USER, {"role": 5, "content": 5}], "messages[1].role: Input should be"),
        (
            "/v1/chat/completions",
            "messages",
            [*USER, {"role": "user", "content": [{"text": "a"}]}],
            "messages[1].content[0].type: Field required",
        ),
        (
            "/v1/chat/completions",
            "messages",
            [{"role": "user", "content": [{"type": "text", "text": 5}]}],
            "messages[0].content[0].text: Input should be a valid string",
        ),
    ],
)
def test_error_of_a_union_field_is_that_of_its_likeliest_form(
    server: Served, path: str, field: str, value: object, fault: str
) -> None:
    good = {"model": "fake", "prompt": "a", "messages": USER}
    error = error_of(server.post(path, **{**good, field: value}), 400)
    assert error["message"].startswith(fault) and error["param"] == fault.partition(": ")[0]


def test_other_content_type_is_a_415(server: Served) -> None:
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "multipart/form-data"}):
        assert error_of(server.http.post("/v1/completions", content=b"{}", headers=headers), 415)
    charset = {"content-type": "application/json; charset=utf-8"}
    body = b'{"model": "fake", "prompt": "a", "max_tokens": 1}'
    assert server.http.post("/v1/completions", content=body, headers=charset).status_code == 200


def test_compressed_body_is_a_415(server: Served) -> None:
    body, kind = b'{"model": "fake", "prompt": "a", "max_tokens": 1}', {"content-type": "application/json"}
    zipped = {**kind, "content-encoding": "gzip"}
    response = server.http.post("/v1/completions", content=gzip.compress(body), headers=zipped)
    assert "'gzip'" in error_of(response, 415)["message"] and response.headers["accept-encoding"] == "identity"
    plain = {**kind, "content-encoding": "Identity"}
    assert server.http.post("/v1/completions", content=body, headers=plain).status_code == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://x/v1/models", 200),
        (b"HTTP://x:80/v1/models/fake?a=b", 200),
        (b"https://x", 200),
        (b"/http://x/v1/models", 404),
        (b"/v1/models/http://x/fake", 404),
    ],
)
def test_absolute_form_targets_are_accepted(server: Served, target: bytes, status: int) -> None:
    with wire(server) as connection:
        connection.sendall(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"%d" % status


def test_unknown_routes_and_methods_get_json_errors(server: Served) -> None:
    nowhere = error_of(server.http.get("/nope"), 404)
    assert (nowhere["code"], nowhere["message"].split(":")[0]) == ("not_found", "Not Found")
    assert error_of(server.http.post("/v1/responses/compact", json={}), 404)
    routes = {"/v1/chat/completions": "POST", "/health": "GET, HEAD"}
    for path, methods in {**routes, "/v1/responses/x": "DELETE, GET, HEAD", "/v1/models/a/b": "GET, HEAD"}.items():
        response = server.http.put(path)
        assert error_of(response, 405)["code"] == "method_not_allowed" and response.headers["allow"] == methods
