"""The stages of `run.py` that compare a device with known answers and with the CPU, bit for bit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np

from ferrum import LLM, SamplingParams
from ferrum.core.config import ModelConfig
from ferrum.core.errors import FerrumError, Unsupported
from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.interface import Kernels
from ferrum.runtime.backend import choose_kernels
from ferrum.runtime.known_answers import answers, hash_of
from ferrum.runtime.load import build_executor
from ferrum.runtime.self_check import TABLE, self_check
from ferrum.sources.hub import BUILT_IN
from ferrum.verbs.load_executor import LocalExecutor
from golden_models import CASES, FixedCheckpoint, key, logits_hash
from golden_table import GOLDEN

FEW: Final = ("norms", "rotation", "selection of rows", "products of q8_0", "products of bfloat16", "products of q4_k")
"""Checks of which a sanitizer sees every kind of exchange."""
FEW_GOLDEN: Final = (("Qwen3ForCausalLM", "q8_0", "bfloat16"), ("MistralForCausalLM", "bfloat16", "int8"))

SPANS: Final = ("Qwen3ForCausalLM", "q8_0", "bfloat16")
LENGTH: Final = 96
SEQUENCES: Final = 6

PROMPTS: Final = [
    "The rain",
    "s",
    "Once upon a time there was ",
    "In the middle of the night, when nothing moves, " * 3,
]
PARAMS: Final = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "seed": 7},
}


@dataclass(frozen=True)
class Device:
    """Comparisons of device="cuda".

    Attributes:
        emulated: with fewer and smaller cases.
        say: reports a result.
    """

    emulated: bool
    say: Callable[..., None]

    def selfcheck(self) -> None:
        """Run the self-check."""
        found = self_check(choose_kernels("cuda", "auto").kernels)
        self.say("checks", found.checked, seconds=round(found.seconds, 2), refused=found.refused)
        self.say("differing checks", ", ".join(found.wrong) or "none", ok=not found.wrong and found.checked > 0)

    def few(self) -> None:
        """Run a few checks, for tools that slow a device down."""
        kernels, known = choose_kernels("cuda", "auto").kernels, json.loads(TABLE.read_text())["answers"]
        for name, answer in answers(kernels):
            if name in FEW and (found := _hash(kernels, answer)) is not None:
                self.say(name, found, ok=found == known[name])

    def golden(self) -> None:
        """Compare the logits of tiny models of all families and formats with their golden hashes."""
        known = json.loads(GOLDEN.read_text())["logits"]
        wrong, refused, same = [], [], 0
        for case in FEW_GOLDEN if self.emulated else CASES:
            try:
                found = logits_hash(*case, device="cuda")
            except Unsupported:
                refused.append(key(*case))
            except FerrumError as error:
                wrong.append(f"{key(*case)} ({error})")
            else:
                same += found == known[key(*case)]
                wrong += [] if found == known[key(*case)] else [key(*case)]
        self.say("equal hashes", same, refused=refused)
        self.say("differing hashes", "; ".join(wrong) or "none", ok=not wrong and (same > 0 or self.emulated))

    def spans(self) -> None:
        """Cut sequences into random spans, in random batches: every row has the CPU's logits."""
        expected = self._logits("cpu", [[LENGTH]] * SEQUENCES, np.random.default_rng(0))
        rounds, digest = 3 if self.emulated else 200, sha256(b"".join(expected)).hexdigest()[:16]
        rng, wrong = np.random.default_rng(1), 0
        try:
            for _ in range(rounds):
                cuts = [list(_cuts(rng)) for _ in range(SEQUENCES)]
                wrong += self._logits("cuda", cuts, rng) != expected
        except Unsupported as error:
            self.say("spans", str(error), ok=None if self.emulated else False)
            return
        self.say("cuttings", rounds, hash=digest)
        self.say("differing cuttings", wrong, ok=wrong == 0)

    def _logits(self, device: str, cuts: list[list[int]], rng: np.random.Generator) -> list[bytes]:
        """Return the logits of sequences whose tokens come in spans of these sizes, in random batches."""
        family, weights, kv = SPANS
        config = ModelConfig(model=family, kv_dtype=kv, device=device, max_batch_size=SEQUENCES, kv_capacity=2048)
        rows = [b""] * SEQUENCES
        with build_executor(
            LocalExecutor, config, checkpoint=FixedCheckpoint(family, weights), max_rows=128
        ) as executor:
            done, left = [0] * SEQUENCES, [list(each) for each in cuts]
            while any(left):
                ready = [i for i in range(SEQUENCES) if left[i]]
                batch = rng.permutation(ready)[: rng.integers(1, len(ready) + 1)] if device == "cuda" else ready
                spans = []
                for i in map(int, batch):
                    size = left[i].pop(0)
                    tokens = tuple(int(7 * j + i) % 137 for j in range(done[i], done[i] + size))
                    spans.append(Span(str(i), done[i], tokens, Want.LOGITS, Rows.ALL))
                    done[i] += size
                for span, result in zip(spans, executor.submit(StepBatch(tuple(spans))).result().results, strict=True):
                    if isinstance(result, FerrumError):
                        raise result
                    rows[int(span.cache_id)] += np.ascontiguousarray(result.logits, "<f4").tobytes()
        return rows

    def engine(self) -> None:
        """Serve requests with preemption, steps ahead, drafts, and with graphs and without: the CPU's answers."""
        kinds: dict[str, dict[str, Any]] = {
            "graphs": {},
            "launches": {"cuda_graphs": False},
            "steps ahead": {"run_ahead": 1},
            "preemption": {"kv_capacity": 256, "max_tokens_per_step": 48},
            "drafts": {"speculative": "ngram"},
        }
        prompts, tokens = (PROMPTS[:2], 3) if self.emulated else (PROMPTS, 60)
        expected = _served({"device": "cpu"}, prompts, tokens)
        for name, options in kinds.items():
            begun = time.perf_counter()
            try:
                found = _served({"device": "cuda", **options}, prompts, tokens)
            except Unsupported as error:
                self.say(name, str(error), ok=None if self.emulated else False)
                continue
            seconds = round(time.perf_counter() - begun, 2)
            self.say(
                name, "same answers" if found == expected else "other answers", ok=found == expected, seconds=seconds
            )


def _hash(kernels: Kernels, answer: Callable[[], Any]) -> str | None:
    try:
        with np.errstate(all="ignore"):
            return hash_of([kernels.host(array) for array in answer()])
    except Unsupported:
        return None


def _cuts(rng: np.random.Generator) -> Iterator[int]:
    left = LENGTH
    while left:
        size = min(left, int(rng.choice([1, 1, 2, 3, 7, 16, 33, 64, 96])))
        left -= size
        yield size


def _served(options: dict[str, Any], prompts: list[str], tokens: int) -> list[list[int]]:
    found = []
    with LLM(BUILT_IN, **{"kv_capacity": 4096, **options}) as model:
        for params in PARAMS.values():
            outputs = model.generate(
                prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, **params), use_tqdm=False
            )
            found += [list(output.outputs[0].token_ids) for output in outputs]
    return found
