"""A timed step computes the same as an untimed one, and the native probe measures what it names."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ferrum.bench.shapes import SHAPES
from ferrum.core.config import ModelConfig
from ferrum.kernels.cpu.library import load
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.load import build_executor
from ferrum.runtime.step_tables import Piece, stage
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor
from native_twin import TIERS, require_native


def language_model(kernels: str) -> DecoderLM:
    config = ModelConfig(model="tiny", kernels=kernels, kv_capacity=128)
    return build_executor(LocalExecutor, config, checkpoint=RandomCheckpoint("tiny", SHAPES["tiny"])).lm


def step(lm: DecoderLM, start: int, tokens: list[int]):
    assert lm.pages.reserve("a", start + len(tokens))
    lm.pages.commit("a", start)
    last = range(len(tokens) - 1, len(tokens))
    return stage([Piece("a", start, tokens, last, range(0), range(len(tokens)))], lm.pages)


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_a_timed_step_stores_the_same_and_times_each_operation(kernels):
    if kernels == "native":
        require_native()

    def logits(*, timed: bool) -> np.ndarray:
        lm = language_model(kernels)
        assert lm.replay is not None
        prompt = step(lm, 0, [3, 1, 4, 1, 5])
        if timed:
            seconds = lm.replay.timed(lm.kernels, prompt)
            assert len(seconds) == len(lm.replay.program.ops)
            assert min(seconds) >= 0
        else:
            lm.replay.submit(lm.kernels, prompt)
        return lm.replay.submit(lm.kernels, step(lm, 5, [9])).logits.copy()

    assert np.array_equal(logits(timed=True), logits(timed=False))


def test_the_probe_measures_every_tier_and_refuses_other_names():
    require_native()
    for tier in TIERS:
        probe = load().Probe(tier, 1, 1 << 20)
        measured = [probe.read(), *(probe.peak(each) for each in ("float32", "bfloat16", "int8", "int4"))]
        assert all(math.isfinite(each) and each > 0 for each in measured)
    with pytest.raises(ValueError, match="float64"):
        probe.peak("float64")
    with pytest.raises(ValueError, match="avx1024"):
        load().Probe("avx1024", 1, 1 << 20)
