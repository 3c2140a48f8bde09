"""What serving costs: the same requests through `LLM` and through servers, their engines in a thread and in a process.

A shared machine changes from minute to minute, so the three take turns, and each turn is compared within itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, ClassVar, Final, Self, TypeAlias

from ferrum.bench.report import Document, median_error
from ferrum.bench.serve_client import request_body
from ferrum.bench.serve_options import USUAL_VOCABULARY, Arrivals, Level, Load, Target
from ferrum.bench.serve_plan import plan
from ferrum.bench.serve_process import own_server
from ferrum.bench.serve_report import ServeOrigin
from ferrum.bench.serve_run import measure_server, served_model
from ferrum.core.config import HOSTS
from ferrum.core.errors import StepError
from ferrum.core.json_record import JsonRecord
from ferrum.core.params import SamplingParams
from ferrum.engine.llm import LLM

VERSION: Final = 1
"""Of the document's layout."""

OFFLINE: Final = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(JsonRecord):
    """One way to have the work done.

    Attributes:
        name: `offline`, or where the server's engine runs.
        figure: median tokens per second.
        lost: median share of the offline engine's tokens per second that it did not reach in the same turn.
        noise: standard error of `lost`; None where one turn says nothing of it.
        samples: tokens per second of each turn.
    """

    name: str
    figure: float
    lost: float
    noise: float | None
    samples: tuple[float, ...]

    @classmethod
    def of(cls, name: str, samples: Sequence[float], offline: Sequence[float]) -> Self:
        """Beside the offline engine's samples of the same turns."""
        lost = [1 - own / other for own, other in zip(samples, offline, strict=True)]
        return cls(
            name=name, figure=median(samples), lost=median(lost), noise=median_error(lost), samples=tuple(samples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadReport(Document):
    """A run.

    Attributes:
        server: the model and the engines' options.
        load: the work of each turn.
        arms: the offline engine first.
    """

    LAYOUT: ClassVar[int] = VERSION

    server: tuple[str, ...]
    origin: ServeOrigin
    load: Load
    arms: tuple[Arm, ...]


Turn: TypeAlias = Callable[[Load], float]
"""Has a load's work done; tokens per second from the first request to the last token."""


def measure_overhead(
    model: str,
    options: Mapping[str, Any],
    arguments: Sequence[str],
    *,
    clients: int,
    prompt_tokens: int,
    output_tokens: int,
    series: int,
    tell: Callable[[str], None],
) -> tuple[Load, tuple[Arm, ...], str]:
    """Let the arms take turns at one request of each client.

    Args:
        model: for `LLM` and `ferrum serve`.
        options, arguments: the same options for either.
        clients, prompt_tokens, output_tokens: the work of a turn.
        series: how often; one turn before them warms up.
        tell: told of each turn.

    Returns:
        The load, the arms, and what the engine calls its numerics.
    """
    load = Load(
        arrivals=Arrivals.CLOSED,
        clients=clients,
        requests=clients,
        warmup=0,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    with ExitStack() as stack:
        tell("loading three engines")
        llm = stack.enter_context(LLM(model, **options))
        vocabulary = min(USUAL_VOCABULARY, llm.info.vocab_size)
        turns: dict[str, Turn] = {OFFLINE: lambda load: _offline(llm, vocabulary, load)}
        for host in HOSTS:
            url = stack.enter_context(own_server(model, [*arguments, "--engine-host", host])).url
            turns[host] = _served(Target(url=url, model=served_model(url, None), vocabulary=vocabulary))
        samples = take_turns(turns, load, series, tell)
        fingerprint = llm.info.numerics_id
    return load, tuple(Arm.of(name, samples[name], samples[OFFLINE]) for name in turns), fingerprint


def take_turns(
    turns: Mapping[str, Turn], load: Load, series: int, tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """Samples of every arm. The one that begins a turn changes; the first turn is dropped."""
    samples: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for turn in range(series + 1):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            figure = turns[name](replace(load, seed=turn))
            tell(f"{'warm-up' if turn == 0 else f'series {turn}/{series}'}  {name}: {figure:.1f} tokens/s")
            if turn:
                samples[name].append(figure)
    return samples


def _offline(llm: LLM, vocabulary: int, load: Load) -> float:
    draw = random.Random()
    target = Target(url="http://offline", model=llm.info.model, vocabulary=vocabulary)
    prompts = [request_body(target, one, draw)["prompt"] for one in plan(load)]
    params = SamplingParams(temperature=0.0, max_tokens=load.output_tokens, ignore_eos=True)
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begun
    for output in outputs:
        if (error := output.outputs[0].error) is not None:
            raise error
    return len(prompts) * load.output_tokens / seconds


def _served(target: Target) -> Turn:
    def turn(load: Load) -> float:
        report = measure_server(target, load, level=Level(), key=None, origin=_nowhere, server=(target.url,), bar=False)
        if report.summary.failures:
            raise StepError(f"the server failed: {report.summary.failures}")
        return report.summary.tokens_per_second

    return turn


def _nowhere(fingerprint: str | None) -> ServeOrigin:
    """A turn is no report."""
    return ServeOrigin(ferrum="", started="", processor="", system_fingerprint=fingerprint)
