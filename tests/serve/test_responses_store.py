"""Stored responses: fetched, continued, listed and deleted, each by its API key only, within the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

import agent_script
from agent_kit import QWEN3
from agent_script import ANSWER, THOUGHT
from responses_kit import FLAT, PATH, events_of, folded, respond
from scripted_model import scripted_parts
from serve_kit import Served, error_of, serving

ASKED = "What is the weather in Paris?"


def kept(server: Served, **body: Any) -> Any:
    """Return a response, which is stored."""
    return respond(server, store=True, **body)


def fetched(server: Served, id: str, **query: Any) -> Any:
    response = server.http.get(f"{PATH}/{id}", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def items_of(server: Served, id: str, **query: Any) -> Any:
    response = server.http.get(f"{PATH}/{id}/input_items", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_response_is_stored_unless_the_client_says_no(assistant: Served) -> None:
    for stored in ({}, {"store": True}, {"store": None}):
        response = assistant.post(PATH, input="no tool", **stored)
        assert "x-ferrum-ignored" not in response.headers
        whole = response.json()
        assert whole["store"] and fetched(assistant, whole["id"]) == whole
    secret = respond(assistant, store=False)
    assert not secret["store"]
    error = error_of(assistant.http.get(f"{PATH}/{secret['id']}"), 404)
    assert (error["code"], error["param"]) == ("response_not_found", "response_id")
    assert "evicted" in error["message"] and "--max-stored-responses" in error["message"]


def test_a_stream_folds_into_what_is_stored(assistant: Served) -> None:
    events = events_of(assistant, store=True, tools=[FLAT])
    whole = fetched(assistant, events[-1]["response"]["id"])
    assert whole == events[-1]["response"] and folded(events) == whole["output"]


def test_a_chain_has_the_prompt_of_all_its_items(assistant: Served) -> None:
    first = kept(assistant, tools=[FLAT], instructions="Be brief.")
    call = first["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"}
    second = kept(assistant, tools=[FLAT], input=[result], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    assert second["output"][-1]["content"][0]["text"] == ANSWER + "21 degrees"
    third = kept(assistant, tools=[FLAT], input="And in Rome?", previous_response_id=second["id"])
    chained = assistant.requests[-1].prompt
    asked = [{"role": "user", "content": ASKED}, *first["output"], result, *second["output"]]
    alone = respond(assistant, tools=[FLAT], input=[*asked, {"role": "user", "content": "And in Rome?"}])
    assert assistant.requests[-1].prompt == chained
    assert third["usage"]["input_tokens"] == alone["usage"]["input_tokens"]


def test_a_continued_prompt_begins_with_the_tokens_of_the_response(assistant: Served) -> None:
    """The prefix cache then has all but the last page of them."""
    first = kept(assistant, tools=[FLAT])
    known = assistant.requests[-1].prompt
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "x"}
    kept(assistant, tools=[FLAT], input=[result], previous_response_id=first["id"])
    prompt = assistant.requests[-1].prompt
    assert prompt[: len(known)] == known
    tokenizer = assistant.service.model().client.tokenizer
    assert tokenizer is not None
    said = agent_script.reply(tokenizer.decode(known, skip_special_tokens=False))
    assert prompt[len(known) : first["usage"]["total_tokens"] - 1] == tuple(tokenizer.encode(said))


def test_responses_that_are_forked_do_not_see_each_other(assistant: Served) -> None:
    first = kept(assistant, input="no tool: 1")
    forks = [kept(assistant, input=f"no tool: {place}", previous_response_id=first["id"]) for place in (2, 3)]
    for place, fork in zip((2, 3), forks, strict=True):
        said = [each["content"][0]["text"] for each in items_of(assistant, fork["id"], order="asc")["data"]]
        assert said == ["no tool: 1", THOUGHT, "Hello.", f"no tool: {place}"]


def test_a_deleted_response_is_gone_and_later_ones_keep_its_items(assistant: Served) -> None:
    first = kept(assistant, input="no tool, a secret")
    second = kept(assistant, input="no tool", previous_response_id=first["id"])
    gone = assistant.http.delete(f"{PATH}/{first['id']}")
    assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
    for again in (assistant.http.delete, assistant.http.get):
        assert error_of(again(f"{PATH}/{first['id']}"), 404)["code"] == "response_not_found"
    body = {"input": "x", "previous_response_id": first["id"]}
    for path in (PATH, f"{PATH}/input_tokens"):
        error = error_of(assistant.post(path, **body), 400)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    kept(assistant, input="no tool", previous_response_id=second["id"])
    assert b"a secret" in bytes(each for each in assistant.requests[-1].prompt if each < 256)


def test_input_items_have_ids_and_pages(assistant: Served) -> None:
    sent = [
        {"role": "developer", "content": "one"},
        {"type": "message", "role": "assistant", "content": "two", "id": "mine"},
        {"role": "user", "content": [{"type": "input_text", "text": "no tool"}], "id": "mine"},
    ]
    response = kept(assistant, input=sent)
    listed = items_of(assistant, response["id"], order="asc")
    assert listed["object"] == "list" and not listed["has_more"]
    ids = [each["id"] for each in listed["data"]]
    assert ids[1] == "mine" and len({*ids}) == 3 and (listed["first_id"], listed["last_id"]) == (ids[0], ids[2])
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
    assert [each["type"] for each in listed["data"]] == ["message"] * 3
    assert items_of(assistant, response["id"])["data"] == listed["data"][::-1]
    page = items_of(assistant, response["id"], limit=2)
    assert page["has_more"] and [each["id"] for each in page["data"]] == ids[:0:-1]
    rest = items_of(assistant, response["id"], limit=2, after=page["last_id"])
    assert not rest["has_more"] and [each["id"] for each in rest["data"]] == ids[:1]
    path = f"{PATH}/{response['id']}/input_items"
    assert error_of(assistant.http.get(path, params={"after": "none"}), 404)["param"] == "after"
    for query, name in (({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order")):
        assert error_of(assistant.http.get(path, params=query), 400)["param"] == name


def test_reasoning_is_included_in_a_form_to_send_back(assistant: Served) -> None:
    first = kept(assistant, input="no tool")
    second = kept(assistant, input="no tool", previous_response_id=first["id"])
    for name in ("include", "include[]"):
        query = {name: "reasoning.encrypted_content"}
        whole = fetched(assistant, first["id"], **query)["output"]
        listed = items_of(assistant, second["id"], order="asc", **query)["data"]
        assert whole[0]["encrypted_content"] == listed[1]["encrypted_content"]
    assert "encrypted_content" not in fetched(assistant, first["id"])["output"][0]
    odd = assistant.http.get(f"{PATH}/{first['id']}", params={"include": "more", "include_obfuscation": "true"})
    assert odd.headers["x-ferrum-ignored"] == "include[0], include_obfuscation"


def test_references_stand_for_stored_items(assistant: Served) -> None:
    """The Vercel AI SDK sends references to what it believes to be stored."""
    first = kept(assistant, tools=[FLAT])
    call = first["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "21"}
    user = {"role": "user", "content": ASKED}
    references = [{"type": "item_reference", "id": first["output"][0]["id"]}, {"id": call["id"]}]
    named = kept(assistant, tools=[FLAT], input=[user, *references, result])
    prompt = assistant.requests[-1].prompt
    respond(assistant, tools=[FLAT], input=[user, *first["output"], result])
    assert assistant.requests[-1].prompt == prompt
    own = items_of(assistant, named["id"])["data"][0]["id"]
    assert kept(assistant, input=[{"id": own}])
    for unknown in ("rs_resp_none_0", "msg_1"):
        error = error_of(assistant.post(PATH, input=[user, {"type": "item_reference", "id": unknown}]), 404)
        assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")


def test_counted_tokens_are_those_of_the_prompt(assistant: Served) -> None:
    first = kept(assistant, input="no tool")
    bodies: list[dict[str, Any]] = [
        {"input": "no tool"},
        {"input": "x", "tools": [FLAT], "instructions": "Be brief.", "reasoning": {"effort": "none"}},
        {"input": "no tool", "previous_response_id": first["id"]},
        {"input": "json", "text": {"format": {"type": "json_object"}}},
    ]
    for body in bodies:
        asked = len(assistant.requests)
        counted = assistant.post(f"{PATH}/input_tokens", **body)
        assert len(assistant.requests) == asked
        usage = respond(assistant, **body)["usage"]
        assert counted.json() == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    named = assistant.post(f"{PATH}/input_tokens", input="x", personality="friendly", more=1)
    assert named.headers["x-ferrum-ignored"] == "more, personality"
    assert error_of(assistant.post(f"{PATH}/input_tokens", conversation="c"), 400)["param"] == "conversation"


def test_a_response_belongs_to_its_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a:first\nb:second\n")
    parts = scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS)
    with serving(parts, api_key_file=str(tmp_path / "keys")) as served:
        a, b = ({"authorization": f"Bearer {key}"} for key in ("first", "second"))
        made = served.http.post(PATH, json={"input": "no tool", "request_id": "same"}, headers=a).json()
        ways = [("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")]
        for method, path in ways:
            stranger = served.http.request(method, f"{PATH}/{made['id']}{path}", headers=b)
            assert error_of(stranger, 404)["code"] == "response_not_found"
        for path in (PATH, f"{PATH}/input_tokens"):
            body: dict[str, Any] = {"input": "x", "previous_response_id": made["id"]}
            assert error_of(served.http.post(path, json=body, headers=b), 400)["param"] == "previous_response_id"
            body = {"input": [{"id": made["output"][0]["id"]}]}
            assert error_of(served.http.post(path, json=body, headers=b), 404)["param"] == "input[0].id"
        other = served.http.post(PATH, json={"input": "other, no tool", "request_id": "same"}, headers=b).json()
        assert other["id"] == made["id"]
        assert served.http.get(f"{PATH}/{made['id']}", headers=a).json() == made
        assert served.http.get(f"{PATH}/{made['id']}", headers=b).json() == other


def is_stored(server: Served, id: str) -> bool:
    return server.http.get(f"{PATH}/{id}").status_code == 200


def test_the_least_recently_used_responses_go_first() -> None:
    with serving(scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS), max_stored_responses=3) as served:
        ids = [kept(served, input=f"no tool {place}")["id"] for place in range(3)]
        assert is_stored(served, ids[0])
        ids.append(kept(served, input="no tool", previous_response_id=ids[0])["id"])
        assert [is_stored(served, each) for each in ids] == [True, False, True, True]


def test_stored_responses_fit_into_their_bytes() -> None:
    with serving(scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS), stored_responses_mib=1) as served:
        long = "no tool " + "x" * 40_000
        first = kept(served, input=long)["id"]
        for _ in range(20):  # they share the long turn
            last = kept(served, input="no tool", previous_response_id=first)["id"]
        assert is_stored(served, first)
        others = [kept(served, input=long)["id"] for _ in range(26)]
        assert not is_stored(served, last) and is_stored(served, others[-1]) and not is_stored(served, others[0])


def test_the_answers_fit_the_official_client(assistant: Served) -> None:
    client = assistant.openai()
    first = client.responses.create(model="scripted", input="no tool")
    second = client.responses.create(model="scripted", input="no tool", previous_response_id=first.id)
    assert client.responses.retrieve(second.id) == second
    listed = client.responses.input_items.list(second.id, limit=2, include=["reasoning.encrypted_content"])
    assert [each.type for each in listed] == ["message", "message", "reasoning", "message"]
    assert client.responses.input_tokens.count(model="scripted", input="no tool").input_tokens > 0
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
