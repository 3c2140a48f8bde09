"""The page and its server: keys, errors in plain words, a server that is killed and comes back, settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from page_kit import DESKTOP, ask, begin, finish, press, ready, settings
from proxy_kit import Proxy

Open = Callable[..., Any]


@pytest.fixture
def proxy(page_url: str) -> Iterator[Proxy]:
    proxy = Proxy(page_url)
    yield proxy
    proxy.kill()


def state(page: Any) -> Any:
    return page.locator("#state")


def test_a_killed_server_is_named_and_found_again(open_page: Open, proxy: Proxy) -> None:
    page = ready(open_page(proxy.url, refused=True))
    proxy.kill()
    state(page).filter(has_text="does not answer").wait_for()
    assert page.locator("#send").is_disabled()
    proxy.start()
    page.wait_for_selector("#state[data-state=ready]")
    assert ask(page, "3 words") == "word0 word1 word2"


def test_a_server_killed_before_an_answer_leaves_the_question(open_page: Open, proxy: Proxy) -> None:
    page = ready(open_page(proxy.url, refused=True))
    proxy.kill()
    page.fill("#prompt", "3 words")
    page.focus("#prompt")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert").filter(has_text="ferrum serve is running")
    alert.wait_for()
    assert page.locator(".bubble").inner_text() == "3 words" and page.input_value("#prompt") == ""
    proxy.start()
    page.wait_for_selector("#state[data-state=ready]")
    page.get_by_role("button", name="Send again").click()
    page.wait_for_selector("#stop", state="visible")
    finish(page)
    assert page.locator(".turn.assistant .body").inner_text() == "word0 word1 word2" and alert.is_hidden()
    assert page.locator(".turn").count() == 2


def test_a_server_killed_during_an_answer_leaves_what_came(open_page: Open, proxy: Proxy) -> None:
    page = ready(open_page(proxy.url, refused=True))
    begin(page, "400 words")
    page.wait_for_timeout(500)
    proxy.kill()
    page.locator(".notice").filter(has_text="The connection broke").wait_for()
    assert "connection to the server broke" in page.get_by_role("alert").inner_text()
    proxy.start()
    page.wait_for_selector("#state[data-state=ready]")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector("#stop", state="visible")
    finish(page)
    assert page.locator(".turn.assistant .body").inner_text() == " ".join(f"word{number}" for number in range(400))


def test_a_key_is_asked_for_and_kept_in_the_tab(open_page: Open, keyed_url: str) -> None:
    page = open_page(keyed_url, refused=True)
    dialog = page.locator("#ask")
    dialog.wait_for()
    assert page.evaluate("document.activeElement.type") == "password" and page.locator("#send").is_disabled()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    state(page).filter(has_text="This API key is not accepted").wait_for()
    page.get_by_role("button", name="Enter key").click()
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    settings(page, max_tokens="8")
    ask(page, "hi")
    page.reload()
    ready(page)
    assert dialog.is_hidden()
    assert page.evaluate("JSON.stringify(localStorage)").count("secret") == 0


def test_errors_are_in_plain_words_below_the_question(open_page: Open, busy_url: str) -> None:
    page = ready(open_page(busy_url, refused=True))
    settings(page, max_tokens="99999")
    page.fill("#prompt", "hi")
    page.focus("#prompt")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert").filter(has_text="longer than the model's context")
    alert.wait_for()
    assert "Shorten" in alert.inner_text() and page.locator(".bubble").inner_text() == "hi"
    page.get_by_role("button", name="Dismiss").click()
    assert alert.is_hidden()


def test_a_failed_regeneration_leaves_the_answer(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, refused=True)
    ask(page, "3 words")
    settings(page, max_tokens="999999")
    press(page.locator(".turn.assistant"), "Regenerate")
    page.get_by_role("alert").filter(has_text="context").wait_for()
    assert page.locator(".turn.assistant .body").inner_text() == "word0 word1 word2"
    assert page.locator(".turn .branch").count() == 0 and page.input_value("#prompt") == ""


REFUSED = json.dumps({"error": {"message": "loading", "type": "server_error", "code": None, "param": None}})


def ask_in_vain(page: Any, ending: str) -> Callable[[], None]:
    """Send a question that gets no answer; return what ends it."""
    held: list[Any] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    page.fill("#prompt", "3 words")
    page.focus("#prompt")
    with page.expect_request("**/v1/chat/completions"):
        page.keyboard.press("Enter")

    def end() -> None:
        if ending == "refused":
            held[0].fulfill(status=503, body=REFUSED)
        page.unroute("**/v1/chat/completions")

    return end


@pytest.mark.parametrize("shown", ["it", "another", "new", "typing"])
def test_a_failed_question_stays_with_its_error_whatever_is_shown(open_page: Open, page_url: str, shown: str) -> None:
    page = open_page(page_url, refused=True, viewport=DESKTOP)
    ask(page, "2 words")
    page.click("#new")
    end = ask_in_vain(page, "refused")
    if shown == "another":
        page.get_by_role("button", name="2 words", exact=True).click()
    elif shown == "new":
        page.click("#new")
    page.fill("#prompt", "a draft")
    end()
    page.wait_for_timeout(300)
    assert page.input_value("#prompt") == "a draft"
    assert page.locator(".turn").count() == (0 if shown == "new" else 2)
    page.get_by_role("button", name="3 words", exact=True).click()
    for _ in range(2):  # a reload changes nothing
        page.get_by_role("alert").filter(has_text="loading its model").wait_for()
        assert page.locator(".bubble").all_inner_texts() == ["3 words"]
        page.reload()
        ready(page)
    page.get_by_role("button", name="Send again").click()
    page.locator(".turn.assistant").get_by_text("word0 word1 word2").wait_for()


def test_a_question_stopped_before_its_answer_stays(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, refused=True, viewport=DESKTOP)
    ask(page, "2 words")
    end = ask_in_vain(page, "stopped")
    page.click("#stop")
    end()
    page.locator(".notice").filter(has_text="before its answer began").wait_for()
    assert page.locator(".bubble").all_inner_texts() == ["2 words", "3 words"]
    page.fill("#prompt", "4 words")
    page.focus("#prompt")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.keyboard.press("Enter")
    finish(page)
    assert [each["content"] for each in asked.value.post_data_json["messages"]][-1] == "4 words"
    assert len(asked.value.post_data_json["messages"]) == 3, "what has no answer is no part of the conversation"
    assert page.locator(".bubble").all_inner_texts() == ["2 words", "4 words"]
    assert page.locator(".branch").inner_text() == "2 / 2"


def test_a_question_without_an_answer_outlives_a_reload(open_page: Open, page_url: str) -> None:
    page = open_page(page_url, refused=True, viewport=DESKTOP)
    ask(page, "2 words")
    ask_in_vain(page, "left")
    page.reload()
    ready(page).locator(".notice").filter(has_text="No answer came").wait_for()
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Send again").click()
    page.locator(".turn.assistant").get_by_text("word0 word1 word2").wait_for()


@pytest.mark.parametrize("action", ["Regenerate", "Edit", "Continue"])
def test_what_fails_while_another_conversation_is_shown_loses_nothing(
    open_page: Open, page_url: str, action: str
) -> None:
    page = open_page(page_url, refused=True, viewport=DESKTOP)
    settings(page, max_tokens="20")
    text = ask(page, "200 words")
    held: list[Any] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    with page.expect_request("**/v1/chat/completions"):
        if action == "Edit":
            press(page.locator(".turn.user"), "Edit")
            page.fill(".edit-box", "7 words")
            page.keyboard.press("Enter")
        else:
            page.locator(".turn.assistant").get_by_role("button", name=action).click()
    page.click("#new")
    held[0].fulfill(status=503, body=REFUSED)
    page.wait_for_timeout(300)
    assert page.locator(".turn").count() == 0 and page.get_by_role("alert").count() == 0
    page.get_by_role("button", name="200 words", exact=True).click()
    page.get_by_role("alert").filter(has_text="loading its model").wait_for()
    if action == "Edit":
        assert page.locator(".bubble").inner_text() == "7 words"
        press(page.locator(".turn.user"), "Previous branch")
    assert page.locator(".turn.assistant .body").inner_text() == text
    page.locator(".notice").filter(has_text="limit of tokens").wait_for()


def test_settings_reach_the_request(open_page: Open, page_url: str) -> None:
    page = open_page(page_url)
    values = {"temperature": "0.5", "top_p": "0.9", "top_k": "7", "min_p": "0.1", "seed": "42", "max_tokens": "50"}
    settings(page, **values, stop="END\nFIN", system="Be brief.")
    page.reload()
    with page.expect_request("**/v1/chat/completions") as asked:
        begin(page, "3 words")
    body = asked.value.post_data_json
    assert {name: str(body[name]) for name in values} == values
    assert body["stop"] == ["END", "FIN"]
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 words"}]
    assert "logprobs" not in body
    finish(page)


def test_without_a_setting_the_checkpoint_decides(open_page: Open, page_url: str) -> None:
    page = open_page(page_url)
    with page.expect_request("**/v1/chat/completions") as asked:
        begin(page, "3 words")
    assert set(asked.value.post_data_json) == {"model", "messages", "seed", "stream", "stream_options"}
    finish(page)


def test_plain_completion_continues_the_text(open_page: Open, url: str) -> None:
    page = ready(open_page(url))
    page.click("#toggle-right")
    page.get_by_label("New conversations").select_option("complete")
    settings(page, max_tokens="12", temperature="0")
    with page.expect_request("**/v1/completions") as asked:
        first = ask(page, "def read_lines(path):\n")
    assert asked.value.post_data_json["prompt"] == "def read_lines(path):\n"
    with page.expect_request("**/v1/completions") as asked:
        page.get_by_role("button", name="Continue").click()
    assert asked.value.post_data_json["prompt"] == "def read_lines(path):\n" + first
    finish(page)


def test_charts_have_scales_and_follow_the_server(open_page: Open, url: str) -> None:
    page = ready(open_page(url))
    page.click("#toggle-right")
    page.get_by_role("tab", name="Charts").click()
    page.wait_for_timeout(2500)
    ask(page, "hi")
    page.locator("figure path[d*=L]").nth(4).wait_for(state="attached")
    charts = page.locator("figure svg")
    assert charts.count() == 5
    for chart in charts.all():
        assert "the last 60 seconds" in chart.get_attribute("aria-label")
        assert chart.locator("text").all_text_contents()[-3:] == ["60 s ago", "30 s ago", "now"]


TWO_MODELS = """
const real = window.fetch;
window.fetch = async (path, options) => {
  if (path !== "v1/models") return real(path, options);
  return new Response(JSON.stringify({ data: [{ id: "scripted" }, { id: "other" }] }), { status: 200 });
};
"""
"""A server of two models, for all that the page can see."""


def test_one_of_several_models_is_chosen(open_page: Open, page_url: str) -> None:
    page = ready(open_page(page_url, script=TWO_MODELS, refused=True))
    page.click("#toggle-right")
    page.get_by_label("Model").select_option("other")
    assert page.locator("#model").inner_text() == "other"
    page.fill("#prompt", "3 words")
    page.focus("#prompt")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json["model"] == "other"
    page.get_by_role("alert").filter(has_text="other").wait_for()


def test_reasoning_is_switched_off_where_the_template_can(open_page: Open, agent_url: str) -> None:
    page = ready(open_page(agent_url))
    page.click("#toggle-right")
    page.get_by_label("Reasoning").select_option("none")
    assert ask(page, "Hi") == "Hello."
    assert page.locator(".reasoning").is_hidden()


def test_a_text_that_the_template_changes_is_continued_after_the_prompt(open_page: Open, url: str) -> None:
    page = ready(open_page(url, refused=True))
    settings(page, max_tokens="8", temperature="0")
    text = ask(page, "read a file")
    fault = {"message": "the chat template omits or changes the final message", "param": "continue_final_message"}
    refused = json.dumps({"error": {**fault, "type": "invalid_request_error", "code": None}})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, body=refused))
    with page.expect_request("**/v1/completions") as asked:
        page.get_by_role("button", name="Continue").click()
    finish(page)
    body = asked.value.post_data_json
    assert body["prompt"].startswith("# user: read a file") and body["prompt"].split()[-3:] == text.split()[-3:]
    assert body["add_special_tokens"] is False
    assert len(page.locator(".turn.assistant .body").inner_text()) > len(text)


RECOMMENDING = """
const real = window.fetch;
window.fetch = async (path, options) => {
  const response = await real(path, options);
  if (path !== "v1/config") return response;
  const config = { ...(await response.json()), sampling: { temperature: 0.6, top_k: 20 } };
  return new Response(JSON.stringify(config), { status: 200 });
};
"""
"""A checkpoint that recommends its sampling."""


def test_recommended_sampling_is_shown_in_empty_fields(open_page: Open, page_url: str) -> None:
    page = ready(open_page(page_url, script=RECOMMENDING))
    page.click("#toggle-right")
    shown = {name: page.get_attribute(f"#set-{name}", "placeholder") for name in ("temperature", "top_k", "top_p")}
    assert shown == {"temperature": "0.6", "top_k": "20", "top_p": "1"}
    assert page.get_attribute("#set-max_tokens", "placeholder") == "no limit"
