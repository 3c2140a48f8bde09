"""Show that a model has one set of logits: on every instruction tier, with 1 and 2 threads, recorded and eager.

    python bench/one_arithmetic.py MODEL [--weights bfloat16 q8_0] [--kv bfloat16] [--reference]

For each format of weights and of the KV cache it prints a hash of all logits of a prefill and of greedily decoded
tokens. If they differ, it prints every hash with its variants and exits with 1. The reference is slow: give it few
tokens (--prefill 16 --decode 4).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any, Final

import numpy as np

from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.kernels.cpu.library import tiers
from ferrum.verbs.load_executor import load_executor
from script import positive, run_script

WEIGHTS: Final[dict[str, dict[str, Any]]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "q8_0": {"quantize": "q8_0"},
    "q4_k_m": {"quantize": "q4_k_m"},
}
"""Options of `load_executor` by format of weights."""

KV: Final = ("bfloat16", "float32", "int8")


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compute the same logits.

    Attributes:
        name: for people.
        options: of `load_executor`.
    """

    name: str
    options: dict[str, Any]


REFERENCE: Final = Variant("reference", {"kernels": "reference"})


def native_variants() -> Iterator[Variant]:
    """Yield every tier of this machine with 1 and 2 threads, recorded and eager."""
    for tier, threads, replay in product(tiers(), (1, 2), (True, False)):
        options = {"kernels": "native", "isa": tier, "threads": threads, "replay": replay}
        yield Variant(f"{tier}, {threads} threads, {'recorded' if replay else 'eager'}", options)


def hash_of_logits(model: str, prefill: int, decode: int, **options: Any) -> str:
    """Return a hash of the logits of `prefill` tokens and of `decode` tokens after them, each the most likely one."""
    found = sha256()
    with load_executor(model, kv_capacity=prefill + decode + 64, **options) as executor:
        tokens = [7919 * (i + 1) % executor.info.vocab_size for i in range(prefill)]
        start = 0
        for _ in range(decode + 1):
            span = Span("it", start, tuple(tokens[start:]), Want.LOGITS, Rows.ALL)
            (result,) = executor.submit(StepBatch((span,))).result().results
            if isinstance(result, Exception):
                raise result
            found.update(result.logits.tobytes())
            start = len(tokens)
            tokens.append(int(np.argmax(result.logits[-1])))
    return found.hexdigest()


def hashes(
    model: str, weights: str, kv: str, prefill: int, decode: int, variants: Sequence[Variant]
) -> dict[str, list[str]]:
    """Return the names of the variants by hash: one hash if their logits are equal."""
    found: dict[str, list[str]] = {}
    for variant in variants:
        options = {**WEIGHTS[weights], "kv_dtype": kv, **variant.options}
        found.setdefault(hash_of_logits(model, prefill, decode, **options), []).append(variant.name)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory or hub id; ferrum-tiny is built in")
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=["bfloat16", "q8_0", "q4_k_m"])
    parser.add_argument("--kv", nargs="+", choices=KV, default=list(KV))
    parser.add_argument("--prefill", type=positive, default=128)
    parser.add_argument("--decode", type=positive, default=64)
    parser.add_argument("--reference", action="store_true", help="include the numpy reference")
    chosen = parser.parse_args(arguments)
    variants = [*native_variants(), *([REFERENCE] if chosen.reference else [])]
    equal = True
    for weights, kv in product(chosen.weights, chosen.kv):
        found = hashes(chosen.model, weights, kv, chosen.prefill, chosen.decode, variants)
        equal &= len(found) == 1
        for digest, names in found.items():
            which = f"{len(names)} variants" if len(found) == 1 else "; ".join(names)
            print(f"{weights:9} KV {kv:9} {digest[:16]}  {which}", flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    run_script(main)
