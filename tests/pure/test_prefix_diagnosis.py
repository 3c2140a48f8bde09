"""The diagnosis of a changed prompt names the first differing token and the part of the conversation that holds it."""

from __future__ import annotations

from array import array
from itertools import count
from unicodedata import normalize

import pytest

from diagnosis_kit import USED, checked, first_differing, merging_tokenizer, read
from edited_conversations import Chat, Writer
from ferrum.client.diagnosis.prefix_difference import (
    Conversation,
    Difference,
    Place,
    Rendered,
    common_suffix,
    first_difference,
    normal_form,
)
from ferrum.client.diagnosis.prompt_history import PromptHistory, PromptPaths, Remembered, closest, fragments
from ferrum.core.errors import RequestError
from ferrum.text.chat_template import ChatTemplate
from real_templates import TEMPLATES

KEY = ("tenant", "")


@pytest.mark.parametrize("name", USED)
def test_random_edit_is_found_where_it_was_made(name: str) -> None:
    assert sum(checked(TEMPLATES[name], seed) for seed in range(14)) >= 7


@pytest.mark.soak
@pytest.mark.parametrize("name", USED)
def test_thousands_of_random_edits_are_found_where_they_were_made(name: str) -> None:
    """16 templates: 10,000 edits that change a prompt before its end."""
    found = 0
    for seed in count(1000):
        found += checked(TEMPLATES[name], seed)
        if found == 625:
            break


def remembered(name: str, chat: Chat, text: str, ids: list[int]) -> Remembered:
    return Remembered(name, Rendered(chat.kept(), text), array("I", ids).tobytes(), True, PromptPaths())


@pytest.mark.parametrize("seed", range(40))
def test_first_differing_token_is_that_of_both_texts_tokenized(seed: int) -> None:
    writer, tokenizer = Writer(seed), merging_tokenizer()
    template = TEMPLATES[USED[seed % len(USED)]]
    chats = [writer.chat() for _ in range(2)]
    chats.append(writer.edited(chats[0]).chat)
    texts = [chat.text(template) for chat in chats]
    *earlier, new = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    prompts = [remembered(str(place), chats[place], texts[place], ids) for place, ids in enumerate(earlier)]
    found = closest(prompts, array("I", new).tobytes())
    assert found is not None
    lengths = [min(len(ids), len(new)) if (at := first_differing(ids, new)) is None else at for ids in earlier]
    assert found == (prompts[lengths.index(max(lengths))], max(lengths))


def test_text_that_only_the_template_changes_is_no_change_of_the_conversation() -> None:
    """As of a template that writes the time."""
    kept = Conversation(('{"role":"user","content":"hi"}',))
    found = first_difference(
        Rendered(kept, "at 10:15 <hi>"), Rendered(kept, "at 10:16 <hi>"), lambda each: f"at 10:16 <{each.messages[0]}>"
    )
    assert found is not None and found.cause is None


def test_spellings_that_the_tokenizer_does_not_tell_apart_are_no_difference() -> None:
    tokenizer = merging_tokenizer()
    plain = normal_form(lambda text: tokenizer.encode(text).ids)
    composing = normal_form(lambda text: tokenizer.encode(normalize("NFC", text)).ids)
    wide = normal_form(lambda text: tokenizer.encode(normalize("NFKC", text)).ids)
    assert (plain, composing, wide) == (None, "NFC", "NFKC")
    spellings = (("e\u0301", "one"), ("\u00e9", "two"))
    old, new = (Chat([{"role": "user", "content": each} for each in texts], []) for texts in spellings)
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    rendered = [Rendered(each.kept(), each.text(template)) for each in (old, new)]
    assert rendered[0].text == "[e\u0301][one]"
    for form, place in ((plain, 0), (composing, 1)):
        found = first_difference(*rendered, lambda kept: read(kept).text(template), form)
        assert found is not None and found.place == found.cause == Place("message", place)


def test_template_that_refuses_every_mixture_still_gets_the_last_change() -> None:
    old, new = (Conversation(tuple(f'{{"content":"{each}"}}' for each in letters)) for letters in ("abc", "def"))

    def render(kept: Conversation) -> str:
        raise RequestError("refused", param="messages")

    found = first_difference(Rendered(old, "abc"), Rendered(new, "def"), render)
    assert found == Difference(Place("message", 2), Place("message", 2))


def test_history_is_bounded_in_number_and_bytes() -> None:
    chat = Writer(1).chat()
    history = PromptHistory(max_bytes=100_000, max_prompts=20, max_per_key=5)
    for number in range(100):
        key = (f"tenant {number % 7}", "")
        history.add(key, remembered(str(number), chat, "x" * 1000, [0] * 100))
        assert len(history) <= 20 and history.size <= 100_000 and len(history.of(key)) <= 5
        assert history.find(key, str(number)) is not None
        assert sum(each.size for place in range(7) for each in history.of((f"tenant {place}", ""))) == history.size
    history.add(KEY, remembered("large", chat, "x" * 100_000, []))
    assert history.find(KEY, "large") is None and len(history) > 0


def test_prompts_that_others_are_compared_with_stay_longest() -> None:
    chat, history = Writer(1).chat(), PromptHistory(max_per_key=3)
    for name in "abc":
        history.add(KEY, remembered(name, chat, "x", [0]))
    history.use(KEY, "a")
    history.add(KEY, remembered("d", chat, "x", [0]))
    assert [each.id for each in history.of(KEY)] == ["d", "a", "c"]


def test_merged_message_is_named_by_its_part_that_changed() -> None:
    old = PromptPaths(fragments([[("input[0]", "a"), ("input[1]", "b")]]), list="input")
    new = PromptPaths(fragments([[("input[0]", "a"), ("input[1]", "c"), ("input[2]", "d")]]), list="input")
    place = Place("message", 0)
    assert new.place(Difference(place, place), old) == "input[1]"
    assert new.place(Difference(place, None), old) == "input[0]"
    end = Place("message", 1)
    assert new.cause(Difference(Place("generation_prompt"), end), old) == "input"


@pytest.mark.parametrize(
    ("first", "second", "length"), [("", "a", 0), ("ba", "ca", 1), ("x" * 9000, "y" + "x" * 8999, 8999)]
)
def test_common_suffix(first: str, second: str, length: int) -> None:
    assert common_suffix(first, second) == common_suffix(second, first) == length
