"""The stages of `run.py` that measure: ferrum on the device and on the CPU, next to limits and to torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from device_costs import memory_rate, platform

from ferrum.bench.limits import Rates, seconds_of
from ferrum.bench.shapes import shape_config
from ferrum.bench.subject import ExecutorSubject
from ferrum.bench.workloads import Kind, Workload
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import Unsupported
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.random_checkpoint import RandomCheckpoint

Say = Callable[..., None]

SHAPES: Final = ("qwen3-0.6b", "qwen3-8b")
FORMATS: Final = ("q8_0", "q4_k_m")
THREADS: Final = (1, 2, 4, 8, 16)
CONTEXT: Final = 1024
REPEATS: Final = 3

TINY: Final[Mapping[str, Any]] = {
    **shape_config("qwen3-0.6b"),
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 128,
}


def workloads(context: int, batches: tuple[int, ...], tokens: int) -> list[Workload]:
    """Return decodes of batches after a context, a prompt of its length, and requests through the engine."""
    decodes = [Workload(f"decode {count} @ {context}", Kind.DECODE, count, context, tokens) for count in batches]
    served = Workload(f"serve {batches[-1]}", Kind.SERVE, batches[-1], context // 4, 2 * tokens)
    return [*decodes, Workload(f"prefill {context}", Kind.PREFILL, 1, 0, context), served]


def on_device(say: Say, emulated: bool) -> None:
    """Report tokens per second of random models on the device, and the limit by the bytes that a step reads."""
    driver, _ = platform(emulated)
    rate = memory_rate(driver, 1 << (20 if emulated else 30))
    say("memory moved by copies", rate / 1e9, "GB/s")
    work = workloads(16, (1, 2), 1) if emulated else workloads(CONTEXT, (1, 8, 32), 32)
    for shape in ("tiny",) if emulated else SHAPES:
        for format in FORMATS:
            try:
                measure(say, shape, format, "cuda", work, rate)
            except Unsupported as error:
                say(f"{shape} {format}", str(error), ok=None if emulated else False)


def on_cpu(say: Say, emulated: bool) -> None:
    """Report tokens per second of the CPU engine by its threads."""
    for threads in THREADS[:1] if emulated else THREADS:
        work = workloads(64, (1,), 2) if emulated else workloads(CONTEXT, (1, 8), 8)[:3]
        measure(say, "tiny" if emulated else SHAPES[0], FORMATS[0], "cpu", work, None, threads=threads)


def measure(
    say: Say, shape: str, format: str, device: str, work: list[Workload], rate: float | None, **options: Any
) -> None:
    """Load a random model and report the speed of workloads.

    Args:
        say: reports a result.
        shape, format, device: of the model.
        work: the workloads.
        rate: bytes that the device reads in a second, for the limit; None: no limit is reported.
        options: further ones of the model.
    """
    begun = time.perf_counter()
    longest, most = max(each.length for each in work), max(each.sequences for each in work)
    model = ModelConfig(
        model=shape,
        device=device,
        quantize=format,
        kv_capacity=most * -(-longest // 64) * 64 + 64,
        max_batch_size=most,
        **options,
    )
    random = RandomCheckpoint(shape, TINY if shape == "tiny" else shape_config(shape))
    executor = build_executor(LocalStepExecutor, model, checkpoint=random)
    name = " ".join([shape, format, device, *(f"{each} threads" for each in options.values())])
    say(f"{name}: load", time.perf_counter() - begun, "s", weights=executor.memory_plan.weights)
    with ExecutorSubject(executor, EngineConfig(model=model, run_ahead=1), shape) as subject:
        for each in work:
            times = min((subject.run(each) for _ in range(REPEATS)), key=lambda times: times.whole)
            limits: dict[str, float] = {}
            if rate is not None:
                rates = Rates(rate, *(float("inf"),) * 4)
                least = seconds_of(subject.costs_of(each).work(each.passes(subject.max_rows)), rates)
                limits = {"limit": each.counted_tokens / least, "share": least / times.whole}
            bare = each.counted_tokens / times.bare
            say(f"{name}: {each.name}", each.counted_tokens / times.whole, "tokens/s", bare=bare, **limits)


# ---- Peers ----


def peers(say: Say, emulated: bool) -> None:
    """Report what torch makes of the same shapes: the products of a step in one graph, and transformers."""
    if find_spec("torch") is None:
        say("torch", "missing")
        return
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for shape in ("tiny",) if emulated else SHAPES:
        say(f"{shape}: products in bfloat16", 1 / _chain(torch, _matrices(shape), device), "tokens/s")
    if find_spec("transformers") is None or emulated:
        say("transformers", "missing" if find_spec("transformers") is None else "not measured here")
        return
    say(f"{SHAPES[0]}: transformers, static cache", _transformers(torch, SHAPES[0], device), "tokens/s")


def _config(shape: str) -> Mapping[str, Any]:
    return TINY if shape == "tiny" else shape_config(shape)


def _matrices(shape: str) -> list[tuple[int, int]]:
    """Return the outputs and inputs of a step's products."""
    c = _config(shape)
    hidden, inner, heads, kv = (
        c[f"{n}"] for n in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    )
    queries, keys = heads * c["head_dim"], kv * c["head_dim"]
    layer = [(queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]
    return [*layer * c["num_hidden_layers"], (c["vocab_size"], hidden)]


def _chain(torch: Any, shapes: list[tuple[int, int]], device: str) -> float:
    """Return the seconds of the products of one row, in a graph if there is a device."""
    weights = [torch.zeros(outputs, inputs, dtype=torch.bfloat16, device=device) for outputs, inputs in shapes]
    rows = {inputs: torch.zeros(1, inputs, dtype=torch.bfloat16, device=device) for _, inputs in shapes}

    def step() -> None:
        for weight in weights:
            torch.nn.functional.linear(rows[weight.shape[1]], weight)

    step()
    if device == "cpu":
        return _timed(step, lambda: None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _timed(graph.replay, torch.cuda.synchronize)


def _timed(step: Callable[[], Any], wait: Callable[[], Any], count: int = 20) -> float:
    step()
    wait()
    begun = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - begun) / count


def _transformers(torch: Any, shape: str, device: str) -> float:
    """Return the tokens per second of a random model in transformers with a static cache."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(**{name: value for name, value in _config(shape).items() if name != "architectures"})
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, config.vocab_size, (1, CONTEXT), device=device)

    def generate(tokens: int) -> float:
        begun = time.perf_counter()
        model.generate(
            ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, cache_implementation="static"
        )
        return time.perf_counter() - begun

    generate(4)
    return 60 / (generate(64) - generate(4))
