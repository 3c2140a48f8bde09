"""Fill-in-the-middle: `suffix` of a completion with the special tokens of each family."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine_fakes import MARKS, FakeRecipe, LetterTokenizer, MarkedTokenizer, expected
from ferrum.text.infill import CONVENTIONS, infill_prompt
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import FileTokenizer, load_tokenizer
from ferrum.text.tokenizer_config import TokenizerConfig
from serve_kit import Served, chat_parts, error_of, serving
from text_samples import byte_fallback

QWEN = list(MARKS)
DEEPSEEK = ["<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"]
EXPECTED = {
    "Qwen": (QWEN, QWEN[0] + "ab" + QWEN[1] + "yz" + QWEN[2]),
    "StarCoder": (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "<fim_prefix>ab<fim_suffix>yz<fim_middle>"),
    "DeepSeek": (DEEPSEEK, DEEPSEEK[0] + "ab" + DEEPSEEK[1] + "yz" + DEEPSEEK[2]),
    "Codestral": (["[PREFIX]", "[SUFFIX]"], "[SUFFIX]yz[PREFIX]ab"),
}
"""Special tokens of a family, and the prompt for "ab" with suffix "yz" by its model card."""


@pytest.mark.parametrize("family", EXPECTED)
@pytest.mark.parametrize("special", [True, False])
def test_infill_prompt_matches_the_model_card(tmp_path: Path, family: str, special: bool) -> None:
    marks, text = EXPECTED[family]
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(letters, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(DirectoryFiles(tmp_path))
    assert tokenizer is not None
    ids = infill_prompt(tokenizer, tokenizer.encode("ab"), "yz", begin=True)
    assert ids == tokenizer.encode(text) and len(ids) == len(marks) + 4


def test_suffix_gets_no_leading_space() -> None:
    """SentencePiece puts one before every text; mistral_common removes it from Codestral's suffix too."""
    backend = byte_fallback()
    backend.add_special_tokens(["[PREFIX]", "[SUFFIX]"])
    tokenizer = FileTokenizer(backend, TokenizerConfig())
    for suffix in ("):", " x", "", "é"):
        ids = infill_prompt(tokenizer, tokenizer.encode("def f(", add_special_tokens=False), suffix, begin=False)
        assert ids is not None
        assert tokenizer.decode(ids, skip_special_tokens=False) == f"[SUFFIX]{suffix}[PREFIX] def f("


def test_word_level_tokenizer_has_no_infill_tokens(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "ab": 1}, unk_token="<unk>"))
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(DirectoryFiles(tmp_path))
    assert tokenizer is not None
    assert infill_prompt(tokenizer, [1], "ab", begin=False) is None


@pytest.fixture(scope="module")
def filling() -> Iterable[Served]:
    with serving(replace(chat_parts(FakeRecipe(fails=False)), tokenizer=MarkedTokenizer())) as server:
        yield server


def test_official_sdk_gets_the_text_between(filling: Served) -> None:
    filling.requests.clear()
    reply = filling.openai().completions.create(model="fake", prompt="ab", suffix="yz", max_tokens=8, temperature=0)
    [request] = filling.requests
    a, b, y, z = LetterTokenizer().encode("abyz")
    assert request.prompt == (0, 90, a, b, 91, y, z, 92)
    assert reply.choices[0].text == LetterTokenizer().decode(expected(request))
    assert reply.usage is not None and reply.usage.prompt_tokens == 8


def test_truncation_keeps_the_begin_token(filling: Served) -> None:
    y, z = LetterTokenizer().encode("yz")
    kept = {1: (0,), 2: (0, z), 3: (0, y, z), 99: (0, *LetterTokenizer().encode("abyz"))}
    for keep, prompt in kept.items():
        assert filling.complete(prompt="abyz", truncate_prompt_tokens=keep).status_code == 200
        assert filling.requests[-1].prompt == prompt
    assert filling.complete(prompt="abyz", truncate_prompt_tokens=2, add_special_tokens=False).status_code == 200
    assert filling.requests[-1].prompt == (y, z)
    assert filling.complete(prompt=[0, 5, 6], truncate_prompt_tokens=2).status_code == 200
    assert filling.requests[-1].prompt == (5, 6)


def test_several_token_id_prompts_share_the_suffix(filling: Served) -> None:
    filling.requests.clear()
    assert filling.complete(prompt=[[5], [6, 7]], suffix="", add_special_tokens=False).status_code == 200
    assert [each.prompt for each in filling.requests] == [(90, 5, 91, 92), (90, 6, 7, 91, 92)]


def test_fields_that_conflict_with_suffix_are_refused(filling: Served, server: Served) -> None:
    for extra in ({"echo": True}, {"truncate_prompt_tokens": 3}):
        assert error_of(filling.complete(suffix="x", **extra), 400)["param"] == "suffix"
    refused = error_of(server.complete(suffix="x"), 400)
    assert (refused["param"], refused["code"]) == ("suffix", "unsupported_parameter")


def test_no_convention_is_a_subset_of_another() -> None:
    """The first convention found would otherwise not be the tokenizer's."""
    sets = [{marks.prefix, marks.suffix, marks.middle} - {""} for marks in CONVENTIONS]
    assert not any(one < other for one in sets for other in sets)
