"""Writes docs/executor-reference.md, its table of Rust names aside, from signatures, docstrings and option metadata.

    python tests/support/executor_reference.py

Run it after a change of a verb, a field or an option of the executor. A test compares the document.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import ferrum
from ferrum.core.config import Switches
from ferrum.core.option_fields import accepted
from ferrum.verbs.factory import OPTIONS

DOCUMENT = Path(__file__).parents[2] / "docs" / "executor-reference.md"
BEGIN, END = "<!-- reference: rendered by tests/support/executor_reference.py -->\n", "<!-- end of the reference -->\n"

RECORDS = {
    "Inputs and outputs": """PrefillInput PrefillOutput DecodeInput DecodeOutput UnifiedBatchItem UnifiedBatch
        SpeculativeDecodeOutput""",
    "Handles and models": "KvCacheHandle ModelInfo KvShape LlmRuntimeConfig UnifiedItem",
    "Status, metrics and counters": """ExecutorStatus ExecutorMemoryUsage ExecutorMetrics CacheMetricsSnapshot
        SpeculationCounts PrefixCounts LoraMetricsSnapshot""",
    "Capabilities and memory": "ExecutorCapabilities ExecutorTraits MemoryRequirements MemoryPlan PoolPart",
    "Configurations": """ExecutorConfig ExecutorAttentionConfig ExecutorMemoryConfig OptimizationConfig""",
    "Steps": "Span SpanExtras AdapterUse Inputs Grid Sampling Score StepBatch StepOutput SpanResult TokenLogprobs",
}
ENUMS = """AttentionType DataType Device ExecutorState ExecutorType LogitsPolicy Hidden Rows Want FinishReason"""
CLASSES = {
    "ModelExecutor": "The verbs and reports of every executor.",
    "LocalExecutor": "What `load_executor` returns has these in addition.",
    "ModelExecutorFactory": "",
    "ExecutorRegistry": "",
    "DecoderOnlyLLM": "",
}


VALUES = {
    "CARRY": "Token id -1: the token that this sequence sampled in the step before.",
    "GenericKvCacheHandle": "Another name of `KvCacheHandle`.",
    "TokenId": "An index into the vocabulary.",
}
ELSEWHERE = ("ferrum.client.", "ferrum.server.", "ferrum.core.params")
"""Homes of public names that are not the executor's."""


def described(owner: Any) -> dict[str, str]:
    """Return what the Attributes, or Args, of a docstring say, by name."""
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__ if inspect.isclass(owner) else (owner,)):
        _, _, rest = re.sub(r"\bArgs:", "Attributes:", inspect.getdoc(base) or "").partition("Attributes:\n")
        for entry in re.findall(
            r"^    (\S[^\n]*(?:\n     +[^\n]*|\n        [^\n]*)*)", rest.partition("\n\n")[0], re.M
        ):
            names, _, text = re.sub(r"\s+", " ", entry).partition(": ")
            found.update({name.strip(): text for name in names.split(",")})
    return found


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def table(*head: str) -> list[str]:
    return [row(*head), "|" + "---|" * len(head)]


def default(item: Field[Any]) -> str:
    if item.default_factory is not MISSING:
        return f"`{item.default_factory.__name__}()`"
    return "required" if item.default is MISSING else f"`{getattr(item.default, 'value', item.default)!r}`"


def first_line(owner: Any) -> str:
    return (inspect.getdoc(owner) or "").partition("\n\n")[0].replace("\n", " ")


def record(name: str) -> Iterator[str]:
    """Yield the fields and properties of a record."""
    owner = getattr(ferrum, name)
    texts = described(owner)
    yield from ("", f"**`{name}`**: {first_line(owner)}", "", *table("field", "default", "meaning"))
    for item in fields(owner):
        yield row(f"`{item.name}`: `{item.type}`", default(item), texts.get(item.name, ""))
    for member, value in methods(owner):
        yield row(f"`{signature(member, value)}`", "", first_line(value))


