"""A tiny random model for agents: Qwen3's chat template and formats, a token for each letter, and a context of 64k."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agent_kit import QWEN3
from shared_models import folder
from text_samples import write
from tiny import random_model

CONTEXT: Final = 65_536
END: Final = "<|im_end|>"
MARKERS: Final = (END, "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>")


def _letters() -> Tokenizer:
    """Return a tokenizer of ASCII without merges, so that texts of the model are encoded as they were generated."""
    alphabet = ["Ċ", "Ġ", *map(chr, range(33, 127))]
    tokenizer = Tokenizer(models.BPE({piece: place for place, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(MARKERS))
    return tokenizer


@cache
def agent_model() -> Path:
    """Return the checkpoint directory of the model."""
    directory, tokenizer = folder("agent"), _letters()
    end = tokenizer.token_to_id(END)
    config = transformers.Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=None,
    )
    model = random_model(config, "agent")
    with torch.no_grad():  # markers stay within the model's reach, but it writes one only where a grammar asks for it
        model.lm_head.weight *= 8
        model.lm_head.weight[[tokenizer.token_to_id(mark) for mark in MARKERS]] = 0
    model.save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    return write(directory, tokenizer, chat_template=QWEN3, bos_token=None, eos_token=END)


class Renderer:
    """Prompts of conversations by `transformers`, as token ids."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer: Any = transformers.PreTrainedTokenizerFast.from_pretrained(directory)

    def tokens(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, thinks: bool) -> list[int]:
        """Return the prompt of a conversation in OpenAI's form."""
        text = self._tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=False, enable_thinking=thinks
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False))
