"""What speculation gains: recorded texts are generated with and without it, step by step in turns, and timed.

The sampler is scripted: it computes every row as ever and then says what the record says. Weights may be random then,
and costs and acceptance are real all the same.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import ClassVar, Final

from ferrum.bench.report import Document
from ferrum.bench.speculation_texts import RECORDED
from ferrum.core.config import NGRAM, EngineConfig
from ferrum.core.errors import ConfigError, StepError
from ferrum.core.params import SamplingParams
from ferrum.core.serial import JsonRecord
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import Request, TokenEvent
from ferrum.engine.build import with_scheduler
from ferrum.engine.engine import Engine
from ferrum.engine.messages import Message
from ferrum.runtime.hub import resolve_model
from ferrum.runtime.local import LocalExecutor
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

    model: str
    options: tuple[str, ...]
    ferrum: str
    numerics_id: str
    started: str
    processor: str
    gains: tuple[Gain, ...]


def scripts_of(names: Sequence[str], tokens: int) -> dict[str, Script]:
    """Prompts and the first `tokens` tokens of the answers.

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
        scripts[name] = Script(tuple(tokenizer.encode(recorded.prompt)), tuple(answer))
    return scripts


class Arm:
    """An engine on an executor, driven by hand; what it has learned of costs it keeps from text to text.

    Args:
        executor: shared with the other arm: one steps while the other one waits.
        config: the engine's options.
        name: begins the names of its requests.

    Attributes:
        seconds, steps: of its turns since `begin`.
    """

    def __init__(self, executor: LocalExecutor, config: EngineConfig, name: str) -> None:
        # Prompts are no part of what is measured: each is computed once.
        self._built = with_scheduler(executor, replace(config, prefix_cache=True), name)
        self._name = name
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._events: list[TokenEvent] = []
        self._engine = Engine(self._built.executor, self._built.scheduler, inbox=self._inbox, post=self._events.extend)
        self.seconds, self.steps = 0.0, 0

    @property
    def guesses(self) -> tuple[int, int]:
        """Verified and right ones, so far."""
        counts = self._built.scheduler.drafter.counts
        return counts.draft_tokens, counts.accepted_tokens

    @property
    def said(self) -> int:
        """Tokens since `begin`, over all sequences."""
        return sum(len(event.token_ids) for event in self._events)

    @property
    def running(self) -> bool:
        """Whether any is still to come."""
        return self._built.scheduler.has_work

    def begin(self, script: Script, sequences: int) -> None:
        """Start so many sequences, and step until each has its first token."""
        params = SamplingParams(temperature=0.0, max_tokens=len(script.answer), ignore_eos=True)
        self._events.clear()
        for index in range(sequences):
            self._inbox.put(Request(f"{self._name}-{index}", script.prompt, params, seed=0))
        while len({event.request_id for event in self._events}) < sequences:
            self._engine.step()
        self.seconds, self.steps = 0.0, 0

    def turn(self) -> None:
        """One step."""
        begun = time.perf_counter()
        self._engine.step()
        self.seconds += time.perf_counter() - begun
        self.steps += 1

    def check(self, script: Script) -> None:
        """Raise what a sequence failed of, or what it said wrongly."""
        told: dict[str, list[int]] = {}
        for event in self._events:
            if event.error is not None:
                raise event.error
            told.setdefault(event.request_id, []).extend(event.token_ids)
        assert all(tuple(tokens) == script.answer for tokens in told.values()), "the answers are the recorded ones"


def measure_gains(
    executor: LocalExecutor,
    config: EngineConfig,
    scripts: Mapping[str, Script],
    batches: Sequence[int],
    *,
    pairs: int,
    tell: Callable[[str], None],
) -> list[Gain]:
    """Generate every text at every batch size, without and with speculation in turns.

    Args:
        executor: on which nobody else works.
        config: its options; `speculative` and the length of drafts are those of the arm that speculates.
        scripts: by name.
        batches: how many sequences at a time.
        pairs: how often each; the order within a pair changes from pair to pair.
        tell: told of each measurement before it is made.

    Raises:
        ConfigError: the model's vocabulary is too small for the texts.
    """
    largest = max(token for script in scripts.values() for token in (*script.prompt, *script.answer))
    if largest >= executor.info.vocab_size:
        raise ConfigError(f"the texts have token {largest}, and the model has not", param="model")
    chooser = executor.lm.chooser
    gains = []
    try:
        off = Arm(executor, replace(config, speculative=None), "off")
        on = Arm(executor, replace(config, speculative=config.speculative or NGRAM), "on")
        for name, script in scripts.items():
            executor.lm.chooser = ScriptedChooser(chooser, {0: script})
            for sequences in batches:
                tell(f"{name} x {sequences}")
                gains.append(_gain(off, on, name, script, sequences, pairs))
    finally:
        executor.lm.chooser = chooser
    return gains


def _gain(off: Arm, on: Arm, name: str, script: Script, sequences: int, pairs: int) -> Gain:
    drafted, accepted = on.guesses
    ratios = []
    for pair in range(pairs):
        _race((off, on) if pair % 2 else (on, off), script, sequences)
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


def _race(arms: tuple[Arm, Arm], script: Script, sequences: int) -> None:
    """Let both say the script. Whoever has said less is next, so that a slow moment of the machine meets both alike."""
    for arm in arms:
        arm.begin(script, sequences)
    while running := [arm for arm in arms if arm.running]:
        min(running, key=lambda arm: arm.said).turn()
    for arm in arms:
        arm.check(script)
