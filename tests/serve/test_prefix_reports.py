"""Why a prefix missed (`--explain-prefixes`): the header of every chat, and the fields of Messages and Responses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

import agent_script
from agent_kit import QUESTION, QWEN3, WEATHER, agent
from diagnosis_kit import first_differing
from engine_fakes import FakeRecipe
from messages_kit import events_of, folded
from responses_kit import FLAT
from responses_kit import events_of as response_events
from scripted_model import scripted_parts
from serve_kit import Served, chat_parts, serving

CACHE: Final = "x-ferrum-cache"
SEARCH: Final = {"type": "function", "function": {"name": "search", "description": "Finds pages.", "parameters": {}}}
TALK: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello."},
    *QUESTION,
]


def explaining(**config: Any) -> AbstractContextManager[Served]:
    """Run a server with the option, whose model has Qwen3's template."""
    parts = scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS)
    return serving(parts, explain_prefixes=True, **config)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with two keys."""
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("one:key-one\ntwo:key-two\n")

    with explaining(api_key_file=str(path)) as served:
        served.http.headers["authorization"] = "Bearer key-one"
        yield served


def fields(response: httpx.Response) -> dict[str, str]:
    """Return the fields of the header."""
    assert response.status_code == 200, response.text
    return dict(each.split("=") for each in response.headers[CACHE].split("; "))


def chat(server: Served, messages: list[dict[str, Any]], tools: list[Any], **body: Any) -> dict[str, str]:
    response = server.post("/v1/chat/completions", messages=messages, tools=tools, max_tokens=4, **body)
    return fields(response)


def talk(server: Served, name: str) -> list[dict[str, Any]]:
    """Return a conversation that no other test has: it differs from its begin on."""
    return [{"role": "system", "content": f"{name}: be brief."}, *TALK[1:]]


def first_of_last_two(server: Served) -> str:
    """Return the index of the first differing token of the last two prompts."""
    return str(first_differing(*(list(each.prompt) for each in server.requests[-2:])))


@pytest.mark.parametrize("stream", [False, True])
def test_header_names_the_message_and_the_tool_that_changed(keyed: Served, stream: bool) -> None:
    messages, tools = talk(keyed, f"header {stream}"), [WEATHER, SEARCH]
    chat(keyed, messages, tools, stream=stream)
    assert chat(keyed, messages, tools, stream=stream) == {"hit": "0", "first-difference": "none"}
    edited = deepcopy(messages)
    edited[2]["content"] = "Hell."
    found = chat(keyed, edited, tools, stream=stream)
    assert found == {"hit": "0", "first-difference": first_of_last_two(keyed), "in": "messages[2]"}
    described = deepcopy(tools)
    described[1]["function"]["description"] = "Finds papers."
    found = chat(keyed, edited, described, stream=stream)
    assert found == {"hit": "0", "first-difference": first_of_last_two(keyed), "in": "tools[1]"}
    found = chat(keyed, edited, [*described, {**SEARCH, "function": {"name": "find"}}], stream=stream)
    assert found == {"hit": "0", "first-difference": first_of_last_two(keyed), "in": "tools[2]"}


def test_header_names_the_variable_that_changed() -> None:
    with serving(explain_prefixes=True) as server:
        for mood, found in (("glad", {"hit": "0"}), ("sad", {"first-difference": "8", "in": "generation_prompt"})):
            response = server.chat(chat_template_kwargs={"mood": mood})
            assert fields(response).items() >= found.items()
        assert fields(response)["cause"] == "chat_template_kwargs.mood"


def test_prompt_of_a_template_of_the_client_is_compared_without_a_place() -> None:
    with serving(explain_prefixes=True) as server:
        for word, found in (("one", {"hit": "0"}), ("two", {"hit": "0", "first-difference": "0"})):
            assert fields(server.chat(chat_template=word)) == found


def test_header_names_the_message_that_the_template_renders_differently(keyed: Served) -> None:
    """Qwen3 leaves out the reasoning before the last question."""
    messages = talk(keyed, "reasoning")
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages.append({"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "rain"})
    chat(keyed, messages, [WEATHER])
    found = chat(keyed, [*messages, {"role": "assistant", "content": "Rain."}, *QUESTION], [WEATHER])
    assert found == {
        "hit": "0",
        "first-difference": first_of_last_two(keyed),
        "in": "messages[4]",
        "cause": "messages[7]",
    }


def test_prompts_of_other_keys_are_never_compared(keyed: Served) -> None:
    messages = talk(keyed, "keys")
    assert chat(keyed, messages, [])["first-difference"] != "none"
    response = keyed.http.post(
        "/v1/messages", json=ask_body("keys", previous_message_id=None), headers={"authorization": "Bearer key-two"}
    )
    assert fields(response) == {"hit": "0"}
    name = response.json()["id"]
    missing = {"type": "previous_message_not_found"}
    for body in (ask_body("keys", name), ask_body("keys", "msg_unknown")):
        reply = keyed.post("/v1/messages", **body).json()
        assert reply["diagnostics"] == {"cache_miss_reason": missing}
    own = keyed.http.post("/v1/messages", json=ask_body("keys", name), headers={"authorization": "Bearer key-two"})
    assert own.json()["diagnostics"] is None


def ask_body(name: str, previous_message_id: str | None, **body: Any) -> dict[str, Any]:
    """Return the body of a message that asks for the comparison."""
    return {
        "model": "scripted",
        "max_tokens": 4,
        "system": f"{name}: be brief.",
        "messages": TALK[1:],
        "tools": [{"name": each, "input_schema": {"type": "object"}} for each in ("a", "b", "c")],
        "diagnostics": {"previous_message_id": previous_message_id},
        **body,
    }


@pytest.mark.parametrize(
    ("change", "kind", "place"),
    [
        ({"system": "Be long."}, "system_changed", "system"),
        (
            {"tools": [{"name": each, "input_schema": {"type": "object"}} for each in ("a", "x", "c")]},
            "tools_changed",
            "tools[1]",
        ),
        ({"messages": [*TALK[1:3], {"role": "user", "content": "?"}]}, "messages_changed", "messages[2]"),
        (
            {"messages": [TALK[1], {"role": "user", "content": "more"}, *TALK[2:]]},
            "messages_changed",
            "messages[1]",
        ),
        ({"messages": [*TALK[1:], {"role": "assistant", "content": "So"}]}, None, None),
    ],
)
def test_message_says_why_its_prefix_missed(
    keyed: Served, change: dict[str, Any], kind: str | None, place: str | None
) -> None:
    first = keyed.post("/v1/messages", **ask_body("why", None))
    assert first.json()["diagnostics"] is None
    body = ask_body("why", first.json()["id"], **change)
    reply = keyed.post("/v1/messages", **body).json()
    if kind is None:
        assert reply["diagnostics"] is None
        return
    old, new = (each.prompt for each in keyed.requests[-2:])
    at = first_differing(list(old), list(new))
    assert at is not None and reply["diagnostics"]["cache_miss_reason"] == {
        "type": kind,
        "cache_missed_input_tokens": min(len(old), len(new)) - at,
        "first_differing_token": at,
        "place": place,
        "cause": place,
    }
    assert folded(events_of(keyed, **body))["diagnostics"] == reply["diagnostics"]


def respond(server: Served, wanted: str | None = None, **body: Any) -> Any:
    options = {} if wanted is None else {"prompt_cache_options": {"comparison_response_id": wanted}}
    items = [{"role": each["role"], "content": each["content"]} for each in TALK]
    fields = {"input": items, "tools": [FLAT], "store": False, "max_output_tokens": 4, **options, **body}
    response = server.post("/v1/responses", **fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_response_says_why_its_prefix_missed(keyed: Served) -> None:
    first = respond(keyed)
    assert "prompt_cache_diagnostics" not in first
    assert respond(keyed, first["id"])["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    missing = {"type": "comparison_response_not_found"}
    assert respond(keyed, "resp_unknown")["prompt_cache_diagnostics"] == missing
    changed = [FLAT, {**FLAT, "name": "other"}]
    found = respond(keyed, first["id"], tools=changed)["prompt_cache_diagnostics"]
    new = keyed.requests[-1].prompt
    at = first_differing(list(keyed.requests[-2].prompt), list(new))
    assert at is not None and found == {
        "type": "cache_miss",
        "cache_missed_tokens": len(new) - at,
        "reason": "tools_changed",
        "comparison_reusable_tokens": at,
        "first_differing_token": at,
        "place": "tools[1]",
        "cause": "tools[1]",
    }
    items = [*TALK[:3], {"role": "assistant", "content": "More."}, *QUESTION]
    found = respond(keyed, first["id"], input=items)["prompt_cache_diagnostics"]
    assert (found["reason"], found["place"]) == ("input_changed", "input[3]")
    options = {"comparison_response_id": first["id"]}
    *_, last = response_events(keyed, input=items, tools=[FLAT], prompt_cache_options=options, max_output_tokens=4)
    assert last["response"]["prompt_cache_diagnostics"] == found


def test_stored_response_that_is_continued_keeps_its_prefix(keyed: Served) -> None:
    first = respond(keyed, store=True)
    more = {"previous_response_id": first["id"], "input": "And tomorrow?"}
    found = respond(keyed, first["id"], **more)["prompt_cache_diagnostics"]
    assert found == {"type": "cache_hit"}
    found = respond(keyed, first["id"], **more, instructions="Be long.")["prompt_cache_diagnostics"]
    assert (found["reason"], found["place"]) == ("input_changed", "instructions")


def test_ollama_has_the_header() -> None:
    with explaining() as server:
        body = {"model": "scripted", "messages": TALK, "stream": False, "options": {"num_predict": 4}}
        assert fields(server.post("/api/chat", **body)) == {"hit": "0"}
        found = fields(server.post("/api/chat", **{**body, "messages": [TALK[0], *TALK[3:]]}))
        assert found["in"] == "messages[1]"
        body = {"model": "scripted", "prompt": "Hello", "system": "Be brief.", "stream": False, "think": False}
        server.post("/api/generate", **body)
        assert fields(server.post("/api/generate", **{**body, "prompt": "Bye"}))["in"] == "prompt"
        assert CACHE not in server.post("/v1/completions", prompt="a", max_tokens=1).headers


def test_tokens_from_the_cache_and_evicted_ones_are_counted() -> None:
    recipe = FakeRecipe(prefixes=True, num_pages=40)
    with serving(chat_parts(recipe), explain_prefixes=True) as server:
        page = server.service.model().engine.info.page_size
        assert page is not None
        question = [{"role": "user", "content": "q" * 8 * page}]
        assert fields(server.chat(messages=question)) == {"hit": "0"}
        stream = fields(server.chat(messages=question, stream=True))
        assert int(stream["hit"]) >= 8 * page and stream["first-difference"] == "none"
        for letter in "abcdefgh":
            server.chat(messages=[{"role": "user", "content": letter * 30 * page}])
        found = fields(server.chat(messages=question))
        assert found["first-difference"] == "none" and int(found["evicted"]) > 0
        assert (int(found["hit"]) + int(found["evicted"])) % page == 0


def test_without_the_option_only_the_tokens_from_the_cache_are_counted() -> None:
    with agent() as server:
        messages = [{"role": "user", "content": "Hello"}]
        for text in ("Hello", "Bye"):
            assert chat(server, [{**messages[0], "content": text}], []) == {"hit": "0"}
        assert server.service.model().explainer is None


@pytest.mark.parametrize("wanted", [None, "msg_1"])
def test_comparison_that_a_client_asks_for_is_unavailable_without_the_option(wanted: str | None) -> None:
    unavailable = {"cache_miss_reason": {"type": "unavailable"}}
    with agent() as server:
        reply = server.post("/v1/messages", **ask_body("off", wanted)).json()
        assert reply["diagnostics"] == (None if wanted is None else unavailable)
        found = respond(server, wanted).get("prompt_cache_diagnostics")
        assert found == (None if wanted is None else {"type": "unavailable"})
