"""Held-out bits per byte, the compressed size of the same files by xz, and samples."""

from __future__ import annotations

import lzma
from math import log

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from data import END_ID, Source, Tokens
from model import Qwen3

ROWS = 8  # windows evaluated at once
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}  # sampling defaults of the model


def windows(file: Tokens, context: int) -> list[tuple[Tokens, int]]:
    """Yield (tokens [<= context + 1], number of its last targets that count): every target counts exactly once.

    Each window begins half a context after the previous one. So a target sees at least half a context of its file, or
    all of the file before it.
    """
    stride = context // 2
    result = [(file[: context + 1], min(context, len(file) - 1))]
    for end in range(context + stride, len(file) - 1 + stride, stride):
        stop = min(end, len(file) - 1)
        result.append((file[stop - context : stop + 1], stop - (end - stride)))
    return result


@torch.no_grad()  # type: ignore[untyped-decorator]
def held_out_bits(model: Qwen3, files: list[Tokens], context: int) -> float:
    """Return the bits (log2, float32 model) of all tokens of `files` except the first of each."""
    todo = sorted((w for file in files for w in windows(file, context)), key=lambda w: -len(w[0]))
    nats = 0.0
    for at in range(0, len(todo), ROWS):
        rows = todo[at : at + ROWS]
        longest = len(rows[0][0])
        padded = torch.from_numpy(np.stack([np.pad(tokens, (0, longest - len(tokens))) for tokens, _ in rows]))
        logits, targets = model(padded[:, :-1]).flatten(0, 1), padded[:, 1:].flatten()  # [B * T, V], [B * T]
        losses = F.cross_entropy(logits, targets, reduction="none").view(len(rows), -1)
        for row, (tokens, counted) in zip(losses, rows, strict=True):
            last = len(tokens) - 1
            nats += float(row[last - counted : last].double().sum())
    return nats / log(2)


def byte_count(sources: tuple[Source, ...]) -> int:
    return sum(len(s.text.encode()) for s in sources)


def xz_bits_per_byte(sources: tuple[Source, ...]) -> float:
    """Return the bits per byte of `xz -9e` for the concatenated files, with the container."""
    data = b"".join(s.text.encode() for s in sources)
    return 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)


@torch.no_grad()  # type: ignore[untyped-decorator]
def complete(model: Qwen3, tokenizer: Tokenizer, prompt: str, tokens: int, seed: int | None) -> str:
    """Return a continuation of up to `tokens` tokens: greedy without a seed, else with `SAMPLING`."""
    ids = tokenizer.encode(prompt).ids
    start = len(ids)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    while len(ids) < start + tokens:
        logits = model(torch.tensor([ids[-model.config.max_position :]]))[0, -1]  # [V]
        choice = int(logits.argmax()) if generator is None else draw(logits, generator)
        if choice == END_ID:
            break
        ids.append(choice)
    return str(tokenizer.decode(ids[start:]))


def draw(logits: Tensor, generator: torch.Generator) -> int:
    """Draw a token id from logits [V] after temperature, top-k and top-p."""
    top, order = (logits / SAMPLING["temperature"]).topk(int(SAMPLING["top_k"]))
    probabilities = top.softmax(-1)
    probabilities[probabilities.cumsum(-1) - probabilities >= SAMPLING["top_p"]] = 0
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])
