"""Each sampling rule at each depth of steps in flight: 300 random requests have the same tokens at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from queue import SimpleQueue
from random import Random
from typing import Any

import pytest

from fakes import Guesses
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.engine.engine import Engine
from ferrum.engine.messages import Events, Message
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from native_twin import require_native
from tiny import directory_of, find

VOCABULARY = 131
CONTEXT = 96
DEPTHS = range(5)

RULES: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.4},
    "min_p": {"min_p": 0.3},
    "min_tokens": {"min_tokens": 6},
    "logit_bias": {"logit_bias": {3: 2.0, 7: -100.0}},
    "allowed_token_ids": {"allowed_token_ids": list(range(5, 90))},
    "bad_words": {"bad_words": ["given as tokens"]},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "dry_multiplier": {"dry_multiplier": 4.0, "dry_allowed_length": 1},
    "logprobs": {"logprobs": 2},
}
"""Values that turn on one rule each."""

KINDS = [*RULES, "several"]
REQUESTS = 300 // len(KINDS)


def request_of(kind: str, number: int) -> Request:
    """Return a random request with one rule, or several. Its prompt has few tokens, so they repeat."""
    pick = Random(f"{kind} {number}")
    rules = [kind] if kind in RULES else pick.sample(sorted(RULES), 4)
    chosen = {name: value for rule in rules for name, value in RULES[rule].items()}
    words = ((1, 2), (2, 1), (3, 3), *((word,) for word in range(40, 80))) if "bad_words" in rules else ()
    params = SamplingParams(
        **{"temperature": pick.choice((0.0, 0.7)), "logprobs": 0, "max_tokens": pick.randrange(6, 18), **chosen}
    )
    return Request(
        f"{kind} {number}",
        tuple(pick.randrange(4) for _ in range(pick.randrange(1, 30))),
        params,
        seed=number,
        stop_token_ids=frozenset({number, 99}),
        eos_token_ids=(99,),
        bad_words=words,
        dry_sequence_breakers=pick.choice(((), ((2,), (3, 1)))),
    )


@dataclass
class Outcome:
    """What a client gets of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    end: tuple[object, ...] = ()


def outcomes(
    executor: LocalExecutor, requests: list[Request], depth: int, drafter: Guesses | None = None
) -> tuple[dict[str, Outcome], int]:
    """Run requests together; return what they get, and the number of steps that ran ahead."""
    found = {each.request_id: Outcome() for each in requests}

    def take(events: Events) -> None:
        for event in events.events:
            outcome = found[event.request_id]
            outcome.tokens += event.token_ids
            outcome.logprobs += event.logprobs or ()
            outcome.end = (event.finish_reason, event.stop_reason, event.error)

    inbox: SimpleQueue[Message] = SimpleQueue()
    executor.run_ahead(depth)
    scheduler = Scheduler(
        executor.lm.pages,
        policy=POLICIES["fcfs"],
        max_tokens_per_step=48,
        max_sequences=6,
        max_sequence_length=CONTEXT,
        drafter=drafter,
    )
    engine = Engine(executor, scheduler, inbox=inbox, post=take, depth=depth)
    for each in requests:
        inbox.put(each)
    engine.step()
    while scheduler.has_work:
        engine.step()
    while engine.step():
        pass
    return found, engine.steps_ahead


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    require_native()
    options = {"page_size": 4, "kv_capacity": 1024, "max_sequence_length": CONTEXT, "dtype": "bfloat16"}
    with load_executor(directory_of(find("qwen3-windows")), kernels="native", run_ahead=max(DEPTHS), **options) as one:
        yield one


def test_every_rule_of_the_sampler_is_here() -> None:
    rules = {each.name for each in fields(SamplingParams) if each.metadata["rule"].startswith("sampling.")}
    settings = {each.name for each in fields(SamplingParams) if each.metadata["switch"] is not None}
    assert rules - settings - {"seed", "logprob_token_ids"} == set(RULES)


@pytest.mark.parametrize("kind", KINDS)
def test_each_rule_has_the_same_tokens_at_every_depth(executor: LocalExecutor, kind: str) -> None:
    requests = [request_of(kind, number) for number in range(REQUESTS)]
    expected, ahead = outcomes(executor, requests, 0)
    assert ahead == 0
    reads = {each.name for each in fields(SamplingParams) if each.metadata["reads"] is not None}
    for depth in DEPTHS[1:]:
        found, ahead = outcomes(executor, requests, depth)
        assert found == expected, depth
        assert kind == "several" or (ahead == 0) == (kind in reads), "exactly rules that read tokens wait for them"
    pick = Random(kind)

    def mostly_right(sequence: Sequence) -> tuple[int, ...]:
        right = expected[sequence.request.request_id].tokens[sequence.generated :]
        return tuple(token if pick.random() < 0.75 else 1 for token in right[: pick.randrange(4)])

    assert outcomes(executor, requests, 1, Guesses(mostly_right))[0] == expected
