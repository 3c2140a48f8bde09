"""Tokenizers: bytes of single tokens, settings of checkpoint directories, damaged files."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from ferrum.client.session import GrowingText
from ferrum.core.errors import CheckpointError, InvalidToken, RequestError, Unsupported
from ferrum.text.model_files import DirectoryFiles
from ferrum.text.tokenizer import FileTokenizer, byte_of_letter, decoding_rules, load_tokenizer
from ferrum.text.tokenizer_config import TokenizerConfig, read_tokenizer_config
from text_samples import BOS, EOS, LAYOUTS, LINES, byte_fallback, byte_level, unigram, write

BACKENDS = {name: build() for name, build in LAYOUTS.items()}
TOKENIZERS = {name: FileTokenizer(backend, TokenizerConfig()) for name, backend in BACKENDS.items()}
WITH_BYTES = ("byte_level", "byte_fallback")


def load(directory: Path) -> FileTokenizer:
    tokenizer = load_tokenizer(DirectoryFiles(directory))
    assert tokenizer is not None
    return tokenizer


def test_every_byte_has_one_letter() -> None:
    # Well-known letters of byte-level vocabularies: space, newline and the first letter of the gap.
    letters = byte_of_letter()
    assert sorted(letters.values()) == list(range(256))
    assert (letters["Ġ"], letters["Ċ"], letters["Ā"], letters["a"]) == (0x20, 0x0A, 0x00, 0x61)


@pytest.mark.parametrize("layout", WITH_BYTES)
@pytest.mark.parametrize("line", LINES)
def test_bytes_of_tokens_concatenate_to_the_text(layout: str, line: str) -> None:
    tokenizer = TOKENIZERS[layout]
    ids = tokenizer.encode(line, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().removeprefix(" ") == line
    assert tokenizer.decode(ids) == line


def test_single_bytes_and_added_tokens() -> None:
    fallback, level = TOKENIZERS["byte_fallback"], TOKENIZERS["byte_level"]
    assert fallback.token_bytes(3 + 0xE4) == b"\xe4"
    assert fallback.token_text(3 + 0xE4) == "\ufffd"
    # An added token with letters outside the byte alphabet is plain text; the space in it is a space.
    assert level.token_text(BACKENDS["byte_level"].token_to_id("世界 !")) == "世界 !"
    assert level.token_text(level.encode(" fox")[0]).startswith(" ")


def test_decode_skips_special_tokens_by_default() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode(f"{BOS}fox<think>{EOS}")
    assert tokenizer.decode(ids) == "fox<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"{BOS}fox<think>{EOS}"
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.is_special(0)
    assert not tokenizer.is_special(ids[-2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_appended_pieces_equal_the_whole_text(layout: str) -> None:
    tokenizer = TOKENIZERS[layout]
    for pieces in (("un", "der", " the", "dog"), ("a", " ", "  b"), ("quick", "\n", "é", "日本")):
        session = GrowingText(tokenizer)
        for piece in pieces:
            session.append(piece)
        whole = tokenizer.decode(tokenizer.encode("".join(pieces)), skip_special_tokens=False)
        assert session.text == whole, pieces


def test_ids_beyond_the_vocabulary_add_nothing_and_invalid_ids_are_rejected() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
    for nonsense in (-1, 1 << 40, "a", 1.5):
        with pytest.raises(InvalidToken) as caught:
            tokenizer.decode([nonsense])  # type: ignore[list-item]
        assert caught.value.param == "token_ids"


def test_text_with_a_lone_surrogate_is_rejected() -> None:
    with pytest.raises(RequestError, match="character 2") as caught:
        TOKENIZERS["byte_level"].encode("ab\udc00")
    assert caught.value.param == "prompt"
    with pytest.raises(RequestError):
        TOKENIZERS["byte_level"].encode(b"ab")  # type: ignore[arg-type]


def test_directory_without_tokenizer_returns_none(tmp_path: Path) -> None:
    assert load_tokenizer(DirectoryFiles(tmp_path)) is None
    assert read_tokenizer_config(DirectoryFiles(tmp_path)) == TokenizerConfig()


@pytest.mark.parametrize("form", ["tokenizer.model", "tekken.json", "vocab.json"])
def test_tokenizer_in_another_format_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str) -> None:
    assert load_tokenizer(DirectoryFiles(tmp_path)) is None and not caplog.records
    (tmp_path / form).touch()
    assert load_tokenizer(DirectoryFiles(tmp_path)) is None
    assert [form in each.message and "tokenizer.json" in each.message for each in caplog.records] == [True]
    write(tmp_path, byte_level())
    assert load_tokenizer(DirectoryFiles(tmp_path)) is not None and len(caplog.records) == 1


def test_tokenizer_config_is_applied(tmp_path: Path) -> None:
    listed = {"content": "<|tool|>", "special": True, "lstrip": True, "normalized": False}
    write(
        tmp_path,
        byte_level(),
        bos_token={"__type": "AddedToken", "content": BOS},
        pad_token="<pad>",
        added_tokens_decoder={"382": listed, "383": {"content": "<plain>", "special": False}},
        model_max_length=4096,
    )
    tokenizer = load(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))
    assert tokenizer.encode("fox <|tool|>")[-1] == 382
    assert tokenizer.decode(tokenizer.encode("a<|tool|><plain><pad>b")) == "a<plain>b"
    config = read_tokenizer_config(DirectoryFiles(tmp_path))
    assert config.special_tokens == {"bos_token": BOS, "eos_token": EOS, "pad_token": "<pad>"}
    assert config.model_max_length == 4096


def test_special_tokens_map_of_older_checkpoints_is_read(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), eos_token=None, bos_token=None, model_max_length=int(1e30))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": EOS, "lstrip": False}}))
    assert load(tmp_path).eos_token_ids == (1,)
    assert read_tokenizer_config(DirectoryFiles(tmp_path)).model_max_length is None


@pytest.mark.parametrize("build", [byte_level, byte_fallback])
def test_bos_and_eos_flags_add_what_the_post_processor_omits(tmp_path: Path, build: object) -> None:
    assert callable(build)
    tokenizer = load(write(tmp_path, build(), add_bos_token=True, add_eos_token=True))
    ids = tokenizer.encode("fox")
    assert ids.count(tokenizer.bos_token_id or 0) == 1 and ids[0] == tokenizer.bos_token_id
    assert ids[-1:] == list(tokenizer.eos_token_ids)
    assert tokenizer.encode("fox", add_special_tokens=False) == ids[1:-1]


@pytest.mark.parametrize(
    ("kind", "heeds"), [("LlamaTokenizerFast", True), ("PreTrainedTokenizerFast", False), ("Qwen2Tokenizer", False)]
)
def test_only_some_classes_use_the_bos_and_eos_flags(tmp_path: Path, kind: str, heeds: bool) -> None:
    flags = {"add_bos_token": True, "add_eos_token": True, "tokenizer_class": kind}
    plain = load(write(tmp_path / "plain", byte_level())).encode("ab")
    assert load(write(tmp_path / "flagged", byte_level(), **flags)).encode("ab") == ([0, *plain, 1] if heeds else plain)


def test_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=9)
    tokenizer = load(write(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode(LINES[0])) == LINES[0]
    assert len(tokenizer.encode("a")) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Zed"}}'),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}'),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"\xff\xfe"),
        ("tokenizer_config.json", b"[" * 100_000),
        ("tokenizer_config.json", b'{"bos_token": 7}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": "a"}}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"' + b"9" * 5000 + b'": "a"}}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"5": {"id": 5}}}'),
        ("tokenizer_config.json", b'{"add_bos_token": "yes"}'),
        ("tokenizer_config.json", b'{"model_max_length": -1}'),
        ("tokenizer_config.json", b'{"model_max_length": NaN}'),
        ("tokenizer_config.json", b'{"chat_template": 3}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("tokenizer_config.json", b'{"additional_special_tokens": "a"}'),
        ("tokenizer_config.json", b'{"model_specific_special_tokens": ["a"]}'),
        ("special_tokens_map.json", b'{"eos_token": []}'),
        ("added_tokens.json", b'{"<X>": "5"}'),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path, byte_level())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="token"):
        load_tokenizer(DirectoryFiles(tmp_path))


def test_git_lfs_pointer_is_named_as_the_cause(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*git lfs pull"):
        load_tokenizer(DirectoryFiles(tmp_path))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_pipes_and_enormous_files_are_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=name):
        read_tokenizer_config(DirectoryFiles(tmp_path))
    (tmp_path / name).unlink()
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(CheckpointError, match=name):
        read_tokenizer_config(DirectoryFiles(tmp_path))


def test_truncated_tokenizer_file_is_an_error_at_any_length(tmp_path: Path) -> None:
    whole = byte_fallback().to_str().encode()
    for length in range(0, len(whole), len(whole) // 40):
        (tmp_path / "tokenizer.json").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            load_tokenizer(DirectoryFiles(tmp_path))


def test_text_without_a_token_is_blamed_on_the_file() -> None:
    tokenizer = FileTokenizer(Backend(models.Unigram([("a", -1.0)], None, False)), TokenizerConfig(), origin="here")
    assert tokenizer.encode("a") == [0]
    with pytest.raises(CheckpointError, match="here"):
        tokenizer.encode("b")


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Replace("▁", " ")]),
    ],
)
def test_decoders_that_need_more_than_one_token_are_unsupported(tmp_path: Path, decoder: decoders.Decoder) -> None:
    backend = byte_level()
    backend.decoder = decoder
    with pytest.raises(Unsupported, match="decoder"):
        load(write(tmp_path, backend))


@pytest.mark.parametrize(
    ("build", "forced", "logged"), [(unigram, False, True), (byte_level, False, False), (byte_level, True, True)]
)
def test_clean_up_flag_has_no_effect_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, build: Callable[[], Backend], forced: bool, logged: bool
) -> None:
    """`transformers` ignores the flag for BPE tokenizers unless it is forced."""
    force = {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": forced}
    tokenizer = load(write(tmp_path, build(), clean_up_tokenization_spaces=True, **force))
    assert tokenizer.decode(tokenizer.encode("a , b .")) == "a , b ."
    assert [f"{tmp_path}" in each.message for each in caplog.records] == [True] * logged


def test_without_a_decoder_tokens_are_words() -> None:
    backend = Backend.from_str(byte_level().to_str())
    backend.decoder = None
    tokenizer = FileTokenizer(backend, TokenizerConfig())
    ids = tokenizer.encode("the dog")
    assert tokenizer.decode(ids) == backend.decode(ids)


def test_metaspace_decoder_strips_a_leading_mark_only_if_the_encoder_adds_it() -> None:
    always = decoding_rules({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"})
    never = decoding_rules({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"})
    assert (always.first("▁a"), always.middle("▁a")) == (b"a", b" a")
    assert (never.first("▁a"), never.middle("▁a")) == (b" a", b" a")


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    turns = 0
    thread = Thread(target=TOKENIZERS["byte_level"].encode, args=("the quick fox " * 50_000,))
    thread.start()
    while thread.is_alive():
        turns += 1
        time.sleep(0.0001)
    thread.join()
    assert turns > 10


def test_exception_of_a_signal_handler_is_not_blamed_on_the_file() -> None:
    def out_of_time(*_: object) -> None:
        raise TimeoutError("mine")

    before = signal.signal(signal.SIGALRM, out_of_time)
    try:
        with pytest.raises(TimeoutError, match="mine"):
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            TOKENIZERS["byte_level"].encode("the quick fox " * 50_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
