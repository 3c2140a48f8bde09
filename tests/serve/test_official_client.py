"""Behaviour that the official OpenAI client relies on beyond the wire contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from serve_kit import USER, Served, chat_parts, serving


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model="fake", messages=USER, **{"max_tokens": 4, **options})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": None}, "max_completion_tokens"),
        ({"top_p": 0.0}, "top_p"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [str(number) for number in range(65)]}, "stop"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
    ],
)
def test_invalid_values_are_refused_by_name(server: Served, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server.openai(), **options)
    assert caught.value.param == param and caught.value.code in ("invalid_value", "invalid_grammar")


def test_more_than_four_stop_strings_are_served(server: Served) -> None:
    strings = [f"{number}{number}{number}" for number in range(10, 74)]
    assert chat(server.openai(), stop=strings).choices[0].finish_reason in ("stop", "length")
    assert server.requests[0].params.stop == tuple(strings)


def test_spaces_between_special_tokens_is_named_as_ignored(server: Served) -> None:
    extra = {"spaces_between_special_tokens": True}
    raw = server.openai().chat.completions.with_raw_response.create(
        model="fake",
        messages=USER,  # type: ignore[arg-type]
        max_tokens=1,
        extra_body=extra,
    )
    assert raw.headers["x-ferrum-ignored"] == "spaces_between_special_tokens"


def test_embeddings_default_to_base64_for_the_client(server: Served) -> None:
    plain = server.openai().embeddings.create(model="fake", input="ab")
    floats = server.openai().embeddings.create(model="fake", input="ab", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(floats.data[0].embedding, rel=1e-6)
    assert isinstance(plain.data[0].embedding[0], float)


def test_rate_limits_are_sent_and_the_client_waits_for_retry_after(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("ada:one requests_per_minute=60\n")
    with serving(chat_parts(), api_key_file=str(path)) as server:
        client = server.openai(api_key="one")
        raw = client.chat.completions.with_raw_response.create(
            model="fake",
            messages=USER,  # type: ignore[arg-type]
            max_tokens=1,
        )
        assert raw.headers["x-ratelimit-limit-requests"] == "60"
        assert raw.headers["x-ratelimit-remaining-requests"] in ("59", "60")
        with pytest.raises(openai.RateLimitError) as caught:
            for _ in range(100):
                chat(client, max_tokens=1)
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.response.headers["retry-after"] == "1"
        assert chat(client.with_options(max_retries=3), max_tokens=1).choices
