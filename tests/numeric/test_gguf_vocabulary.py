"""Special tokens of GGUF metadata: ends by their texts, defaults of beginnings, repeated texts, recommended sampling.

The facts are those of llama.cpp (src/llama-vocab.cpp, src/llama-model.cpp).
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from test_gguf_tokenizer import MetadataFiles

from ferrum.core.errors import CheckpointError, FerrumError
from ferrum.text.generation_config import gguf_generation_config
from ferrum.text.gguf_tokenizer import special_ids, tokenizer_config
from ferrum.text.tokenizer import Tokenizer, load_tokenizer

CONTROL, USER_DEFINED = 3, 4


def vocabulary(*texts: str, kind: str = "gpt2", types: list[int] | None = None, **ids: int) -> dict[str, Any]:
    """Return the metadata of a vocabulary of letters and some control tokens from id 4 on."""
    tokens = [*"abcd", *texts]
    return {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 4 + (types or [CONTROL] * len(texts)),
        "tokenizer.ggml.merges": [],
        **{f"tokenizer.ggml.{key}_token_id": index for key, index in ids.items()},
    }


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    found = load_tokenizer(MetadataFiles(metadata))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"], [4, 5, 6]),
        (["<eos>", "<end_of_turn>", "<start_of_turn>"], [4, 5]),
        (["<|return|>", "<|call|>", "<|end|>"], [4, 5]),
        (["<|flush|>", "<|calls|>", "<|end|>"], [4, 5]),
        (["<|return|>", "<|end|>"], [4, 5]),
        (["<eos>", "<turn|>", "<|tool_response>", "</s>"], [4, 5, 6]),
        (["[EOS]", "[EOT]", "<|im_user|>"], [4, 5]),
    ],
)
def test_an_answer_ends_at_tokens_known_by_their_text(texts: list[str], ends: list[int]) -> None:
    assert special_ids(vocabulary(*texts, eos=4))["eos_token_id"] == ends


def test_ends_are_control_tokens_whatever_their_type_but_a_tag_of_html_is_none() -> None:
    metadata = vocabulary("<eos>", "<end_of_turn>", "</s>", types=[CONTROL, USER_DEFINED, USER_DEFINED], eos=4)
    assert special_ids(metadata)["eos_token_id"] == [4, 5]
    assert tokenizer_of(metadata).special_ids == {4, 5}


BEGINS = {
    **dict.fromkeys(["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"], True),
    **dict.fromkeys(["gpt-2", "qwen2", "gpt-4o", "deepseek-v3", "smollm", "dbrx", "glm4"], False),
}


@pytest.mark.parametrize(("rule", "begins"), BEGINS.items())
def test_a_file_that_does_not_say_so_begins_texts_by_its_rule(rule: str, begins: bool) -> None:
    metadata = {**vocabulary("<s>", bos=4), "tokenizer.ggml.pre": rule}
    assert tokenizer_of(metadata).encode("a") == ([4, 0] if begins else [0])
    for said in (True, False):
        metadata["tokenizer.ggml.add_bos_token"] = said
        assert tokenizer_of(metadata).encode("a") == ([4, 0] if said else [0])


def test_special_tokens_without_keys_have_the_ids_of_llama_2() -> None:
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a", "\u2581"]}
    for ids in ({}, {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.bos_token_id": 1 << 31}):
        assert special_ids({**metadata, **ids}) == {"bos_token_id": 1, "eos_token_id": [2]}
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        assert names.items() <= tokenizer_config({**metadata, **ids}).items()
    assert tokenizer_of(metadata).encode("a a") == [1, 4, 3, 4, 3], "a file without scores has equal ones"


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma4"])
def test_both_tokens_of_a_text_decode_to_it_and_the_last_one_is_encoded_to(kind: str) -> None:
    metadata = vocabulary(
        "ab", "<x>", "ab", "<x>", "", "ab", types=[1, CONTROL, 1, CONTROL, 1, 1], kind=kind, bos=5, unknown=3
    )
    metadata |= {"tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.scores": [0.0] * 10}
    metadata |= {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    tokenizer = tokenizer_of(metadata)
    assert [tokenizer.token_text(index) for index in (4, 6, 9, 5, 7)] == ["ab", "ab", "ab", "<x>", "<x>"]
    assert tokenizer.decode([0, 4, 5, 6, 7, 9], skip_special_tokens=False) == "aab<x>ab<x>ab"
    assert tokenizer.encode("abc<x>", add_special_tokens=False) == [9, 2, 7]
    assert tokenizer.bos_token_id == 5 and {5, 7} <= tokenizer.special_ids


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": [1]},
        {"tokens": "abc"},
        {"token_type": [1]},
        {"token_type": ["a"] * 5},
        {"eos_token_id": True},
        {"eos_token_id": "4"},
        {"add_bos_token": "yes"},
        {"scores": [0.0]},
        {"scores": ["0"] * 5},
        {"add_space_prefix": 1},
    ],
)
def test_damage_is_refused_with_its_key(wrong: dict[str, Any]) -> None:
    metadata = vocabulary("<s>", kind="llama") | {f"tokenizer.ggml.{key}": value for key, value in wrong.items()}
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{next(iter(wrong))}"):
        load_tokenizer(MetadataFiles(metadata))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma4"])
def test_odd_metadata_of_a_tokenizer_are_read_or_refused(kind: str) -> None:
    whole = vocabulary("<s>", "ab", kind=kind, bos=4, eos=4, unknown=4, padding=4) | {
        "tokenizer.ggml.scores": [0.0] * 6,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.chat_template": "{{ messages }}",
        "general.sampling.temp": 0.5,
    }
    assert load_tokenizer(MetadataFiles(whole)) is not None
    for key, value in product(whole, ("text", -1, [1], [""], 2**70, None, 0.5, float("nan"), True, [], [[]])):
        for changed in ({**whole, key: value}, {each: whole[each] for each in whole if each != key}):
            try:
                load_tokenizer(MetadataFiles(changed))
                special_ids(changed)
                gguf_generation_config(changed)
            except FerrumError as error:
                assert "tokenizer" in str(error)


def test_recommended_sampling_has_the_names_and_numbers_of_the_directory() -> None:
    assert gguf_generation_config({"general.name": "a"}) is None
    nearest = {"temp": 0.6000000238418579, "top_p": 0.949999988079071, "penalty_repeat": 1.0499999523162842}
    metadata = {f"general.sampling.{key}": value for key, value in {**nearest, "top_k": 20, "mirostat": 2}.items()}
    assert gguf_generation_config({**metadata, "tokenizer.ggml.suppress_tokens": [7]}) == {
        **(gguf_generation_config(metadata) or {}),
        "suppress_tokens": [7],
    }
    assert gguf_generation_config(metadata) == {
        "temperature": 0.6,
        "top_p": 0.95,
        "repetition_penalty": 1.05,
        "top_k": 20,
        "mirostat": 2,
    }
