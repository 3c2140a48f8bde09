"""The prefix cache over HTTP: cached tokens in usage and metrics, and isolation of API keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine_fakes import FakeRecipe
from serve_kit import Served, chat_parts, serving

PROMPT = "Every request of this system begins with these words: "


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    path = tmp_path / "keys"
    path.write_text("one:key-one\ntwo:key-two\n")
    with serving(chat_parts(FakeRecipe(prefixes=True)), api_key_file=str(path)) as server:
        yield server


def cached(server: Served, key: str = "key-one", more: str = "", **extra: Any) -> int:
    with openai.OpenAI(base_url=f"{server.http.base_url}/v1", api_key=key) as client:
        reply = client.completions.create(model="fake", prompt=PROMPT + more, max_tokens=1, extra_body=extra)
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens == len(PROMPT + more)
    return reply.usage.prompt_tokens_details.cached_tokens or 0


def test_cached_prefixes_are_found_by_the_same_key_and_salt_only(server: Served) -> None:
    assert [cached(server, more=more) for more in ("a", "b")] == [0, len(PROMPT)]
    assert [cached(server, "key-two", more=more) for more in ("a", "b")] == [0, len(PROMPT)]
    assert [cached(server, more=more, cache_salt="s") for more in ("a", "b")] == [0, len(PROMPT)]


def test_streamed_usage_has_cached_tokens(server: Served) -> None:
    with openai.OpenAI(base_url=f"{server.http.base_url}/v1", api_key="key-one") as client:
        messages: Any = [{"role": "user", "content": PROMPT * 2}]
        found = []
        for _ in range(2):
            *_, last = client.chat.completions.create(
                model="fake", messages=messages, max_tokens=1, stream=True, stream_options={"include_usage": True}
            )
            assert last.usage is not None and last.usage.prompt_tokens_details is not None
            found.append(last.usage.prompt_tokens_details.cached_tokens)
    assert found[0] == 0 and found[1] >= 2 * len(PROMPT)


def test_lookups_and_hits_are_counted(server: Served) -> None:
    for more in ("a", "b", "c"):
        cached(server, more=more)
    text = server.http.get("/metrics", headers={"Authorization": "Bearer key-one"}).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:prefix")]
    values = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
    assert values["vllm:prefix_cache_queries_total"] == 3 * (len(PROMPT) + 1)
    assert values["vllm:prefix_cache_hits_total"] == 2 * len(PROMPT)
