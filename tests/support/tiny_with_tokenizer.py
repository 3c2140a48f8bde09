"""Tiny random models with a tokenizer of printable ASCII, a chat template and a generation configuration."""

from __future__ import annotations

import json
import shutil
from functools import cache
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shared_models import folder
from text_samples import BOS, EOS, write
from tiny import directory_of, find

EOS_IDS = (1, 77)
"""End tokens of `generation_config.json`: the tokenizer's own, and another one."""

TEMPLATE = (
    "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}assistant:{% endif %}"
)


def letters() -> Tokenizer:
    """131 tokens, the models' vocabulary: two special ones, every printable character, and 34 pairs of letters."""
    characters = ["Ġ" if letter == " " else letter for letter in map(chr, range(32, 127))]
    pairs = [*product("etaoin", "shrdlu")][:34]
    pieces = [BOS, EOS, *characters, *map("".join, pairs)]
    tokenizer = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    return tokenizer


@cache
def spoken(name: str) -> Path:
    """Return a checkpoint directory of that case, with a tokenizer, a chat template and a generation configuration."""
    directory = folder(f"spoken-{name}")
    shutil.copytree(directory_of(find(name)), directory, dirs_exist_ok=True)
    write(directory, letters(), chat_template=TEMPLATE)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_IDS}))
    return directory
