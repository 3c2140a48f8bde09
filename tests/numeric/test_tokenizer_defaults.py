"""Tokenizer files with dropout, class defaults and rules that contradict the configuration."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from ferrum.text.chat_template import load_chat_template
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import FileTokenizer, load_tokenizer
from text_samples import LAYOUTS, LINES, byte_fallback, write

QUESTION = [{"role": "user", "content": "fox"}]


def loaded(directory: Path) -> FileTokenizer:
    tokenizer = load_tokenizer(DirectoryFiles(directory))
    assert tokenizer is not None
    return tokenizer


def edited(directory: Path, layout: str, model: dict[str, Any], **config: Any) -> Path:
    """Write a checkpoint whose tokenizer file has other entries in its model."""
    write(directory, LAYOUTS[layout](), **config)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"] |= model
    path.write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("byte_level", {"dropout": 0.5}),
        ("byte_fallback", {"dropout": 0.1}),
        ("unigram", {"alpha": 0.5, "nbest_size": -1}),
    ],
)
def test_text_has_the_same_ids_in_a_thousand_requests(tmp_path: Path, layout: str, model: dict[str, Any]) -> None:
    tokenizer = loaded(edited(tmp_path / "random", layout, model, tokenizer_class="Unknown"))
    text = " ".join(LINES)  # long enough for both ways of the library
    expected = loaded(edited(tmp_path / "plain", layout, {})).encode(text)
    assert {tuple(tokenizer.encode(text[:300])) for _ in range(1000)} == {tuple(tokenizer.encode(text[:300]))}
    assert all(tokenizer.encode(text * 10) == tokenizer.encode(text * 10) for _ in range(3))
    assert tokenizer.encode(text) == expected


@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast"])
def test_class_gives_the_special_tokens_that_the_configuration_lacks(tmp_path: Path, name: str) -> None:
    write(tmp_path, byte_fallback())
    source = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ messages[0].content }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "chat_template": source}))
    theirs, template = AutoTokenizer.from_pretrained(str(tmp_path)), load_chat_template(DirectoryFiles(tmp_path))
    assert template is not None
    assert template.render(QUESTION) == theirs.apply_chat_template(QUESTION, tokenize=False) == "<s>|</s>|<unk>|fox"
    ours = loaded(tmp_path)
    assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))
    assert ours.vocab_size == len(theirs)


def test_default_tokens_are_neither_added_nor_put_in_place_of_null(tmp_path: Path) -> None:
    directory = write(tmp_path, LAYOUTS["byte_level"](), tokenizer_class="GemmaTokenizer", bos_token=None)
    tokenizer = loaded(directory)
    assert tokenizer.bos_token_id is None
    assert tokenizer.vocab_size == loaded(write(tmp_path / "plain", LAYOUTS["byte_level"]())).vocab_size


@pytest.mark.parametrize(
    ("layout", "setting", "warned"),
    [
        ("byte_fallback", False, True),
        ("byte_fallback", True, False),
        ("byte_level", True, True),
        ("byte_level", False, False),
        ("unigram", False, True),
        ("unigram", None, False),
    ],
)
def test_add_prefix_space_without_effect_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: str, setting: bool | None, warned: bool
) -> None:
    loaded(write(tmp_path, LAYOUTS[layout](), add_prefix_space=setting))
    assert ("add_prefix_space" in caplog.text) == warned


def large(pattern: str) -> Tokenizer:
    """Build a tokenizer with more than 100,000 tokens and a split rule."""
    vocabulary = {f"t{number}": number for number in range(100_001)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


WRONG = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
RIGHT = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\s+"


@pytest.mark.parametrize(
    ("pattern", "config", "warned"),
    [
        (WRONG, {"model_type": "mistral3", "transformers_version": "4.52.4"}, True),
        (WRONG, {"model_type": "mistral3", "transformers_version": "5.0.0"}, False),
        (WRONG, {"model_type": "llama", "transformers_version": "4.52.4"}, False),
        (RIGHT, {"model_type": "mistral3", "transformers_version": "4.52.4"}, False),
    ],
)
def test_wrong_split_rule_of_mistral_is_named_with_its_fix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pattern: str, config: dict[str, Any], warned: bool
) -> None:
    (write(tmp_path, large(pattern)) / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING):
        loaded(tmp_path)
        loaded(tmp_path)
    assert caplog.text.count("fix_mistral_regex=True") == int(warned)
