"""Tokenizer settings outside `tokenizer.json`: special tokens, added tokens and chat templates.

Read from `tokenizer_config.json` and the files next to it. Nothing is encoded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from ferrum.core.errors import CheckpointError
from ferrum.core.logging import warn_once
from ferrum.text.model_files import ModelFiles, read_json_object, read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TEMPLATES_FOLDER: Final = "additional_chat_templates"
"""Folder of chat templates other than the default, one file each."""

_CONFIG: Final = "tokenizer_config.json"
_OLDER: Final = "added_tokens.json"
_FLAGGED: Final = {"", "llamatokenizer", "codellamatokenizer", "gemmatokenizer", "coheretokenizer"}
"""Classes of `transformers` that build the post-processor from the flags.

Others use the one in the file: fine-tunes of Llama 3 and Qwen often keep an `add_eos_token` without effect.
"""
_END_OF_TEXT: Final = "<|endoftext|>"
_LLAMA: Final = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_DEFAULT_TOKENS: Final[Mapping[str, Mapping[str, str]]] = {
    "llamatokenizer": _LLAMA,
    "codellamatokenizer": _LLAMA,
    "gemmatokenizer": {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
    "coheretokenizer": {
        "unk_token": "<UNK>",
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "pad_token": "<PAD>",
    },
    "qwen2tokenizer": dict.fromkeys(("unk_token", "eos_token", "pad_token"), _END_OF_TEXT),
    "gpt2tokenizer": dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END_OF_TEXT),
    "gptneoxtokenizer": dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END_OF_TEXT),
}
"""Special tokens of classes of `transformers` for configurations that do not name them."""

_FORCED: Final = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"


@dataclass(frozen=True, slots=True)
class AddedTokenSpec:
    """A token outside the learned vocabulary; it is matched before the vocabulary.

    Attributes:
        content: its text.
        lstrip, rstrip: whether it absorbs white space before and after it.
        normalized: whether it is matched in normalised text; None: unless it is special.
        single_word: whether it matches whole words only.
        special: whether it is a control token, which decoding skips.
        replaces: what it changes of a token with the same text in the tokenizer.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    single_word: bool = False
    special: bool = True
    replaces: Literal["flags", "special", "nothing"] = "special"


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Settings of a tokenizer that are not in `tokenizer.json`.

    Attributes:
        special_tokens: text by name of the special tokens (`bos_token`, ..., and model-specific ones: `image_token`).
        added_tokens: all added tokens of the configuration: listed ones by id, then named ones, then extra ones.
        add_bos_token, add_eos_token: whether encoding adds them; None if unset, or if the class ignores the flag.
        split_special_tokens: whether special tokens in a text are encoded as plain text.
        add_prefix_space: whether a space stands before a text; only compared with the tokenizer file, which decides.
        clean_up_spaces, clean_up_bpe: whether decoding should remove spaces before punctuation (for BPE models: both);
            only logged, because decoding here never removes them.
        chat_templates: template sources by name; a single one is called `default`.
        chat_template_origin: the file that they come from.
        model_max_length: maximum tokens of a sequence; None if the file has no real limit.
    """

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    added_tokens: tuple[AddedTokenSpec, ...] = ()
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    split_special_tokens: bool = False
    add_prefix_space: bool | None = None
    clean_up_spaces: bool = False
    clean_up_bpe: bool = False
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    chat_template_origin: str = ""
    model_max_length: int | None = None


def read_tokenizer_config(files: ModelFiles) -> TokenizerConfig:
    """Read a model's tokenizer settings; without files, return the empty configuration.

    Raises:
        CheckpointError: a file is unreadable or an entry has the wrong type; the message names both.
    """
    path = files.where(_CONFIG)
    raw = read_json_object(files, _CONFIG) or {}
    older = {}
    if "added_tokens_decoder" not in raw:
        # Older checkpoints keep the named tokens in another file, which overrides this one.
        raw |= read_json_object(files, "special_tokens_map.json") or {}
        older = read_json_object(files, _OLDER) or {}
    templates, origin = _chat_templates(files, raw)
    kind = str(raw.get("tokenizer_class") or "").lower().removesuffix("fast")
    flagged = kind in _FLAGGED
    raw = _default_tokens(files, kind, raw) | raw
    values = {name: raw[name] for name in NAMED_TOKENS if raw.get(name) is not None} | _own_tokens(path, raw)
    named = {name: _token(path, name, value) for name, value in values.items()}
    extra = _extra_tokens(path, raw)
    special = {token.content for token in (*named.values(), *extra)}
    added: dict[str, AddedTokenSpec] = {}
    older_tokens = _older_tokens(files.where(_OLDER), older, special)
    for token in (*_listed_tokens(path, raw), *older_tokens, *named.values(), *extra):
        added.setdefault(token.content, token)
    added.pop("", None)  # the first conversions of Llama have such tokens; no text contains them
    for token in filter(lambda token: token.content, named.values()):  # always special
        listed = replace(added[token.content], special=True)
        added[token.content] = listed if listed.replaces == "flags" else replace(listed, replaces="special")
    return TokenizerConfig(
        special_tokens={name: token.content for name, token in named.items()},
        added_tokens=tuple(added.values()),
        add_bos_token=_flag(path, raw, "add_bos_token") if flagged else None,
        add_eos_token=_flag(path, raw, "add_eos_token") if flagged else None,
        split_special_tokens=_flag(path, raw, "split_special_tokens") or False,
        add_prefix_space=_flag(path, raw, "add_prefix_space"),
        clean_up_spaces=_flag(path, raw, "clean_up_tokenization_spaces") or False,
        clean_up_bpe=_flag(path, raw, _FORCED) or False,
        chat_templates=templates,
        chat_template_origin=origin,
        model_max_length=_max_length(path, raw.get("model_max_length")),
    )


def _default_tokens(files: ModelFiles, kind: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special tokens of the class that the configuration leaves out and the tokenizer file has."""
    missing = {name: text for name, text in _DEFAULT_TOKENS.get(kind, {}).items() if name not in raw}
    file = (files.read_file("tokenizer.json") or b"") if missing else b""
    return {name: text for name, text in missing.items() if f'"{text}"'.encode() in file}


