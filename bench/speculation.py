"""What speculation gains: recorded texts generated with and without it, step by step in turns, and timed.

    python bench/speculation.py --shape qwen3-0.6b --quantize int8 --out bench/results/speculation.json

The sampler is scripted: it computes every row and then returns the recorded token. So random weights give real costs
and real acceptance.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final, Self

from arm import Arm, race
from ferrum.bench.report import Document
from ferrum.bench.shapes import shape_config
from ferrum.cli.doctor import processor_name
from ferrum.cli.tables import print_table
from ferrum.client.client_base import engine_config
from ferrum.core.config import NGRAM, PAGE_SIZE, USUAL_DRAFT, EngineConfig
from ferrum.core.errors import ConfigError, StepError
from ferrum.core.json_record import JsonRecord
from ferrum.core.params import SamplingParams
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import Request
from ferrum.core.version import installed_version
from ferrum.engine.recipe import with_scheduler
from ferrum.runtime.load import build_executor
from ferrum.sampling.rows import Row
from ferrum.sampling.sampler import LogprobsQuery, Sampler, SamplerInput
from ferrum.sources.open_model import open_model
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor
from script import positive, run_script
from speculation_texts import RECORDED

TEXTS_TOKENIZER: Final = "ferrum-tiny"
"""The built-in model's tokenizer, which is always there; results hardly depend on the tokenizer."""

BOUND: Final = 1.96
"""Standard errors from the mean to the bound of a 95% interval."""


@dataclass(frozen=True, slots=True)
class Script:
    """A prompt and what follows it, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class ScriptedSampler:
    """A `Sampler` that lets another do the work and returns tokens of the script with the request's seed."""

    def __init__(self, sampler: Sampler, scripts: Mapping[int, Script]) -> None:
        self._sampler = sampler
        self._scripts = scripts

    def held_bytes(self, vocab_size: int) -> int:
        return self._sampler.held_bytes(vocab_size)

    def choose(self, choices: Sequence[SamplerInput]) -> list[int | StepError]:
        self._sampler.choose(choices)
        return [self._scripted(each.row) for each in choices]

    def logprobs(self, questions: Sequence[LogprobsQuery]) -> list[TokenLogprobs]:
        return self._sampler.logprobs(questions)

    def _scripted(self, row: Row) -> int:
        return self._scripts[row.sampling.seed].answer[row.position - row.sampling.prompt_length]