def methods(owner: Any, base: type = object) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class that another one lacks, in the order of the source."""
    seen = set(dir(base))
    for each in reversed(owner.__mro__):
        for name, value in vars(each).items():
            known = inspect.isfunction(value) or isinstance(value, property)
            if known and each.__module__.startswith("ferrum") and name[0] != "_" and name not in seen:
                seen.add(name)
                shown = getattr(owner, name)
                yield name, shown if first_line(shown) or isinstance(shown, property) else value


def signature(name: str, value: Any) -> str:
    if isinstance(value, property):
        return name
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(value).parameters.values()][1:]
    named = [re.sub(r"<class '(\w+)'>", r"\1", str(each)) for each in parameters]
    return f"{name}({', '.join(named)})"


def verbs(name: str, about: str) -> Iterator[str]:
    owner = getattr(ferrum, name)
    base = ferrum.ModelExecutor if owner is ferrum.LocalExecutor else object
    yield from ("", f"### Methods of {name}", about or first_line(owner), "", *table("method", "does"))
    yield from (row(f"`{signature(member, value)}`", first_line(value)) for member, value in methods(owner, base))


def enum(name: str) -> str:
    owner = getattr(ferrum, name)
    values = ", ".join(f"`{each.name}` = `{each.value!r}`" for each in owner)
    return row(f"`{name}`", values, first_line(owner))


def explained(metadata: Mapping[str, Any]) -> str:
    """Return the help of an option with the choices that this build accepts."""
    choices = ", ".join(f"`{each}`" for each in accepted(metadata)) if "help" in metadata else ""
    return f"{metadata['help']} One of {choices}." if choices else str(metadata.get("help", ""))


def options(call: Callable[..., Any], names: list[str]) -> Iterator[str]:
    """Yield the options of `load_executor`, from its signature and the metadata of `ModelConfig`."""
    texts = described(call) | {item.name: explained(item.metadata) for item in fields(ferrum.ModelConfig)}
    for name, parameter in inspect.signature(call).parameters.items():
        if name in names:
            value = "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
            yield row(f"`{name}`", value, texts[name])


def further() -> Iterator[str]:
    """Yield the public names of the executor that have no table, with their first lines."""
    shown = {*CLASSES, *ENUMS.split(), *(name for names in RECORDS.values() for name in names.split())}
    for name in ferrum.__all__:
        thing, home = getattr(ferrum, name), ferrum._HOMES[name]
        is_error = isinstance(thing, type) and issubclass(thing, Exception)
        if name not in shown and not is_error and not home.startswith(ELSEWHERE):
            yield row(f"`{name}`", VALUES.get(name) or first_line(thing))


def reference() -> str:
    """Return the reference part of the document."""
    lines = ["## Reference", "All names are in the package `ferrum`."]
    for name, about in CLASSES.items():
        lines += verbs(name, about)
    for title, names in RECORDS.items():
        lines += ["", f"### {title}"]
        for name in names.split():
            lines += record(name)
    lines += ["", "### Enums", "", *table("enum", "members", "meaning"), *map(enum, ENUMS.split())]
    lines += ["", "### Further names", "", *table("name", "is"), *further()]
    every = list(inspect.signature(ferrum.load_executor).parameters)
    head = table("option", "default", "meaning")
    lines += ["", "### Options of load_executor", "", *head, *options(ferrum.load_executor, every)]
    lines += ["", "### Options in executor_options", "`ExecutorConfig.executor_options` takes these.", ""]
    lines += [*head, *options(ferrum.load_executor, sorted(OPTIONS))]
    about = "Environment variables, read when a model is loaded; `ferrum doctor` shows them."
    lines += ["", "### Switches", about, ""]
    lines += [*table("field of `Switches`", "effect")]
    lines += [row(f"`{item.name}`", item.metadata["help"]) for item in fields(Switches)]
    lines += [row("(`FERRUM_PAGED_KV=0`)", "Refused: the only KV store is paged.")]
    lines += ["", "### Errors", "", *table("error", "means")]
    errors = [getattr(ferrum, name) for name in ferrum.__all__]
    lines += [row(f"`{e.__name__}`", first_line(e)) for e in errors if isinstance(e, type) and issubclass(e, Exception)]
    return "\n".join([*lines, ""])


def with_reference(text: str) -> str:
    """Return a document with the reference in place."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + reference() + END + rest.partition(END)[2]


if __name__ == "__main__":
    DOCUMENT.write_text(with_reference(DOCUMENT.read_text()))
