"""Tokenizers: text to token ids and back, and the bytes of a single token.

The protocol, and its implementation over `tokenizer.json`. Streaming is in `detokenizer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from ferrum.core.errors import CheckpointError, InvalidToken, RequestError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.core.values import shown
from ferrum.text.model_files import ModelFiles, refuse_pointer
from ferrum.text.tokenizer_config import AddedTokenSpec, TokenizerConfig, read_tokenizer_config, warn_about_rules

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend


_SHORT: Final = 1 << 10
"""Characters of a text that is encoded in a fraction of a millisecond."""

_LARGE: Final = 1 << 20
"""Texts with more characters are encoded one at a time.

The library needs 150 bytes a character.
"""

_FILE: Final = "tokenizer.json"
_OTHER_FORMS: Final = ("tokenizer.model", "tekken.json", "vocab.json")
"""Tokenizer files in formats that are not read."""

_SPACES: Final = "\u2581\u0120"
"""How SentencePiece and byte-level vocabularies spell a space."""

_ANCHOR: Final = "\u263a"
"""A character that tokenizers merge with no other."""


class Tokenizer(Protocol):
    """The tokenizer interface of the engine. Methods are safe to call from any thread."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including added ones. A model's vocabulary may be padded beyond it."""

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, or None."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's end token. The checkpoint may name further ones."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The control tokens, which decoding skips by default."""

    @property
    def added_ids(self) -> frozenset[int]:
        """The tokens outside the tokenizer's model: control tokens, and markers such as `<tool_call>`."""

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is a control token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        A rendered chat template already contains special tokens: pass `add_special_tokens=False` for it.

        Raises:
            RequestError: the text is not a string, or contains a lone surrogate. `param` is `prompt`; callers that
                encode another field rename it.
            CheckpointError: the tokenizer file has no token for a part of the text.
        """

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids: their bytes decoded as UTF-8.

        Invalid sequences become U+FFFD. Ids without a token (padding of a model's vocabulary) add nothing.

        Raises:
            InvalidToken: an id is negative or not an integer.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds inside a text; possibly part of a character."""

    def token_text(self, token_id: int) -> str:
        """Return a token's bytes as text (`decoded_token`), U+FFFD for part of a character."""

    def piece(self, token_id: int) -> str | None:
        """Return a token as spelled in the vocabulary, None if there is none. Raises InvalidToken."""


