"""What `determinism.py` asks of an engine, and the frame of the programs that answer in the engines' environments.

    python bench/determinism_ENGINE.py JOB.json ANSWERS.json

Needs the standard library only. A program writes the tokens of each prompt with their log-probabilities, what it saw of
the condition, and the processor seconds that generation took. Floats keep every bit in JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Answer = tuple[list[int], list[float]]
"""Tokens, and the log-probability of each."""

LINE: Final = 16
"""Lengths of contexts and pools are multiples of it."""


@dataclass(frozen=True)
class Job:
    """Prompts, and the condition in which an engine answers them greedily.

    Attributes:
        model: a GGUF file or a directory.
        prompts: token ids.
        max_tokens: length of every answer; end tokens do not end it.
        batch: answers in progress at once.
        threads: of the engine.
        crowded: more requests than the memory for keys and values holds, so that the engine must preempt or delay some.
        warm: each prompt is computed once before it is answered, and what is left of it is used.
        drafts: draft tokens are found in the text so far and verified.
        other_tier: use another instruction tier than the best one.
        int8_kv: keys and values in 8 bits.
        settings: of the engine, see `determinism_engines.py`.
    """

    model: str
    prompts: list[list[int]]
    max_tokens: int
    batch: int = 1
    threads: int = 1
    crowded: bool = False
    warm: bool = False
    drafts: bool = False
    other_tier: bool = False
    int8_kv: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer, rounded up."""
        return -(-(max(map(len, self.prompts)) + self.max_tokens) // LINE) * LINE

    @property
    def crowded_tokens(self) -> int:
        """Tokens that a crowded memory holds: the longest text, and a short one."""
        return self.longest + 8 * LINE


class NotOfferedError(Exception):
    """The engine lacks this condition; the text says what it lacks."""


@dataclass
class Facts:
    """What a program saw: processor seconds of generation, and proofs that the condition took place."""

    seconds: float = 0.0
    seen: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the processor seconds of this context, which other programs on the machine hardly change."""
        begun = time.process_time()
        yield
        self.seconds += time.process_time() - begun


def draft_of(tokens: Sequence[int], longest: int = 8, match: int = 2) -> list[int]:
    """Return the tokens that followed the last occurrence of the final two, as prompt lookup proposes them."""
    end = list(tokens[-match:])
    for begin in range(len(tokens) - match - 1, -1, -1):
        if list(tokens[begin : begin + match]) == end:
            return list(tokens[begin + match : begin + match + longest])
    return []


def run_job(answer: Callable[[Job, Facts], list[Answer]]) -> None:
    """Answer the job that the first argument names, and write the second."""
    job, facts = Job(**json.loads(Path(sys.argv[1]).read_text())), Facts()
    try:
        record: dict[str, Any] = {"answers": answer(job, facts)}
    except NotOfferedError as error:
        record = {"not_offered": str(error)}
    record |= {"seconds": facts.seconds, "seen": facts.seen}
    Path(sys.argv[2]).write_text(json.dumps(record))