def _listed_tokens(path: str, raw: Mapping[str, Any]) -> list[AddedTokenSpec]:
    entries = raw.get("added_tokens_decoder") or {}
    if not isinstance(entries, dict) or not all(key.isdecimal() and len(key) < 20 for key in entries):
        raise CheckpointError(f"{path}: added_tokens_decoder must map token ids to tokens")
    listed = (_token(path, "added_tokens_decoder", entries[key]) for key in sorted(entries, key=int))
    return [replace(token, replaces="flags") for token in listed]


def _older_tokens(path: str, ids: Mapping[str, Any], special: Set[str]) -> list[AddedTokenSpec]:
    """Return the tokens of older checkpoints, which list only ids, by ascending id."""
    if not all(text and type(token_id) is int for text, token_id in ids.items()):
        raise CheckpointError(f"{path}: must map tokens to integer ids")
    return [
        AddedTokenSpec(text, special=text in special, replaces="nothing") for text in sorted(ids, key=ids.__getitem__)
    ]


def _own_tokens(path: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return model-specific named tokens; chat templates use the names as variables."""
    own = {name: raw[name] for name in raw if name.endswith("_token") and name not in NAMED_TOKENS}
    found = {name: value for name, value in own.items() if _is_token(value)}
    extra, listed = raw.get("extra_special_tokens"), raw.get("model_specific_special_tokens") or {}
    if not isinstance(listed, dict):
        raise CheckpointError(f"{path}: model_specific_special_tokens must be an object")
    return found | (extra if isinstance(extra, dict) else {}) or listed


def _is_token(value: object) -> bool:
    return bool(value) and (isinstance(value, str) or (isinstance(value, dict) and value.get("__type") == "AddedToken"))


def _extra_tokens(path: str, raw: Mapping[str, Any]) -> list[AddedTokenSpec]:
    """Return special tokens without a name, from the newer or the older list."""
    extra = raw.get("extra_special_tokens") or []
    if not isinstance(extra, list | dict):
        raise CheckpointError(f"{path}: extra_special_tokens must be a list or an object")
    if not extra or isinstance(extra, dict):
        extra = raw.get("additional_special_tokens") or []
    if not isinstance(extra, list):
        raise CheckpointError(f"{path}: additional_special_tokens must be a list")
    return [replace(_token(path, "extra_special_tokens", value), replaces="nothing") for value in extra]


def _token(path: str, name: str, value: object) -> AddedTokenSpec:
    """Parse a token: a text, which is special, or an object with flags."""
    if isinstance(value, str):
        value = {"content": value, "special": True}
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise CheckpointError(f"{path}: {name} must be a string or an object with a string `content`")
    return AddedTokenSpec(
        content=value["content"],
        lstrip=bool(value.get("lstrip", False)),
        rstrip=bool(value.get("rstrip", False)),
        normalized=bool(value["normalized"]) if "normalized" in value else None,
        single_word=bool(value.get("single_word", False)),
        special=bool(value.get("special", name in NAMED_TOKENS)),
    )


def _flag(path: str, raw: Mapping[str, Any], name: str) -> bool | None:
    value = raw.get(name)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} must be true or false, not {value!r}")
    return value


def _max_length(path: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise CheckpointError(f"{path}: model_max_length must be a positive number, not {value!r}")
    # Files without a limit have an enormous integer (1e30).
    return int(value) if value < 2**40 else None


def _chat_templates(files: ModelFiles, raw: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return template sources by name, and their origin; separate files override the configuration."""
    single = "chat_template.jinja"
    others = (name for name in files.file_names(TEMPLATES_FOLDER) if name.endswith(".jinja"))
    paths = {name.removesuffix(".jinja"): f"{TEMPLATES_FOLDER}/{name}" for name in others} | {"default": single}
    templates = {name: text for name, path in paths.items() if (text := read_text(files, path)) is not None}
    if templates:
        return templates, files.where(single if "default" in templates else TEMPLATES_FOLDER)
    path = files.where(_CONFIG)
    match raw.get("chat_template"):
        case None:
            return {}, ""
        case str(source):
            return {"default": source}, path
        case list(entries):
            named = {}
            for entry in entries:
                match entry:
                    case {"name": str(name), "template": str(source)}:
                        named[name] = source
                    case _:
                        raise CheckpointError(f"{path}: an entry of chat_template lacks `name` or `template`")
            return named, path
        case other:
            raise CheckpointError(f"{path}: chat_template must be text or a list, not {type(other).__name__}")


# ---- Warnings about tokenizer files that differ from other settings of the checkpoint ----
#
# The tokenizer file decides; nothing is changed here.

_MISTRAL: Final = {"mistral", "mistral3", "voxtral", "ministral", "pixtral", None}
"""Model types whose large tokenizers `transformers` before 5 saved with a wrong split rule."""

_RIGHT_SPLIT: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
"""Begin of the right split rule; the wrong one does not separate words by case."""

_LARGE: Final = 100_000
"""Tokens; smaller tokenizers of these models have no split rule."""


def warn_about_rules(files: ModelFiles, backend: Backend, config: TokenizerConfig, *, adds_space: bool) -> None:
    """Warn once about an `add_prefix_space` without effect, and about Mistral's wrong split rule.

    Raises:
        CheckpointError: config.json is damaged.
    """
    if config.add_prefix_space not in (None, adds_space):
        effect = "adds a space before a text" if adds_space else "adds no space before a text"
        setting = f"add_prefix_space: {str(config.add_prefix_space).lower()}"
        warn_once(f"{files.where('tokenizer_config.json')}: {setting} has no effect: tokenizer.json {effect}")
    if backend.get_vocab_size() > _LARGE and backend.pre_tokenizer is not None and _is_old_mistral(files):
        pattern = str(getattr(backend.pre_tokenizer, "__getstate__", str)())
        if _RIGHT_SPLIT.replace("\\", "") not in pattern.replace("\\", ""):
            fix = "AutoTokenizer.from_pretrained(..., fix_mistral_regex=True).save_pretrained(...)"
            warn_once(
                f"{files.where('tokenizer.json')}: its split rule is wrong, so texts get other tokens than in training;"
                f" save the tokenizer again with transformers 5: {fix}"
            )


def _is_old_mistral(files: ModelFiles) -> bool:
    config = read_json_object(files, "config.json")
    if config is None:
        return False
    major = str(config.get("transformers_version") or "0").partition(".")[0]
    kind = config.get("model_type")
    return kind in _MISTRAL and major.isdecimal() and int(major) < 5
