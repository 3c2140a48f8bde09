"""What speculation gains: recorded texts are generated with and without it, step by step in turns, and timed.

The sampler is scripted: it computes every row as ever and then says what the record says. Weights may be random then,
and costs and acceptance are real all the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from ferrum.bench.arm import Arm, race
from ferrum.bench.report import Document
from ferrum.bench.speculation_texts import RECORDED
from ferrum.core.config import PAGE_SIZE, USUAL_DRAFT, EngineConfig
from ferrum.core.errors import ConfigError, StepError
from ferrum.core.json_record import JsonRecord
from ferrum.core.params import SamplingParams
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import Request
from ferrum.engine.build import with_scheduler
from ferrum.runtime.hub import resolve_model
from ferrum.runtime.local_executor import LocalExecutor
from ferrum.sampling.rules import Row
from ferrum.sampling.sampler import Choice, Chooser, Question
from ferrum.text.tokenizer import load_tokenizer

TEXTS_TOKENIZER: Final = "ferrum-tiny"
"""The built-in model's: which tokens a text becomes matters little, as long as it is there."""

BOUND: Final = 1.96
"""Standard errors from the mean to the bound."""


@dataclass(frozen=True, slots=True)
class Script:
    """A prompt and what follows it, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class ScriptedChooser:
    """Does the work of another `Chooser`, and says what the script of the request's seed says.

    Args:
        chooser: does the work.
        scripts: by seed.
    """

    def __init__(self, chooser: Chooser, scripts: Mapping[int, Script]) -> None:
        self._chooser = chooser
        self._scripts = scripts

    def held_bytes(self, vocab_size: int) -> int:
        """See `Chooser`."""
        return self._chooser.held_bytes(vocab_size)

    def choose(self, choices: Sequence[Choice]) -> list[int | StepError]:
        """See `Chooser`."""
        self._chooser.choose(choices)
        return [self._scripted(each.row) for each in choices]

    def logprobs(self, questions: Sequence[Question]) -> list[TokenLogprobs]:
        """See `Chooser`."""
        return self._chooser.logprobs(questions)

    def _scripted(self, row: Row) -> int:
        return self._scripts[row.sampling.seed].answer[row.position - row.sampling.prompt_length]


@dataclass(frozen=True, slots=True)
class Gain(JsonRecord):
    """What speculation did for one text at one batch size.

    Attributes:
        workload, sequences, tokens: the text, how often it was generated at a time, and its tokens.
        steps_off, steps_on: steps without and with speculation.
        drafted, accepted: guesses that were verified, and right ones, over all pairs.
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
        """The geometric mean of the ratios."""
        return statistics.geometric_mean(self.ratios)

    @property
    def least(self) -> float:
        """The lower end of its 95% interval."""
        if len(self.ratios) < 2:
            return 0.0
        logs = [math.log(ratio) for ratio in self.ratios]
        return math.exp(statistics.mean(logs) - BOUND * statistics.stdev(logs) / math.sqrt(len(logs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationReport(Document):
    """A run.

    Attributes:
        model: its name, or its shape's.
        options: the model's and the engine's, where they were given.
        ferrum, numerics_id, started, processor: by what, when and where it was measured.
        gains: one for each text and batch size.
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
        """The report with one more gain, in place of an earlier one of its text and batch size."""
        others = (each for each in self.gains if (each.workload, each.sequences) != (gain.workload, gain.sequences))
        return replace(self, gains=(*others, gain))

    def after(self, earlier: Self) -> Self:
        """The report that goes on with the gains of an earlier one.

        Raises:
            ConfigError: that one is of something else.
        """
        for name in self.SETTING:
            here, there = getattr(self, name), getattr(earlier, name)
            if here != there:
                raise ConfigError(f"it has {name} {there!r}, and this run {here!r}", param="output")
        return replace(self, gains=earlier.gains)


def scripts_of(names: Sequence[str], tokens: int) -> dict[str, Script]:
    """Prompts, padded at their beginnings, and the first `tokens` tokens of the answers.

    Raises:
        ConfigError: there is no such text.
    """
    tokenizer = load_tokenizer(resolve_model(TEXTS_TOKENIZER))
    assert tokenizer is not None
    unknown = set(names) - RECORDED.keys()
    if unknown:
        raise ConfigError(f"{min(unknown)!r} is none of {', '.join(RECORDED)}", param="workload")
    scripts = {}
    for name in names or RECORDED:
        recorded = RECORDED[name]()
        answer = tokenizer.encode(recorded.answer, add_special_tokens=False)[:tokens]
        prompt = tokenizer.encode(recorded.prompt)
        # All of it but its last token is then found, and takes none of the time of the run.
        padding = prompt[:1] * ((1 - len(prompt)) % PAGE_SIZE)
        scripts[name] = Script((*padding, *prompt), tuple(answer))
    return scripts


class SpeculationArm(Arm):
    """An engine on an executor; what it has learned of costs it keeps from text to text.

    Args:
        executor: shared with the other arm.
        config: the engine's options.
        name: begins the names of its requests.
    """

    def __init__(self, executor: LocalExecutor, config: EngineConfig, name: str) -> None:
        # Prompts are no part of what is measured: each is computed once.
        super().__init__(with_scheduler(executor, replace(config, prefix_cache=True), name))
        self._name = name

    @property
    def guesses(self) -> tuple[int, int]:
        """Verified and right ones, so far."""
        counts = self.scheduler.drafter.counts
        return counts.draft_tokens, counts.accepted_tokens

    def start(self, script: Script, sequences: int) -> None:
        """Begin so many sequences, and step until each has its first token."""
        # `min_tokens` changes nothing here, and for a request without any rule the sampler is not asked.
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
    tell: Callable[[str], None],
) -> Iterator[Gain]:
    """Generate every text at every batch size, without and with speculation in turns.

    Args:
        executor: on which nobody else works.
        config: the options of the arm that speculates.
        scripts: by name.
        batches: how many sequences at a time.
        pairs: how often each; the order within a pair changes from pair to pair.
        tell: told of each measurement before it is made.

    Raises:
        ConfigError: the model's vocabulary, its context or its pool is too small for the texts.
    """
    texts = [(*script.prompt, *script.answer) for script in scripts.values()]
    largest, longest = max(map(max, texts)), max(map(len, texts))
    if largest >= executor.info.vocab_size:
        raise ConfigError(f"the texts have token {largest}, and the model has not", param="model")
    if longest > (context := executor.capabilities().max_sequence_length):
        raise ConfigError(f"a text has {longest} tokens, more than the context of {context}", param="workload")
    if longest > (pool := executor.kv_capacity()):
        raise ConfigError(f"a text has {longest} tokens, more than the pool of {pool} holds", param="kv_capacity")
    chooser = executor.lm.chooser
    try:
        off = SpeculationArm(executor, replace(config, speculative=None, num_speculative_tokens=USUAL_DRAFT), "off")
        on = SpeculationArm(executor, config, "on")
        for name, script in scripts.items():
            executor.lm.chooser = ScriptedChooser(chooser, {0: script})
            for sequences in batches:
                tell(f"{name} x {sequences}")
                yield _gain(off, on, name, script, sequences, pairs)
    finally:
        executor.lm.chooser = chooser


def _gain(off: SpeculationArm, on: SpeculationArm, name: str, script: Script, sequences: int, pairs: int) -> Gain:
    drafted, accepted = on.guesses
    ratios = []
    for pair in range(pairs):
        arms = (off, on) if pair % 2 else (on, off)
        for arm in arms:
            arm.start(script, sequences)
        race(arms)
        assert {*off.answers().values(), *on.answers().values()} == {script.answer}, "the answers are the recorded ones"
        ratios.append(off.seconds / on.seconds)
    return Gain(
        workload=name,
        sequences=sequences,
        tokens=len(script.answer),
        steps_off=off.steps,
        steps_on=on.steps,
        drafted=on.guesses[0] - drafted,
        accepted=on.guesses[1] - accepted,
        ratios=tuple(ratios),
    )
