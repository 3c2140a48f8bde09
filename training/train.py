"""Train ferrum-tiny, or resume from the last checkpoint in its run folder. `export.py` exports the result.

A run folder holds tokenizer.json, checkpoint.pt (replaced every `--evaluate-every` steps) and log.jsonl (one line per
evaluation: the held-out curve). A larger `--steps` continues a finished run at the floor of its rate.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from data import Stream, encode, read_corpus, train_tokenizer
from evaluate import byte_count, held_out_bits
from model import ModelConfig, Qwen3
from optimiser import Schedule, build_optimisers

BATCH_TOKENS = 8192
SHORT, LONG = 512, 1024  # sequence lengths before the decay, and from the decay on
SEED = 1729


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path(__file__).parent / "runs" / "tiny")
    parser.add_argument("--steps", type=int, default=2500, help=f"optimiser steps of {BATCH_TOKENS} tokens")
    parser.add_argument("--matrix-lr", type=float, default=0.02, help="peak learning rate of Muon")
    parser.add_argument("--other-lr", type=float, default=0.003, help="peak learning rate of AdamW")
    parser.add_argument("--evaluate-every", type=int, default=100, help="steps between evaluations and checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="compile the step with inductor (needs a C++ compiler)")
    return parser.parse_args()


def load_tokenizer(run: Path, train: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer of the run; train it once."""
    path = run / "tokenizer.json"
    if not path.exists():
        train().save(str(path))
    return Tokenizer.from_file(str(path))


def loss_function(model: Qwen3, compiled: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the mean cross-entropy in nats, with matrix products in bfloat16 and all else in float32."""

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    result: Callable[[Tensor, Tensor], Tensor] = torch.compile(loss, dynamic=False) if compiled else loss
    return result


class Trainer:
    """The state of a run, with its optimiser step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.run = args, args.run
        self.run.mkdir(parents=True, exist_ok=True)
        corpus = read_corpus()
        tokenizer = load_tokenizer(self.run, lambda: train_tokenizer(corpus, ModelConfig().vocab_size))
        library, tests = encode(tokenizer, corpus.library), encode(tokenizer, corpus.tests)
        self.stream = Stream(library, tests, BATCH_TOKENS, LONG, SEED)
        self.held_out, self.held_out_bytes = encode(tokenizer, corpus.held_out), byte_count(corpus.held_out)
        torch.manual_seed(SEED)
        self.model = Qwen3(ModelConfig(max_position=LONG))
        self.optimisers = build_optimisers(self.model, args.matrix_lr, args.other_lr)
        self.schedule = Schedule()
        self.loss = loss_function(self.model, args.compile)
        self.step, self.seconds = 0, 0.0
        self._resume()

    def _resume(self) -> None:
        path = self.run / "checkpoint.pt"
        if not path.exists():
            return
        saved: dict[str, Any] = torch.load(path)
        self.model.load_state_dict(saved["model"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.step, self.seconds = saved["step"], saved["seconds"]

    def save(self) -> None:
        """Replace the checkpoint atomically."""
        state = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, self.run / "checkpoint.tmp")
        (self.run / "checkpoint.tmp").replace(self.run / "checkpoint.pt")

    def advance(self) -> Tensor:
        """Run one optimiser step and return its loss in nats per token."""
        length = SHORT if self.schedule.stable(self.step) else LONG
        inputs, targets = self.stream.batch(self.step, length)
        factor = self.schedule.factor(self.step)
        loss = self.loss(torch.from_numpy(inputs), torch.from_numpy(targets))
        loss.backward()
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak_lr"] * factor
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        return loss.detach()

    def evaluate(self, train_loss: float) -> None:
        """Add a point to the held-out curve and save."""
        context = SHORT if self.schedule.stable(self.step) else LONG
        bits = held_out_bits(self.model, self.held_out, context)
        point = {
            "step": self.step,
            "tokens": self.step * BATCH_TOKENS,
            "rate": self.schedule.factor(self.step - 1),
            "context": context,
            "train_nats_per_token": train_loss,
            "held_out_bits_per_byte": bits / self.held_out_bytes,
            "seconds": self.seconds,
        }
        with (self.run / "log.jsonl").open("a") as log:
            log.write(json.dumps(point) + "\n")
        self.save()
        print(json.dumps(point), flush=True)

    def train(self) -> None:
        losses: list[float] = []
        while self.step < self.args.steps:
            began = time.monotonic()
            losses.append(float(self.advance()))
            self.seconds += time.monotonic() - began
            if self.step % 10 == 0:
                print(f"{self.step} {sum(losses[-10:]) / len(losses[-10:]):.4f} {self.seconds:.0f}s", flush=True)
            if self.step % self.args.evaluate_every == 0 or self.step == self.args.steps:
                self.evaluate(sum(losses) / len(losses))
                losses.clear()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    Trainer(args).train()


if __name__ == "__main__":
    main()