@dataclass(frozen=True, slots=True)
class Gain(JsonRecord):
    """The gain on one text at one batch size.

    Attributes:
        workload, sequences, tokens: the text, its concurrent copies, and its tokens.
        steps_off, steps_on: steps without and with speculation.
        drafted, accepted: verified and accepted draft tokens over all pairs.
        ratios: of each pair, the time without / the time with.
    """

    workload: str
    sequences: int
    tokens: int
    steps_off: int
    steps_on: int
    drafted: int
    accepted: int
    ratios: tuple[float, ...]

    @property
    def speedup(self) -> float:
        """Geometric mean of the ratios."""
        return statistics.geometric_mean(self.ratios)

    @property
    def least(self) -> float:
        """Lower end of the 95% interval of the speedup."""
        if len(self.ratios) < 2:
            return 0.0
        logs = [math.log(ratio) for ratio in self.ratios]
        return math.exp(statistics.mean(logs) - BOUND * statistics.stdev(logs) / math.sqrt(len(logs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationReport(Document):
    """A run.

    Attributes:
        model: name of the model or shape.
        options: given options of the model and the engine.
        ferrum, numerics_id, started, processor: by what, when and where it was measured.
        gains: one per text and batch size.
    """

    LAYOUT: ClassVar[int] = 1
    SETTING: ClassVar[tuple[str, ...]] = ("model", "options", "numerics_id", "processor")

    model: str
    options: tuple[str, ...]
    ferrum: str
    numerics_id: str
    started: str
    processor: str
    gains: tuple[Gain, ...]

    def with_gain(self, gain: Gain) -> Self:
        """Return the report with one gain added or replaced."""
        others = (each for each in self.gains if (each.workload, each.sequences) != (gain.workload, gain.sequences))
        return replace(self, gains=(*others, gain))

    def after(self, earlier: Self) -> Self:
        """Return the report with the gains of an earlier one.

        Raises:
            ConfigError: the earlier one has another setting.
        """
        for name in self.SETTING:
            here, there = getattr(self, name), getattr(earlier, name)
            if here != there:
                raise ConfigError(f"has {name} {there!r}, this run has {here!r}", param="output")
        return replace(self, gains=earlier.gains)


def scripts_of(names: Sequence[str], tokens: int) -> dict[str, Script]:
    """Return prompts, padded at their beginnings, and the first `tokens` tokens of the answers.

    Raises:
        ConfigError: there is no such text.
    """
    tokenizer = open_model(TEXTS_TOKENIZER).tokenizer()
    assert tokenizer is not None
    unknown = set(names) - RECORDED.keys()
    if unknown:
        raise ConfigError(f"must be one of {', '.join(RECORDED)}, not {min(unknown)!r}", param="workload")
    scripts = {}
    for name in names or RECORDED:
        recorded = RECORDED[name]()
        answer = tokenizer.encode(recorded.answer, add_special_tokens=False)[:tokens]
        prompt = tokenizer.encode(recorded.prompt)
        # Whole pages: all but the last token is found in the prefix cache, so prompts take none of the time.
        padding = prompt[:1] * ((1 - len(prompt)) % PAGE_SIZE)
        scripts[name] = Script((*padding, *prompt), tuple(answer))
    return scripts


class SpeculationArm(Arm):
    """An engine on an executor shared with the other arm; its learned step costs last from text to text."""

    def __init__(self, executor: LocalExecutor, config: EngineConfig, name: str) -> None:
        # Prompts are not measured: each is computed once.
        super().__init__(with_scheduler(executor, replace(config, prefix_cache=True), name))
        self._name = name

    @property
    def draft_counts(self) -> tuple[int, int]:
        """Verified and accepted draft tokens so far."""
        counts = self.scheduler.drafter.counts
        return counts.draft_tokens, counts.accepted_tokens

    def start(self, script: Script, sequences: int) -> None:
        """Begin the sequences and step until each has its first token."""
        # Without a sampling rule the sampler is skipped; `min_tokens` is one that changes nothing here.
        params = SamplingParams(temperature=0.0, min_tokens=1, max_tokens=len(script.answer), ignore_eos=True)
        self.begin(Request(f"{self._name}-{index}", script.prompt, params, seed=0) for index in range(sequences))
        while self.begun < sequences:
            self.turn()
        self.reset()


def measure_gains(
    executor: LocalExecutor,
    config: EngineConfig,
    scripts: Mapping[str, Script],
    batches: Sequence[int],
    *,
    pairs: int,
    progress: Callable[[str], None],
) -> Iterator[Gain]:
    """Generate every text at every batch size, without and with speculation in turns.

    Args:
        executor: idle.
        config: options of the arm that speculates.
        scripts: by name.
        batches: concurrent sequences.
        pairs: repetitions; the order within a pair alternates.
        progress: called before each measurement.

    Raises:
        ConfigError: the model's vocabulary, context or pool is too small for the texts.
    """
    texts = [(*script.prompt, *script.answer) for script in scripts.values()]
    largest, longest = max(map(max, texts)), max(map(len, texts))
    if largest >= executor.info.vocab_size:
        raise ConfigError(f"has {executor.info.vocab_size} tokens, the texts have token {largest}", param="model")
    if longest > (context := executor.capabilities().max_sequence_length):
        raise ConfigError(f"a text has {longest} tokens, more than the context of {context}", param="workload")
    if longest > (pool := executor.kv_capacity()):
        raise ConfigError(f"a text has {longest} tokens, more than the pool of {pool} holds", param="kv_capacity")
    sampler = executor.lm.sampler
    try:
        off = SpeculationArm(executor, replace(config, speculative=None, num_speculative_tokens=USUAL_DRAFT), "off")
        on = SpeculationArm(executor, config, "on")
        for name, script in scripts.items():
            executor.lm.sampler = ScriptedSampler(sampler, {0: script})
            for sequences in batches:
                progress(f"{name} x {sequences}")
                yield _gain(off, on, name, script, sequences, pairs)
    finally:
        executor.lm.sampler = sampler


def _gain(off: SpeculationArm, on: SpeculationArm, name: str, script: Script, sequences: int, pairs: int) -> Gain:
    drafted, accepted = on.draft_counts
    ratios = []
    for pair in range(pairs):
        arms = (off, on) if pair % 2 else (on, off)
        for arm in arms:
            arm.start(script, sequences)
        race(arms)
        assert {*off.answers().values(), *on.answers().values()} == {script.answer}, "answers are recorded"
        ratios.append(off.seconds / on.seconds)
    return Gain(
        workload=name,
        sequences=sequences,
        tokens=len(script.answer),
        steps_off=off.steps,
        steps_on=on.steps,
        drafted=on.draft_counts[0] - drafted,
        accepted=on.draft_counts[1] - accepted,
        ratios=tuple(ratios),
    )


def measure(given: argparse.Namespace) -> SpeculationReport:
    """Measure all texts and batch sizes; the report is written after each of them."""
    options = {name: value for name in ("quantize", "threads") if (value := getattr(given, name)) is not None}
    scripts = scripts_of(given.workload, given.tokens)
    longest = max(len(script.prompt) + len(script.answer) for script in scripts.values())
    pages = 2 * max(given.batch) * (-(-longest // PAGE_SIZE) + 1)  # both arms hold theirs
    room = {"max_batch_size": max(given.batch), "kv_capacity": pages * PAGE_SIZE}
    config = engine_config(given.model or given.shape, {"speculative": NGRAM, **room, **options})
    checkpoint = None if given.model else RandomCheckpoint(given.shape, shape_config(given.shape))
    with build_executor(LocalExecutor, config.model, checkpoint=checkpoint) as executor:
        report = SpeculationReport(
            version=SpeculationReport.LAYOUT,
            model=given.model or given.shape,
            options=tuple(f"{name}={value}" for name, value in options.items()),
            ferrum=installed_version(),
            numerics_id=executor.traits.numerics_id,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            processor=processor_name(),
            gains=(),
        )
        if given.out is not None and given.add and given.out.exists():
            report = report.after(SpeculationReport.read(given.out))
        for gain in measure_gains(executor, config, scripts, given.batch, pairs=given.pairs, progress=given.progress):
            report = report.with_gain(gain)
            if given.out is not None:
                report.write(given.out)
    return report


def row_of(gain: Gain) -> tuple[str, ...]:
    accepted = f"{gain.accepted / gain.drafted:.0%}" if gain.drafted else "-"
    counts = (gain.sequences, gain.steps_off, gain.steps_on, gain.drafted)
    return (gain.workload, *map(str, counts), accepted, f"{gain.speedup:.2f}x", f"{gain.least:.3f}")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="directory or hub id; default: random weights of --shape")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--quantize")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--workload", nargs="+", default=[], help="recorded texts; default: all")
    parser.add_argument("--batch", nargs="+", type=positive, default=[1, 4, 16], help="concurrent sequences")
    parser.add_argument("--tokens", type=positive, default=96, help="most tokens per answer")
    parser.add_argument("--pairs", type=positive, default=20, help="runs without and with speculation")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--add", action="store_true", help="add to the report in --out")
    given = parser.parse_args(arguments)
    given.progress = lambda line: print(line, file=sys.stderr)
    return given


def main() -> None:
    report = measure(parsed())
    columns = ("TEXT", "BATCH", "STEPS", "WITH", "DRAFTED", "ACCEPTED", "FASTER", "AT LEAST")
    print_table([columns, *map(row_of, report.gains)])


if __name__ == "__main__":
    run_script(main)
