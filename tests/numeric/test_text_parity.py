"""Tokenizers and chat templates against transformers on the same directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from chat_samples import CONVERSATIONS, TEMPLATES, TOOLS
from ferrum.core.errors import RequestError
from ferrum.text.chat_template import ChatTemplate, load_chat_template
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import FileTokenizer, load_tokenizer
from text_samples import LAYOUTS, LINES, write

Pair = tuple[FileTokenizer, PreTrainedTokenizerFast]


def load(directory: Path) -> Pair:
    tokenizer = load_tokenizer(DirectoryFiles(directory))
    assert tokenizer is not None
    return tokenizer, PreTrainedTokenizerFast.from_pretrained(str(directory))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: load(write(root / name, build())) for name, build in LAYOUTS.items()}


texts = st.one_of(st.text(max_size=30), st.sampled_from(LINES), st.text("ab <s>/é世🦀\n", max_size=30))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(text=texts, special=st.booleans())
def test_encoding(pairs: dict[str, Pair], layout: str, text: str, special: bool) -> None:
    ours, theirs = pairs[layout]
    ids = ours.encode(text, add_special_tokens=special)
    assert ids == theirs.encode(text, add_special_tokens=special)
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("layout", ["byte_level", "unigram"])
@given(data=st.data())
def test_decoding_any_tokens(pairs: dict[str, Pair], layout: str, data: st.DataObject) -> None:
    ours, theirs = pairs[layout]
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=10))
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_special_tokens_of_the_configuration(tmp_path: Path, layout: str) -> None:
    added = {
        "400": {"content": "<|tool|>", "special": True, "lstrip": True, "rstrip": False, "normalized": False},
        "401": {"content": "<plain>", "special": False, "normalized": True},
    }
    write(
        tmp_path,
        LAYOUTS[layout](),
        added_tokens_decoder=added,
        pad_token={"__type": "AddedToken", "content": "<pad>", "normalized": False},
        additional_special_tokens=["<extra>"],
    )
    ours, theirs = load(tmp_path)
    assert ours.special_ids == {place for place, token in theirs.added_tokens_decoder.items() if token.special}
    assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))
    assert ours.vocab_size == len(theirs)
    text = "fox <|tool|> a<plain>b<pad><extra> dog"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), skip_special_tokens=True)


def added(text: str, **flags: bool) -> dict[str, Any]:
    return {"content": text, "special": True, "lstrip": True, "rstrip": False, "normalized": False} | flags


def bare(text: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", "content": text, **flags}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "config",
    [
        {"image_token": "<X>", "additional_special_tokens": ["<extra>"], "pad_token": "<pad>"},
        {"image_token": bare("<X>", lstrip=True), "extra_special_tokens": {"audio_token": "<extra>"}},
        {"extra_special_tokens": {"audio_token": bare("<X>")}, "additional_special_tokens": ["<extra>"]},
        {"model_specific_special_tokens": {"audio_token": "<X>"}, "pad_token": "<pad>"},
        {"image_token": "<think>", "audio_token": None, "video_token": "", "text_token": {"content": "<X>"}},
        {"additional_special_tokens": ["<think>", "<X>"]},
        {"extra_special_tokens": ["<X>"], "added_tokens_decoder": {"400": added("<X>", special=False)}},
        {"pad_token": "<X>", "added_tokens_decoder": {"400": added("<X>", special=False)}},
        {"pad_token": "<think>", "added_tokens_decoder": {"381": added("<think>", special=False)}},
        {"pad_token": bare("<X>", lstrip=True, special=False), "eos_token": "<think>"},
        {"added_tokens_decoder": {"380": added("<think>", special=False, single_word=True)}},
        {"added_tokens_decoder": {"380": added("<think>", single_word=True)}, "pad_token": "<think>"},
        {"unk_token": "", "pad_token": bare(""), "additional_special_tokens": ["<X>", ""]},
    ],
    ids=str,
)
def test_named_tokens_are_special_and_listed_ones_keep_their_flags(
    tmp_path: Path, layout: str, config: dict[str, Any]
) -> None:
    ours, theirs = load(write(tmp_path, LAYOUTS[layout](), **config))
    assert ours.special_ids == {place for place, token in theirs.added_tokens_decoder.items() if token.special}
    assert ours.vocab_size == len(theirs)
    text = "fox <X> a<think>b <pad><extra> dog</s>"
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}], ids=str)
def test_named_token_keeps_its_flags(tmp_path: Path, layout: str, flags: dict[str, bool]) -> None:
    backend = LAYOUTS[layout]()
    backend.add_tokens([AddedToken("<X>", normalized=False, **flags)])
    ours, theirs = load(write(tmp_path, backend, pad_token="<X>"))
    for text in ("fox <X> dog", "fox<X>dog"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", [{}, {"pad_token": "<pad>"}, {"bos_token": None, "eos_token": "<think>"}], ids=str)
def test_tokens_of_added_tokens_json(tmp_path: Path, layout: str, config: dict[str, Any]) -> None:
    listed = {"<pad>": 401, "<X>": 400, "fox": 402, "<s>": 0, "<think>": 381}
    (write(tmp_path, LAYOUTS[layout](), **config) / "added_tokens.json").write_text(json.dumps(listed))
    ours, theirs = load(tmp_path)
    assert ours.special_ids == {place for place, token in theirs.added_tokens_decoder.items() if token.special}
    text = "<s>fox <X> a<think>b <pad> dog"
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_special_token_of_the_tokenizer_file_stays_special(tmp_path: Path, layout: str) -> None:
    backend = LAYOUTS[layout]()
    backend.add_special_tokens([AddedToken("<X>", normalized=False)])
    place = str(backend.token_to_id("<X>"))
    listed = {place: {"content": "<X>", "normalized": False, "special": False}}
    ours, theirs = load(write(tmp_path, backend, added_tokens_decoder=listed))
    ids = ours.encode("fox <X> dog")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_split_special_tokens_are_encoded_as_text(tmp_path: Path, layout: str) -> None:
    ours, theirs = load(write(tmp_path, LAYOUTS[layout](), split_special_tokens=True))
    for text in ("fox <s> dog</s>", "a<think>b"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_templates_can_use_model_specific_tokens(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ image_token }}{{ audio_token }}{{ messages[0].content }}"
    names = {"image_token": "<X>", "extra_special_tokens": {"audio_token": "<extra>"}}
    directory = write(tmp_path, LAYOUTS["byte_level"](), chat_template=source, **names)
    template, messages = load_chat_template(DirectoryFiles(directory)), [{"role": "user", "content": "q"}]
    assert template is not None
    assert template.render(messages) == load(directory)[1].apply_chat_template(messages, tokenize=False)


@pytest.fixture(scope="module")
def chat_pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ChatTemplate, PreTrainedTokenizerFast]]:
    pairs = {}
    for name, source in TEMPLATES.items():
        directory = write(tmp_path_factory.mktemp(name), LAYOUTS["byte_level"](), chat_template=source)
        template = load_chat_template(DirectoryFiles(directory))
        assert template is not None
        pairs[name] = template, PreTrainedTokenizerFast.from_pretrained(str(directory))
    return pairs


OPTIONS: dict[str, dict[str, Any]] = {
    "prompt": {"add_generation_prompt": True},
    "no prompt": {"add_generation_prompt": False},
    "continue": {"continue_final_message": True},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "variables": {"add_generation_prompt": True, "enable_thinking": False, "date_string": "1 Jan 2030"},
}


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_chat_templates(chat_pairs: Any, family: str, conversation: str, options: str) -> None:
    ours, theirs = chat_pairs[family]
    messages, arguments = CONVERSATIONS[conversation], OPTIONS[options]
    extra = {name: arguments[name] for name in ("enable_thinking", "date_string") if name in arguments}
    own = {name: value for name, value in arguments.items() if name not in extra}
    try:
        expected = theirs.apply_chat_template(messages, tokenize=False, **arguments)
    except (ValueError, TypeError, TemplateError):
        # For what transformers cannot render (no content to continue, a dropped message) we raise a named error.
        with pytest.raises(RequestError):
            ours.render(messages, template_kwargs=extra, **own)
    else:
        assert ours.render(messages, template_kwargs=extra, **own) == expected


@pytest.mark.parametrize("fields", [{"thinking": "a"}, {"reasoning": "a"}, {"reasoning_content": "a", "thinking": "b"}])
def test_reasoning_under_any_name(tmp_path: Path, fields: dict[str, str]) -> None:
    source = "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.reasoning }};{% endfor %}"
    theirs = load(write(tmp_path, LAYOUTS["byte_level"](), chat_template=source))[1]
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"} | fields]
    assert ChatTemplate(source).render(messages) == theirs.apply_chat_template(messages, tokenize=False)


def test_every_template_renders_the_common_conversations(chat_pairs: Any) -> None:
    for family, name in [(family, name) for family in TEMPLATES for name in ("question", "system", "turns")]:
        assert len(chat_pairs[family][0].render(CONVERSATIONS[name])) > 20


@given(
    messages=st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=12)}),
        min_size=1,
        max_size=4,
    )
)
@pytest.mark.parametrize("family", ["chatml", "qwen", "llama"])
def test_any_messages(chat_pairs: Any, family: str, messages: list[dict[str, Any]]) -> None:
    ours, theirs = chat_pairs[family]
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render(json.loads(json.dumps(messages))) == expected
