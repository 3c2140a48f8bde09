"""docs/server.md agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from ferrum.server.common.json_bodies import Body
from ferrum.server.openai.fields import ChatRequest, CompletionRequest, GenerationBody, StreamOptions
from serve_kit import Served

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def paragraph(opening: str) -> str:
    return next(each for each in TEXT.split("\n\n") if each.startswith(opening))


def names(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_.]+)`", text))


def own(body: type[Body], table: str) -> set[str]:
    return set(getattr(body, table)) - set(getattr(GenerationBody, table))


def test_documented_fields_equal_those_of_the_code() -> None:
    both, chats = re.split(r"in\s+chats also", paragraph("No effect"))
    options = {f"stream_options.{name}" for name in StreamOptions.NO_OPS}
    assert names(both) - {"x-ferrum-ignored"} == {*GenerationBody.NO_OPS, *options}
    assert names(chats) == own(ChatRequest, "NO_OPS") and not own(CompletionRequest, "NO_OPS")
    both, chats = re.split(r"in\s+chats also", paragraph("Refused until"))
    assert names(both) == {*GenerationBody.REFUSED, *own(CompletionRequest, "REFUSED")}
    assert names(chats) == own(ChatRequest, "REFUSED")


def test_every_route_is_documented(server: Served) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    listed = set(re.findall(r"(/[\w/{}-]+)`", TEXT.split("## Fields")[0]))
    assert {re.sub(r"\{\w+_id\}", "{id}", path) for path in paths} <= listed
