"""Checks of one diagnosis against what the test knows of the edit and of the rendered texts."""

from __future__ import annotations

import json
from functools import cache
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from edited_conversations import Chat, Edit, Writer, holder
from ferrum.client.diagnosis.prefix_difference import Conversation, Difference, Rendered, first_difference
from ferrum.core.errors import FerrumError
from ferrum.text.chat_template import ChatTemplate
from real_templates import TEMPLATES

USED: Final = (
    "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder", "GLM-4.6", "moonshotai-Kimi-K2",
    "unsloth-mistral-Devstral-Small-2507", "deepseek-ai-DeepSeek-V3.2", "openai-gpt-oss-120b",
    "meta-llama-Llama-3.1-8B-Instruct", "ibm-granite-granite-4.0", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Cohere2MoE", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "inclusionai-ling-3.0-flash", "openbmb-MiniCPM5-1B",
)  # fmt: skip
"""Templates that render conversations of the kit: tools first, last, as JSON, XML or types; reasoning that vanishes."""

_MANY: Final = ("turn added", "turn removed", "turns swapped", "appended")


@cache
def merging_tokenizer() -> Tokenizer:
    """Return a tokenizer with merges, trained on prompts of the kit."""
    texts = [Writer(seed).chat().text(TEMPLATES[name]) for seed in range(3) for name in USED]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    return tokenizer


def first_differing(old: list[int], new: list[int]) -> int | None:
    """Return the index of the first differing token; None if one list begins with the other."""
    return next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)


def read(kept: Conversation) -> Chat:
    """Return a conversation from its JSON texts."""
    return Chat(
        [json.loads(each) for each in kept.messages],
        [json.loads(each) for each in kept.tools],
        {name: json.loads(value) for name, value in kept.variables},
    )


def checked(template: ChatTemplate, seed: int) -> bool:
    """Check the diagnosis of one edit; return whether the two prompts differ before either ends."""
    writer = Writer(seed)
    chat = writer.chat()
    edit = writer.edited(chat)
    try:
        old, new = chat.text(template), edit.chat.text(template)
    except FerrumError:  # the template refuses the conversation
        return False
    at = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
    if at is None:
        return False
    found = first_difference(
        Rendered(chat.kept(), old), Rendered(edit.chat.kept(), new), lambda kept: read(kept).text(template)
    )
    _check(edit, found, holder(edit.chat, new, at))
    return True


def _check(edit: Edit, found: Difference | None, held: tuple[str, int] | None) -> None:
    assert found is not None and found.cause is not None, edit.name
    place, cause = found.place, found.cause
    assert cause.kind == edit.kind, (edit.name, found)
    if edit.name in _MANY:  # of several changes, that which shows first in the text
        assert cause.index >= edit.index, (edit.name, found)
    else:
        assert cause.index == edit.index, (edit.name, found)
    if cause.kind == "tool" and cause.index == len(edit.chat.tools):
        assert place == cause  # the last tools were removed: the difference is the end of the list
    elif place.kind == "template":
        assert cause.kind == "variable" and held in (None, ("message", 0), ("tool", 0)), (edit.name, found, held)
    else:
        expected = ("generation_prompt", 0) if held is None else held
        assert (place.kind, place.index) == expected, (edit.name, found, held)