class FileTokenizer(Tokenizer):
    """The tokenizer of a checkpoint's `tokenizer.json`, run by the `tokenizers` library.

    The library encodes. Decoding is done here, token by token, so that streamed and whole texts are equal. It equals
    the library's decoding if the bytes are valid UTF-8.

    Args:
        backend: the library's tokenizer.
        config: settings from the other tokenizer files.
        origin: path of the file, for errors.
        special: control tokens beyond those that the backend still marks as special.

    Raises:
        Unsupported: the decoder does not work token by token.
    """

    def __init__(
        self,
        backend: Backend,
        config: TokenizerConfig,
        *,
        origin: str = "tokenizer",
        special: frozenset[int] = frozenset(),
    ) -> None:
        decoder = backend.decoder
        self._rules = decoding_rules(None if decoder is None else json.loads(decoder.__getstate__()))
        self._backend = backend
        self._origin = origin
        self._bytes: dict[int, bytes] = {}
        self._large = Lock()
        self._bos = self._named_id(config, "bos_token")
        self._eos = self._named_id(config, "eos_token")
        self._special = special | _special_ids(backend)
        # The file's post-processor decides which tokens surround a text. Some files (DeepSeek's distilled Qwen) leave
        # the begin token to the configuration's flag, so the flag adds what the post-processor omits.
        with _library_faults(origin):
            around = backend.encode("", add_special_tokens=True).ids
        self._before = [self._bos] if config.add_bos_token and self._bos is not None and self._bos not in around else []
        self._after = [self._eos] if config.add_eos_token and self._eos is not None and self._eos not in around else []

    @property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def bos_token_id(self) -> int | None:
        return self._bos

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return () if self._eos is None else (self._eos,)

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special

    @property
    def added_ids(self) -> frozenset[int]:
        return self._special.union(self._backend.get_added_tokens_decoder())

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if not isinstance(text, str):
            raise RequestError(f"must be a string, not {type(text).__name__}", param="prompt")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"contains a lone surrogate at character {error.start}", param="prompt") from None
        with _library_faults(self._origin):
            ids = self._ids(text, add_special_tokens)
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= _SHORT:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            return ids
        # A batch, even of one text, is encoded without holding the GIL.
        with self._large if len(text) > _LARGE else nullcontext():
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        wanted = [i for i in ids if self.piece(i) is not None and not (skip_special_tokens and i in self._special)]
        if not wanted:
            return ""
        first = self._rules.first(self.piece(wanted[0]) or "")
        text = first + b"".join(map(self.token_bytes, wanted[1:]))
        return self._rules.without_prefix(text).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            piece = self.piece(token_id)
            known = self._bytes[token_id] = b"" if piece is None else self._rules.middle(piece)
        return known

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def piece(self, token_id: int) -> str | None:
        try:
            return self._backend.id_to_token(token_id)
        except (OverflowError, TypeError):
            raise InvalidToken(f"{shown(token_id)} is not a token id", param="token_ids") from None

    def _named_id(self, config: TokenizerConfig, name: str) -> int | None:
        token = config.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def encode_middle(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode text that continues another text, without a tokenizer's leading space."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    spelled = _spelled(tokenizer, ids)
    if spelled == text.encode():
        return ids
    before, both = (tokenizer.encode(each, add_special_tokens=False) for each in (_ANCHOR, _ANCHOR + text))
    middle = both[len(before) :]
    return middle if spelled == b" " + _spelled(tokenizer, middle) else ids


def _spelled(tokenizer: Tokenizer, ids: Iterable[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


def load_tokenizer(files: ModelFiles) -> FileTokenizer | None:
    """Return the tokenizer of a model, or None without a `tokenizer.json`.

    Raises:
        CheckpointError: a tokenizer file is damaged; the message names it.
        Unsupported: the decoder does not work token by token.
    """
    content, origin = files.read_file(_FILE), files.where(_FILE)
    if content is None:
        _warn_about_others(files)
        return None
    config = read_tokenizer_config(files)
    refuse_pointer(origin, content)
    with _library_faults(origin):
        backend = _parsed(content, origin)
        backend.no_truncation()
        backend.no_padding()
        _draw_nothing(backend)
        special = _special_ids(backend)  # the library keeps skipping these, whatever is added later
        _add_missing(backend, config.added_tokens)
        backend.encode_special_tokens = config.split_special_tokens
        begins = backend.encode("a", add_special_tokens=False).tokens
    warn_about_rules(files, backend, config, adds_space=bool(begins) and begins[0][0] in _SPACES)
    if config.clean_up_spaces and (config.clean_up_bpe or type(backend.model).__name__ != "BPE"):
        warn_once(f"{files.where('tokenizer_config.json')}: clean_up_tokenization_spaces has no effect")
    return FileTokenizer(backend, config, origin=origin, special=special)


def _parsed(content: bytes, origin: str) -> Backend:
    """Return the library's tokenizer of a file. Raises CheckpointError."""
    from tokenizers import Tokenizer as Backend  # takes 40 ms to import

    try:
        return Backend.from_buffer(content)
    except ValueError as error:
        raise CheckpointError(f"{origin}: is not a usable tokenizer: {error}") from error


def _draw_nothing(backend: Backend) -> None:
    """Turn off the randomness of training: BPE dropout and the sampling of unigram models."""
    for name in ("dropout", "nbest_size", "alpha"):
        if getattr(backend.model, name, None) is not None:
            setattr(backend.model, name, None)


def _warn_about_others(files: ModelFiles) -> None:
    """Warn about a tokenizer in a format that is not read."""
    found = files.file_names()
    others = [name for name in _OTHER_FORMS if name in found]
    if others:
        step = "convert it with AutoTokenizer.from_pretrained and save_pretrained of transformers"
        warn_once(f"no tokenizer for {files.where('')}: only tokenizer.json is read, not {others[0]}; {step}")


def _special_ids(backend: Backend) -> frozenset[int]:
    return frozenset(token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)


@contextmanager
def _library_faults(origin: str) -> Iterator[None]:
    """Turn the library's errors on well-formed input into CheckpointError.

    They mean a damaged tokenizer file. The library raises bare Exceptions and panics (not Exceptions), and a half
    surrogate pair in a token is a UnicodeEncodeError. Other exceptions come from signals and their handlers.
    """
    try:
        yield
    except BaseException as error:
        if type(error) not in (Exception, UnicodeEncodeError) and type(error).__module__ != "pyo3_runtime":
            raise
        raise CheckpointError(f"{origin}: is not a usable tokenizer: {error}") from error


def _add_missing(backend: Backend, tokens: Iterable[AddedTokenSpec]) -> None:
    """Add the tokens that only the configuration lists.

    Their order matters: they take the next free ids.
    """
    held = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    given = [_token_to_add(token, held.get(token.content)) for token in tokens]
    if missing := [token for token in given if token is not None]:
        backend.add_tokens(missing)


def _token_to_add(token: AddedTokenSpec, held: AddedToken | None) -> AddedToken | None:
    """Return the token to add to the backend, or None.

    Args:
        token: of the configuration.
        held: the backend's token of the same text, if any.
    """
    from tokenizers import AddedToken

    if held is not None and token.replaces != "flags":
        if token.replaces == "nothing" or held.special == token.special:
            return None
        held.special = token.special
        return held
    wanted = AddedToken(
        token.content,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=not token.special if token.normalized is None else token.normalized,
        single_word=token.single_word,
        special=token.special,
    )
    return None if repr(wanted) == repr(held) else wanted


# ---- Decoding rules: the bytes that each vocabulary entry adds to a text ----
#
# A tokenizer file describes its decoder as a pipeline over token strings. Incremental decoding needs one rule per
# token, so the pipeline is reduced to `DecodingRules`: a text is the concatenation of its tokens' bytes.

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_of_letter() -> dict[str, int]:
    """Return the byte of each letter of a byte-level vocabulary: 256 entries.

    Printable Latin-1 characters stand for themselves. The other bytes map, in ascending order, to the characters from
    U+0100: the alphabet of GPT-2's byte-level BPE (Radford et al., 2019, section 2.2, and its published encoder).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """A decoder pipeline as a rule per token.

    Attributes:
        replacements: (old, new, new in the first token of a text), applied to the token string in order.
        alphabet: the meaning of the letters: `text`, `fallback` (text, with `<0xAB>` for a byte) or `level` (bytes).
        separator: precedes every token except the first.
        strip: a character removed from the start of a whole text, and how many times at most.
    """

    replacements: tuple[tuple[str, str, str], ...] = ()
    alphabet: Literal["text", "fallback", "level"] = "text"
    separator: bytes = b""
    strip: tuple[str, int] = ("", 0)

    def middle(self, token: str) -> bytes:
        """Return the bytes that a token adds after the first token."""
        for old, new, _ in self.replacements:
            token = token.replace(old, new)
        return self.separator + self._spell(token)

    def first(self, token: str) -> bytes:
        """Return the bytes of the first token, before `without_prefix`."""
        for old, _, new in self.replacements:
            token = token.replace(old, new)
        return self._spell(token)

    def without_prefix(self, text: bytes) -> bytes:
        """Return a whole text without the prefix that its encoder added."""
        letter, count = self.strip
        prefix = letter.encode()
        while count and text.startswith(prefix):
            text, count = text[len(prefix) :], count - 1
        return text

    def _spell(self, token: str) -> bytes:
        if self.alphabet == "level":
            letters = byte_of_letter()
            # An added token with characters outside the alphabet is plain text.
            if all(letter in letters for letter in token):
                return bytes(letters[letter] for letter in token)
        elif self.alphabet == "fallback" and (single := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(single[1])
        return token.encode()


def decoding_rules(decoder: Mapping[str, Any] | None) -> DecodingRules:
    """Return the rules of a tokenizer file's `decoder`; without one, tokens are joined by spaces.

    Raises:
        Unsupported: a part of the pipeline depends on more than one token (WordPiece, CTC, ...).
    """
    if decoder is None:
        return DecodingRules(separator=b" ")
    rules, fused = DecodingRules(), False
    for part in _parts(decoder):
        match part:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if (
                old and not fused and rules.alphabet == "text"
            ):
                rules = replace(rules, replacements=(*rules.replacements, (old, new, new)))
            case {"type": "Metaspace", "replacement": str(old)} if not fused and rules.alphabet == "text":
                # If the encoder puts a mark before the text, the decoder drops the marks of the first token.
                first = " " if part.get("prepend_scheme") == "never" else ""
                rules = replace(rules, replacements=(*rules.replacements, (old, " ", first)))
            case {"type": "ByteFallback"} if not fused and rules.alphabet == "text":
                rules = replace(rules, alphabet="fallback")
            case {"type": "ByteLevel"} if not fused and rules.alphabet == "text":
                rules, fused = replace(rules, alphabet="level"), True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": str(letter), "start": int(count), "stop": 0} if (
                fused and not rules.strip[1]
            ):
                rules = replace(rules, strip=(letter, count))
            case _:
                raise Unsupported(f"the tokenizer decoder {part.get('type')!r}", f"no rule per token for {dict(part)}")
    return rules


def _parts(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        for part in decoder["decoders"]:
            yield from _parts(part)
    else:
        yield decoder
