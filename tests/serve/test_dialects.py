"""A path chooses the wire form: framing of events, end of a stream, errors, ids of replies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.client.request_output import Delta
from ferrum.server.anthropic.routes import MESSAGES
from ferrum.server.app import DIALECTS
from ferrum.server.chat.generation import generate
from ferrum.server.chat.turn import ReplyHeader
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.http_guard import dialect_of
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.ollama.routes import OLLAMA
from ferrum.server.openai.ask import ask_completion
from ferrum.server.openai.builders import OpenAIBuilder
from ferrum.server.openai.fields import CompletionRequest
from ferrum.server.openai.routes import OPENAI
from serve_kit import SLOW, Served, chat_parts, error_of, serving


class Piece(Reply):
    EVENT: ClassVar[str] = "piece"
    text: str | None


class Stop(Reply):
    EVENT: ClassVar[str] = "stop"
    id: str
    tokens: int


class ToyBuilder(OpenAIBuilder[Reply]):
    """Chunks with names, and one more event at the end."""

    def chunks(self, place: int, delta: Delta) -> Iterator[Piece]:
        yield Piece(text=delta.text)

    def end_chunks(self) -> Iterator[Stop]:
        yield Stop(id=self.id, tokens=self.usage.completion)

    def whole(self) -> Stop:
        return Stop(id=self.id, tokens=self.usage.completion)


def _builder(model: ServedModel, body: CompletionRequest, caller: Caller, header: ReplyHeader) -> ToyBuilder:
    return ToyBuilder(header, body, *ask_completion(model, body, caller, header.id), model.client.tokenizer)


def _error(error: ApiError) -> bytes:
    return json.dumps({"type": "failure", "why": error.message, "field": error.param, "code": error.code}).encode()


def _add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/toy/write")
    async def write(body: CompletionRequest, request: Request) -> Response:
        return await generate(service, request, body, "toy-", _builder)


TOY: Final = Dialect(paths=("/toy",), ids=("toy-",), error=_error, end=b"event: bye\ndata: {}\n\n", keep_alive=b":\n\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret\n")
    dialects = (*DIALECTS, (TOY, _add_routes))
    with serving(chat_parts(SLOW), dialects=dialects, api_key_file=str(keys), max_body_bytes=2000) as served:
        served.http.headers["x-api-key"] = "secret"
        yield served


def named_events(response: Any) -> list[tuple[str, Any]]:
    """Return the names and objects of server-sent events."""
    found = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def toy_error(response: Any, status: int) -> Any:
    assert response.status_code == status and response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"type", "why", "field", "code"} and response.json()["type"] == "failure"
    return response.json()


def test_longest_prefix_of_a_path_chooses() -> None:
    openai = DIALECTS[0][0]
    inner = Dialect(paths=("/toy/inner", "/other"), ids=(), error=_error)
    chosen = {
        path: dialect_of([openai, TOY, inner], path, ())
        for path in ("/v1/chat/completions", "/toy", "/toy/a", "/toys", "/toy/inner", "/toy/inner/a", "/other", "*")
    }
    assert list(chosen.values()) == [openai, TOY, TOY, openai, inner, inner, inner, openai]


@pytest.mark.parametrize(
    ("path", "header", "shape"),
    [
        ("/v1/files", "anthropic-version", MESSAGES),
        ("/v1/chat", "anthropic-version", MESSAGES),
        ("/nothing", "anthropic-version", MESSAGES),
        ("/v1/models/x", "anthropic-version", MESSAGES),
        ("/v1/models/x", "x-api-key", MESSAGES),
        ("/v1/messages/x", "", MESSAGES),
        ("/v1/files", "x-api-key", OPENAI),
        ("/v1/files", "", OPENAI),
        ("/v1/models/x", "", OPENAI),
        ("/v1/chat/completions", "anthropic-version", OPENAI),
        ("/api/nothing", "", OLLAMA),
        ("/api/metrics", "anthropic-version", OLLAMA),
        ("/api/chat", "", OLLAMA),
        ("/apis", "", OPENAI),
        ("/api/v1/chat/completions", "", OPENAI),
        ("/api/hello", "", MESSAGES),
    ],
)
def test_client_chooses_the_form_of_paths_without_a_route(path: str, header: str, shape: Dialect) -> None:
    assert dialect_of([dialect for dialect, _ in DIALECTS], path, {header}) is shape


def test_errors_of_paths_without_a_route_have_the_form_of_the_client(server: Served) -> None:
    anthropic = {"anthropic-version": "2023-06-01"}
    missing = server.http.get("/v1/files", headers=anthropic)
    assert missing.json()["error"]["type"] == "not_found_error" and missing.headers["request-id"]
    wrong = server.http.get("/v1/files", headers={**anthropic, "x-api-key": "wrong"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    assert server.http.put("/metrics", headers=anthropic).json()["type"] == "error"
    error_of(server.http.get("/v1/files"), 404)


def test_stream_has_named_events_and_another_end(server: Served) -> None:
    response = server.post(
        "/toy/write", prompt="ab", max_tokens=3, ignore_eos=True, seed=1, stream=True, request_id="mine"
    )
    plain = server.complete(max_tokens=3, ignore_eos=True, seed=1).json()["choices"][0]["text"]
    *pieces, stop, end = named_events(response)
    assert "".join(data["text"] for name, data in pieces if name == "piece") == plain and plain
    assert stop == ("stop", {"id": "toy-mine", "tokens": 3}) and end == ("bye", {})


def test_whole_reply_has_an_id_of_the_dialect(server: Served) -> None:
    reply = server.post("/toy/write", prompt="ab", max_tokens=2, ignore_eos=True).json()
    assert reply["id"].startswith("toy-") and reply["tokens"] == 2


def test_errors_before_the_route_have_the_form_of_the_path(server: Served) -> None:
    wrong = {"x-api-key": "wrong"}
    assert toy_error(server.http.post("/toy/write", json={}, headers=wrong), 401)["code"] == "invalid_api_key"
    assert error_of(server.http.post("/v1/completions", json={}, headers=wrong), 401)["code"] == "invalid_api_key"
    assert toy_error(server.post("/toy/write", prompt="a" * 3000), 413)["code"] == "body_too_large"
    chunks = server.http.post("/toy/write", content=iter([b"a" * 3000]), headers={"content-type": "application/json"})
    assert toy_error(chunks, 413)["code"] == "body_too_large"
    assert "/toy/nothing is not served" in toy_error(server.post("/toy/nothing"), 404)["why"]
    assert toy_error(server.http.get("/toy/write"), 405)["code"] == "method_not_allowed"
    error_of(server.post("/toys/nothing"), 404)


def test_errors_of_a_body_have_the_form_of_the_path(server: Served) -> None:
    assert toy_error(server.post("/toy/write"), 400)["field"] == "prompt"
    assert toy_error(server.post("/toy/write", prompt="a", n=0), 400)["field"] == "n"
    assert toy_error(server.post("/toy/write", prompt="a", model="other"), 404)["code"] == "model_not_found"
    assert toy_error(server.http.post("/toy/write", content=b"a"), 415)["field"] is None


def test_error_in_a_stream_is_an_event_without_the_end(server: Served) -> None:
    """The client's own id finds the reply, whatever the dialect's prefix."""
    body = {"prompt": "ab", "max_tokens": 4000, "ignore_eos": True, "stream": True, "request_id": "long"}
    with server.http.stream("POST", "/toy/write", json=body) as response:
        assert server.http.delete("/v1/requests/long").json()["id"] == "toy-long"
        response.read()
    *_, (name, error) = named_events(response)
    assert name == "error" and error["code"] == "request_cancelled" and set(error) == {"type", "why", "field", "code"}
