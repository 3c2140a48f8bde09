"""Warnings about tokenizer files whose rules differ from what other settings of the checkpoint say.

The tokenizer file decides; nothing is changed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ferrum.core.logging import warn_once
from ferrum.text.model_files import ModelFiles, read_json_object
from ferrum.text.tokenizer_config import TokenizerConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

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
