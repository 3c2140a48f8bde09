"""Conversations of an agent with a hybrid model: what is computed again when reasoning drops out of the history.

The chat template is that of Qwen3.5, which prints the reasoning of answers after the last user's message only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from family_cases import DELTA, FULL, LINEAR, SPARSE
from ferrum import LLM, RequestOutput, SamplingParams
from real_templates import FOLDER
from shared_models import folder
from text_samples import write
from tiny import Case, directory_of

TURNS = 30
START, END = "<|im_start|>", "<|im_end|>"
SMALL = {
    **SPARSE, **DELTA, "linear_num_key_heads": 1, "linear_num_value_heads": 1, "linear_key_head_dim": 8,
    "linear_value_head_dim": 16, "layer_types": [LINEAR, FULL], "max_position_embeddings": 2048,
}  # fmt: skip
AGENT = Case("agent-qwen3.5", "Qwen3_5TextConfig", SMALL)
PARAMS = SamplingParams(max_tokens=2, temperature=0, logprobs=5)
Messages = list[dict[str, Any]]


def words() -> Tokenizer:
    """Return a tokenizer of characters in which the template's markers and roles are one token each."""
    characters = ["Ċ", "Ġ", *map(chr, range(33, 127))]
    tokenizer = Tokenizer(models.BPE({character: place for place, character in enumerate(characters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END])
    marks = ("<think>", "</think>", "<tool_response>", "</tool_response>", "assistant", "user", "system")
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return tokenizer


@cache
def agents_model() -> Path:
    directory = folder("agent")
    for file in directory_of(AGENT).iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    write(directory, words(), chat_template=(FOLDER / "Qwen3.5-4B.jinja").read_text())
    return directory


def transcript() -> Iterator[Messages]:
    """Yield the conversation at each turn: a user asks, tools answer twice, and so on."""
    messages: Messages = [{"role": "system", "content": "be brief"}]
    for turn in range(TURNS):
        messages.append({"role": "tool" if turn % 3 else "user", "content": f"{turn}?"})
        yield [*messages]
        messages.append({"role": "assistant", "content": f"a{turn}", "reasoning_content": f"r{turn}"})


@pytest.fixture(scope="module")
def cold() -> Iterator[LLM]:
    with LLM(str(agents_model()), prefix_cache=False) as llm:
        yield llm


def answer(llm: LLM, messages: Messages) -> RequestOutput:
    (output,) = llm.chat(messages, PARAMS, use_tqdm=False)
    return output


def kept(prompt: tuple[int, ...], earlier: list[tuple[int, ...]], opener: int) -> int:
    """Return the start of the first message that no earlier prompt has: what lies before it need not run again."""
    alike = max(sum(1 for _ in takewhile(bool, map(int.__eq__, prompt, other))) for other in earlier)
    return max(place for place, token in enumerate(prompt[: alike + 1]) if token == opener)


def test_no_token_before_the_first_changed_message_is_computed_again(cold: LLM) -> None:
    earlier: list[tuple[int, ...]] = []
    computed = 0
    with LLM(str(agents_model())) as llm:
        opener = words().token_to_id(START)
        for messages in transcript():
            output = answer(llm, messages)
            prompt, cached = tuple(output.prompt_token_ids), output.metrics.usage.cached_tokens
            if earlier:
                assert cached >= kept(prompt, earlier, opener), f"message {len(messages)}"
            if messages[-1]["role"] == "user":  # reasoning has dropped out of the history
                assert output.outputs == answer(cold, messages).outputs, "equal floats are equal bits"
            earlier.append(prompt)
            computed += len(prompt) - cached
    assert computed < sum(map(len, earlier)) / 4
