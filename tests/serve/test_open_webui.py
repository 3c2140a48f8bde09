"""Requests in the form of Open WebUI 0.12: titles and tags are answered while an answer is streamed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from serve_kit import SLOW, Served, chat_parts, serving, wait_for

TASKS = ("Generate a concise title of 3-5 words.", "Generate 1-3 broad tags.", "Suggest 3-5 follow-up questions.")


def ask(server: Served, task: str) -> dict[str, Any]:
    """Return the reply to a task, with the limit of tokens that Open WebUI sets."""
    body = {"model": "fake", "messages": [{"role": "user", "content": task}], "stream": False, "max_tokens": 1000}
    response = server.post("/v1/chat/completions", **body, stop=["e"])
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def test_titles_and_tags_are_answered_while_an_answer_is_streamed() -> None:
    with serving(chat_parts(SLOW)) as server:
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 20_000}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: {")
            with ThreadPoolExecutor() as threads:
                replies = list(threads.map(lambda task: ask(server, task), TASKS))
            assert all(each["choices"][0]["message"]["content"] for each in replies)
            wait_for(lambda: server.service.num_live == 1)  # the answer; a task is live until its reply is sent
            got = [line for line, _ in zip(lines, range(100), strict=False)]
            assert len(got) == 100 and "data: [DONE]" not in got
        server.wait_idle()
