"""What serving costs: the same requests through `LLM` and through servers with their engine in a thread or process.

    python bench/overhead.py --shape qwen3-0.6b --quantize int8 --prompt-tokens 128 --out bench/results/overhead.json

Shared machines change from minute to minute, so the three take turns and each turn is compared within itself.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Final, Self, TypeAlias

from ferrum.bench.report import Document, median_error
from ferrum.bench.serve_options import USUAL_VOCABULARY, Arrivals, Level, Load, Target, plan
from ferrum.cli.doctor import processor_name
from ferrum.cli.tables import print_table
from ferrum.client.llm import LLM
from ferrum.core.config import HOSTS
from ferrum.core.errors import StepError
from ferrum.core.json_record import JsonRecord
from ferrum.core.params import SamplingParams
from ferrum.core.version import installed_version
from own_server import own_server, subject_of
from script import needs, positive, run_script

with needs("'ferrum-llm[server]'"):
    from ferrum.bench.serve_client import request_body
    from ferrum.bench.serve_run import measure_server

OFFLINE: Final = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(JsonRecord):
    """One way to run the requests.

    Attributes:
        name: `offline`, or the host of the server's engine.
        figure: median tokens per second.
        lost: median share of the offline engine's speed in the same turn that is lost.
        noise: standard error of `lost`; None for a single turn.
        samples: tokens per second of each turn.
    """

    name: str
    figure: float
    lost: float
    noise: float | None
    samples: tuple[float, ...]

    @classmethod
    def of(cls, name: str, samples: Sequence[float], offline: Sequence[float]) -> Self:
        """Compare with the offline engine's samples of the same turns."""
        lost = [1 - own / other for own, other in zip(samples, offline, strict=True)]
        return cls(
            name=name, figure=median(samples), lost=median(lost), noise=median_error(lost), samples=tuple(samples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadReport(Document):
    """A run.

    Attributes:
        server: the model and the engines' options.
        ferrum, started, processor, numerics_id: by what, when and where it was measured.
        load: the work of each turn.
        arms: the offline engine first.
    """

    LAYOUT: ClassVar[int] = 2

    server: tuple[str, ...]
    ferrum: str
    started: str
    processor: str
    numerics_id: str
    load: Load
    arms: tuple[Arm, ...]


Turn: TypeAlias = Callable[[Load], float]
"""Runs a load; returns tokens per second from the first request to the last token."""


def measure_overhead(
    model: str,
    options: Mapping[str, Any],
    arguments: Sequence[str],
    *,
    clients: int,
    prompt_tokens: int,
    output_tokens: int,
    series: int,
    progress: Callable[[str], None],
) -> tuple[Load, tuple[Arm, ...], str]:
    """Run one request of each client by every arm, in turns.

    Args:
        model: for `LLM` and `ferrum serve`.
        options, arguments: the same options for both.
        clients, prompt_tokens, output_tokens: the work of a turn.
        series: number of turns after a warm-up turn.
        progress: called for each turn.

    Returns:
        The load, the arms, and the engine's `numerics_id`.
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
        progress("loading three engines")
        llm = stack.enter_context(LLM(model, **options))
        vocabulary = min(USUAL_VOCABULARY, llm.info.vocab_size)
        turns: dict[str, Turn] = {OFFLINE: lambda load: _offline(llm, vocabulary, load)}
        for host in HOSTS:
            url = stack.enter_context(own_server(model, [*arguments, "--engine-host", host])).url
            turns[host] = _served(Target(url=url, vocabulary=vocabulary))
        samples = take_turns(turns, load, series, progress)
        fingerprint = llm.info.numerics_id
    return load, tuple(Arm.of(name, samples[name], samples[OFFLINE]) for name in turns), fingerprint


def take_turns(
    turns: Mapping[str, Turn], load: Load, series: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Return samples of every arm. The first arm of a turn rotates; the first turn is dropped."""
    samples: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for turn in range(series + 1):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            figure = turns[name](replace(load, seed=turn))
            progress(f"{'warm-up' if turn == 0 else f'series {turn}/{series}'}  {name}: {figure:.1f} tokens/s")
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
        report = measure_server(target, load, level=Level(), key=None, processor="", bar=False)
        if report.summary.failures:
            raise StepError(f"the server failed: {report.summary.failures}")
        return report.summary.tokens_per_second

    return turn


def main() -> None:
    """Measure; print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--quantize")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--clients", type=positive, default=16)
    parser.add_argument("--prompt-tokens", type=positive, default=256)
    parser.add_argument("--output-tokens", type=positive, default=64)
    parser.add_argument("--series", type=positive, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    options = {name: value for name in ("quantize", "threads") if (value := getattr(given, name)) is not None}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with subject_of("", given.shape) as subject:
        load, arms, numerics_id = measure_overhead(
            subject.model,
            options,
            arguments,
            clients=given.clients,
            prompt_tokens=given.prompt_tokens,
            output_tokens=given.output_tokens,
            series=given.series,
            progress=lambda line: print(line, file=sys.stderr),
        )
    report = OverheadReport(
        version=OverheadReport.LAYOUT,
        server=(subject.name, *arguments),
        ferrum=installed_version(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor_name(),
        numerics_id=numerics_id,
        load=load,
        arms=arms,
    )
    if given.out is not None:
        report.write(given.out)
    noises = ["-" if arm.noise is None else f"{arm.noise:.1%}" for arm in arms]
    rows = [(arm.name, f"{arm.figure:.1f}", f"{arm.lost:.1%}", noise) for arm, noise in zip(arms, noises, strict=True)]
    print_table([("ENGINE", "TOK/S", "LOST", "NOISE"), *rows])


if __name__ == "__main__":
    run_script(main)
