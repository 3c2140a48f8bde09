"""Published GGUF files: token ids, logits and divergence next to llama.cpp's, and one text on every tier."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from ferrum import LLM, SamplingParams
from ferrum.bench.quality import compare
from ferrum.bench.quality_run import DEFAULT_TEXT, SPAN, config_of, reference_of, side_by_side
from ferrum.sources.open_model import open_model
from native_twin import TIERS
from published_models import MODELS, PEERS, peer_tokens
from quality_peers import LlamaCpp
from source_tree import MODULES, REPOSITORY

pytestmark = pytest.mark.models

TEXTS = 2000
SCRIPTS = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x370, 0x400), (0x400, 0x500), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980)),
    *((0xE00, 0xE80), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0x1F300, 0x1F650), (0x2000, 0x2100)),
    *((0x1D400, 0x1D500), (0x1, 0x20)),
)
"""Ranges of characters: Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai, Kana, Han, Hangul, emoji, marks."""

PIECES = (
    *(" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " " * 8, "\u00a0", "\u3000", "\u200b", "\u2581", "\ufffd"),
    *(
        "a",
        "Z",
        "0",
        "12",
        "1234567890",
        ".",
        "!!",
        "=",
        "the",
        " the",
        "don't",
        "e\u0301",
        "\U0001f469\u200d\U0001f680",
    ),
    *("<b>", "</b>", "<start_of_turn>", "<end_of_turn>", "<eos>", "<bos>", "<unused3>", "[multimodal]", "<0x0A>"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<repo_name>"),
)
"""What tokenizers treat in ways of their own."""

GREEDY = {
    "gemma": ("The capital of France is", " the capital of the country of France. It is the capital of the country of"),
    "smollm2": ("The capital of France is", " Paris.\n\nThe answer is: 2018-01"),
}
"""A prompt and the text that follows it on every processor, whatever its kernels and threads."""

CHANGE = {"gemma": 0.5, "smollm2": 1.05}
"""Most divergence from float32, as a multiple of llama.cpp's."""


def texts() -> list[str]:
    """Return passages of documents and code, random characters of several scripts, and pieces in random order."""
    draw = random.Random(17)
    sources = [path.read_text() for path in (*sorted((REPOSITORY / "docs").glob("*.md")), *MODULES[:80])]

    def passage() -> str:
        source, length = draw.choice(sources), draw.randint(1, 200)
        begin = draw.randrange(max(1, len(source) - length))
        return source[begin : begin + length]

    def characters() -> str:
        ranges = draw.sample(SCRIPTS, 2)
        return "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randint(1, 40)))

    def pieces() -> str:
        return "".join(draw.choices(PIECES, k=draw.randint(1, 14)))

    return [(passage, passage, characters, pieces)[i % 4]() for i in range(TEXTS)]


@pytest.mark.parametrize("name", MODELS)
def test_ids_equal_those_of_llama_cpp(name: str) -> None:
    tokenizer = open_model(str(MODELS[name]())).tokenizer()
    assert tokenizer is not None
    given = texts()
    theirs = peer_tokens(MODELS[name](), given)
    ours = [list(tokenizer.encode(text, add_special_tokens=False)) for text in given]
    assert {text: (a, b) for text, a, b in zip(given, ours, theirs, strict=True) if a != b} == {}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_nearer_to_float32_than_those_of_llama_cpp(name: str) -> None:
    file = MODELS[name]()
    text, model = DEFAULT_TEXT.read_text("utf-8"), str(file)
    with (
        LlamaCpp(str(PEERS), file) as peer,
        side_by_side(text, reference_of(model, {}), [config_of(model, {})], lambda _: nullcontext(None)) as trial,
    ):
        spans = trial.spans[:4]
        _, (ours, theirs) = compare(trial.reference, [*trial.judged, peer], spans, lambda _: None)
        ours_alone, theirs_alone = trial.judged[0].logits(spans[0]), peer.logits(spans[0])
    assert 0 < ours.divergence <= CHANGE[name] * theirs.divergence
    same = ours_alone.argmax(axis=1) == theirs_alone.argmax(axis=1)
    assert same.mean() > 0.9 and len(same) >= SPAN // 2
    spread = np.std(ours_alone - theirs_alone, axis=1) / np.std(theirs_alone, axis=1)
    assert np.median(spread) < 0.1


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_equal_on_every_tier(name: str) -> None:
    prompt, expected = GREEDY[name]
    params = SamplingParams(temperature=0.0, max_tokens=16)
    for isa in TIERS:
        for threads in (1, 2):
            with LLM(str(MODELS[name]()), isa=isa, threads=threads, kv_capacity=128, max_batch_size=1) as llm:
                (output,) = llm.generate([prompt], params, use_tqdm=False)
            assert output.outputs[0].text == expected, f"{isa}, {threads} threads"


def test_nine_of_ten_chats_end_by_themselves(tmp_path: Path) -> None:
    """SmolLM2 at the sampling that its model card recommends."""
    questions = (
        "What is the capital of France?",
        "Explain in two sentences why the sky is blue.",
        "Write a haiku about the sea.",
        "Give me three tips for sleeping better.",
        "What is 7 plus 5?",
        "Translate 'good morning' into Spanish.",
        "Who wrote Romeo and Juliet?",
        "Write a short email asking for a day off.",
        "What is photosynthesis?",
        "Name five fruits.",
    )
    params = SamplingParams(temperature=0.2, top_p=0.9, seed=1, max_tokens=400)
    with LLM(str(MODELS["smollm2"]()), kv_capacity=8192) as llm:
        chats = [[{"role": "user", "content": question}] for question in questions]
        ends = [output.outputs[0].finish_reason for output in llm.chat(chats, params, use_tqdm=False)]
    assert ends.count("stop") >= 9
