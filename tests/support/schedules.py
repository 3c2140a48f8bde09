"""Random schedules, each drawn from a number, and the result that every request must have under all of them.

A schedule sets kernels, drafter, caches and pool size. The result depends on the request and the arithmetic only
(`alone_result`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from random import Random
from typing import Any, Final

import recurrent_model
from emulated_cuda import emulated_device
from family_cases import FAMILY_CASES
from ferrum.core.config import ModelConfig
from ferrum.core.types import Adapter, Request
from ferrum.runtime.load import build_executor
from ferrum.scheduler.queues import POLICIES
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.open_adapter import open_adapter
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.sources.read_model import read_spec
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from lora_files import write_lora
from native_twin import TIERS
from random_requests import VOCABULARY, recipe
from rank_models import FAMILIES, WIDE
from reference_run import Alone, alone
from shared_models import folder
from tiny import BASE, Case, directory_of

LONG: Final = {"head_dim": 16, "num_hidden_layers": 3, "max_position_embeddings": 1024}
WINDOWS: Final = {"use_sliding_window": True, "sliding_window": 37, "max_window_layers": 1}
MODELS: Final[dict[str, Case]] = {
    "full": Case("long", "Qwen3Config", LONG),
    "windows": Case("long-windows", "Qwen3Config", LONG | WINDOWS),
}
CONTEXT: Final = 64
"""Tokens of a sequence of a hybrid model, whose reference kernels take milliseconds for each."""
HYBRIDS: Final = {
    name: Case(f"short-{name}", config, changes | {"max_position_embeddings": CONTEXT})
    for name, config, changes in FAMILY_CASES
    if name in ("qwen3.5-tied", "lfm2-bias")
}
DRAFT: Final = Case("long-draft", "Qwen3Config", LONG | {"hidden_size": BASE["hidden_size"] // 2})

DRAFTERS: Final = ("none", "known", "ngram", "model", "same model", "ngram and model")
KINDS: Final = 36
PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
OUTPUT: Final = 24
"""Maximum tokens of an answer."""
SHORT: Final = 8
"""The same, of a hybrid model."""


EMULATED: Final = ("cuda", "cuda without graphs")
"""Names of kernels of the emulated device. What a request has alone is what the CPU computes."""


@dataclass(frozen=True)
class Arithmetic:
    """Everything that an answer may depend on, except the request.

    Attributes:
        model: of `MODELS`, of `HYBRIDS`, or of `recurrent_model.KINDS`.
        kernels, isa: what computes.
        weights: a format, or what they are quantised to.
        kv: the format of keys and values.
        context: most tokens of prompt and output.
        adapters: number of loaded adapters, which most requests use.
    """

    model: str
    kernels: str
    isa: str
    weights: str
    kv: str
    context: int
    adapters: int = 0

    def load(self, case: Case | None = None, **options: int) -> LocalExecutor:
        """Load the model, or another one, in these formats."""
        if self.kernels in EMULATED:
            with emulated_device(graphs=self.kernels == "cuda"):
                return replace(self, kernels="auto").load(case, **options)
        floats = self.weights in ("float32", "bfloat16")
        if self.kernels == "reference":
            options.pop("threads")
        chosen: dict[str, Any] = {
            "kernels": self.kernels,
            "isa": self.isa,
            "dtype": self.weights if floats else "bfloat16",
            "quantize": None if floats else self.weights,
            "kv_dtype": self.kv,
            "max_sequence_length": self.context,
        }
        if case is None and self.model in FAMILIES:
            bounds = {name: options.pop(name) for name in ("page_size", "max_rows") if name in options}
            config = ModelConfig(model=self.model, **chosen, **options)
            store = RandomCheckpoint(self.model, {**WIDE, **FAMILIES[self.model]})
            return build_executor(LocalExecutor, config, checkpoint=store, **bounds)
        if case is None and self.model in recurrent_model.KINDS:
            return recurrent_model.load(self.model, **chosen, **options)
        executor = load_executor(directory_of(case or (MODELS | HYBRIDS)[self.model]), **chosen, **options)
        for number in range(0 if case is not None else self.adapters):
            adapter = adapter_of(self.model, number)
            executor.load_adapter(adapter.digest.hex(), adapter)
        return executor


@dataclass(frozen=True)
class Schedule:
    """The way requests are served.

    Attributes:
        threads: of the native kernels.
        page_size, kv_capacity, max_rows, batch, chunk, policy: options of executor and engine; `chunk` is the most
            tokens of a step.
        overcommitted: all waiting requests are admitted, as if there were pages for all.
        keep: what outlasts a sequence: "nothing", its "pages", or "files", which outlast the engine too.
        swap: whether what makes room goes to buffers.
        drafter: who drafter tokens, at most `drafts` at a time.
        right: probability that a draft token of the informed proposer is right.
        dear: predicted cost of a verified row.
        faults: probability that a layer raises in a step, once.
        strangers: foreign sequences that are forked and truncated in the same steps.
        kinds: the kinds of requests that arrive repeatedly.
        arrivals: requests of each of the engine's lives.
        hurry: how many come per step.
        ranks: processes of the executor. What a request has alone is what one computes.
    """

    arithmetic: Arithmetic
    threads: int
    page_size: int
    kv_capacity: int
    max_rows: int
    batch: int
    chunk: int
    policy: str
    overcommitted: bool
    keep: str
    swap: bool
    drafter: str
    drafts: int
    right: float
    dear: float
    faults: float
    strangers: int
    kinds: tuple[int, ...]
    arrivals: int
    hurry: float
    ranks: int = 1

    @property
    def memory(self) -> str:
        """The storage in which pages are found again."""
        return self.keep + " and buffers" * self.swap


def schedule_of(number: int, kernels: Sequence[str]) -> Schedule:
    """Return schedule `number`, on one of these kernels."""
    pick = Random(number)
    kind = pick.choice(kernels)
    native = kind == "native"
    arithmetic = Arithmetic(
        model=pick.choice(tuple(MODELS)),
        kernels=kind,
        isa=pick.choice(TIERS) if native else "auto",
        weights=pick.choice(("float32", "bfloat16", "q8_0", "q4_k_m")),
        kv=pick.choice(("float32", "bfloat16", "int8")),
        context=pick.choice((160, 640)) if native else 128,
    )
    tight = pick.random() < 0.6
    page_size = pick.choice((4, 16, 64))
    batch = pick.choice((1, 2, 4, 8, 8, 16, 32))
    keep = pick.choice(("nothing", "pages", "pages", "files"))
    chunk = max(batch, min(512, int(2 ** pick.uniform(0, 9.5))))
    max_rows = pick.choice((32, 64, 512))
    return Schedule(
        arithmetic,
        threads=pick.choice((1, 2)),
        page_size=page_size,
        kv_capacity=arithmetic.context + 2 * page_size if tight else arithmetic.context * 12,
        # Windows have the size of one pass; a step may take several passes.
        max_rows=max_rows if arithmetic.model == "full" else max(max_rows, chunk),
        batch=batch,
        chunk=chunk,
        policy=pick.choice(tuple(POLICIES)),
        overcommitted=tight,
        keep=keep,
        swap=keep != "nothing" and pick.random() < 0.5,
        drafter=pick.choice(DRAFTERS),
        drafts=pick.randrange(1, 17),
        right=pick.choice((0.0, 0.3, 0.6, 0.9, 1.0)),
        dear=pick.choice((0.0, 0.03, 0.3)),
        faults=0.0,
        strangers=0 if tight else pick.choice((0, 3)),
        kinds=tuple(pick.sample(range(KINDS), pick.randrange(1, 10))),
        arrivals=pick.randrange(4, 24 + batch) if native else pick.randrange(2, 10),
        hurry=pick.choice((0.2, 2.0, 8.0)),
    )


def schedule_with_states(number: int, kernels: Sequence[str]) -> Schedule:
    """Return schedule `number` for a model with recurrent layers, with faults in some steps."""
    drawn, pick = schedule_of(number, kernels), Random(f"states {number}")
    model = pick.choice([kind for kind in recurrent_model.KINDS if "recurrent" in kind])
    arithmetic, rows = replace(drawn.arithmetic, model=model), max(drawn.max_rows, drawn.chunk)
    keep = "nothing" if drawn.keep == "nothing" else "pages"  # states stay in memory
    return replace(drawn, arithmetic=arithmetic, max_rows=rows, keep=keep, swap=False, faults=pick.choice((0.0, 0.2)))


def schedule_of_hybrid(number: int, kernels: Sequence[str]) -> Schedule:
    """Return schedule `number` for a hybrid model: n-gram drafts, prefix hits, preemption and several choices."""
    drawn, pick = schedule_of(number, kernels), Random(f"hybrid {number}")
    native, page_size = drawn.arithmetic.kernels == "native", pick.choice((4, 4, 16))
    arithmetic = replace(
        drawn.arithmetic,
        model=pick.choice(tuple(HYBRIDS)),
        weights=drawn.arithmetic.weights if native else "float32",
        kv=drawn.arithmetic.kv if native else "float32",
        context=CONTEXT,
    )
    return replace(
        drawn,
        arithmetic=arithmetic,
        page_size=page_size,
        kv_capacity=CONTEXT + pick.choice((2, 2, 8)) * page_size,
        batch=pick.choice((2, 4, 8)),
        chunk=pick.choice((8, 24, 64)),
        max_rows=64,
        overcommitted=True,
        keep=pick.choice(("nothing", "pages", "pages", "pages")),
        swap=False,
        drafter="ngram",
        dear=0.0,
        strangers=0,
        kinds=tuple(pick.sample(range(12), pick.randrange(1, 6))),
        arrivals=pick.randrange(4, 12),
    )


def schedule_on_ranks(number: int, kernels: Sequence[str]) -> Schedule:
    """Return schedule `number` for a model of `FAMILIES` on two or four ranks, every other one with int8 keys."""
    drawn, pick = schedule_of(number, kernels), Random(f"ranks {number}")
    model, context = tuple(FAMILIES)[number % len(FAMILIES)], 96
    arithmetic = replace(drawn.arithmetic, model=model, context=context, kv=("int8", drawn.arithmetic.kv)[number % 2])
    states = model not in ("experts", "latent")  # which stay in memory
    keep = "pages" if states and drawn.keep == "files" else drawn.keep
    return replace(
        drawn,
        arithmetic=arithmetic,
        threads=1,
        kv_capacity=context + 2 * drawn.page_size if drawn.overcommitted else 12 * context,
        max_rows=max(drawn.max_rows, drawn.chunk),
        keep=keep,
        swap=drawn.swap and not states,
        drafter=pick.choice(("none", "known", "ngram")),
        arrivals=pick.randrange(4, 12),
        ranks=2 if model in ("latent", "delta rule") else pick.choice((2, 4)),
    )


@cache
def adapter_of(model: str, number: int) -> AdapterFile:
    """Return an adapter of such a model, with all matrices or a few."""
    case, modules = MODELS[model], PROJECTIONS if number % 2 else PROJECTIONS[number % 3 :: 3]
    directory = folder(f"{case.name}-adapter-{number}")
    write_lora(directory, case, number, rank=1 + number, modules=modules)
    return open_adapter(str(directory), read_spec(ModelConfig(model=str(directory_of(case)))))


def schedule_with_adapters(number: int, kernels: Sequence[str]) -> Schedule:
    """Return schedule `number` with eight adapters."""
    drawn = schedule_of(number, kernels)
    return replace(drawn, arithmetic=replace(drawn.arithmetic, adapters=8))


def adapters_of(arithmetic: Arithmetic, kind: int, length: int) -> tuple[Adapter, ...]:
    """Return the adapters of a request of one kind, some of which begin within its prompt."""
    pick = Random(f"adapters {kind}")
    numbers = (
        sorted(pick.sample(range(arithmetic.adapters), pick.choice((0, 1, 1, 1, 2)))) if arithmetic.adapters else []
    )
    begins = pick.choice((0, 0, pick.randrange(length)))
    return tuple(
        Adapter(f"a{each}", adapter_of(arithmetic.model, each).digest, pick.choice((1.0, 1.0, 0.5)), begins)
        for each in numbers
    )


@lru_cache(maxsize=4)
def quiet_executor(arithmetic: Arithmetic) -> LocalExecutor:
    """Return an executor with large pages, capacity for one sequence, and one thread."""
    if arithmetic.kernels in EMULATED:
        arithmetic = replace(arithmetic, kernels="native")
    return arithmetic.load(kv_capacity=arithmetic.context + 64, threads=1)


@cache
def request_of(arithmetic: Arithmetic, kind: int) -> Request:
    """Return a request of one kind. Most prompts branch off from other prompts or from answers to them."""
    pick, model = Random(kind), recipe(kind)
    most, wanted = SHORT if arithmetic.model in HYBRIDS else OUTPUT, model.params.max_tokens
    params = replace(model.params, max_tokens=most if wanted is None else min(wanted, most))
    longest = arithmetic.context - OUTPUT - 1
    if kind % 3:
        parent = pick.randrange(kind)
        text = (*request_of(arithmetic, parent).prompt, *alone_result(arithmetic, parent, 0).tokens)
        text = text[: pick.choice((len(text), pick.randrange(1, len(text) + 1)))]
    else:
        phrase = [pick.randrange(VOCABULARY) for _ in range(pick.randrange(3, 40))]
        length = pick.choice((1, 20, 64, 100, 150, longest))
        text = tuple(token if pick.random() < 0.97 else 1 for token in (phrase * length)[:length])
    text += tuple(pick.randrange(VOCABULARY) for _ in range(pick.choice((0, 1, 9))))
    text = text[:longest]
    messages = tuple(sorted(pick.sample(range(len(text)), min(len(text), pick.choice((0, 1, 4))))))
    adapters = adapters_of(arithmetic, kind, len(text))
    return replace(model, prompt=text, params=params, adapters=adapters, boundaries=messages)


@cache
def alone_result(arithmetic: Arithmetic, kind: int, choice: int) -> Alone:
    """Return the result of one choice of such a request alone."""
    return alone(quiet_executor(arithmetic), request_of(arithmetic, kind), choice, arithmetic.context)
