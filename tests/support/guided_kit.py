"""Requests with a guidance through a client, and small guidances over the tokenizer of `tiny_with_tokenizer`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrum import LLM, SamplingParams
from ferrum.client.input_processor import RequestOptions
from ferrum.client.offline_batch import Batch
from ferrum.client.request_output import RequestOutput
from ferrum.core.guidance import Grammar, Guidance, Marker, Thought
from ferrum.engine.progress import progress_bar
from tiny_with_tokenizer import letters

TOKEN = letters().get_vocab()
"""Ids of the letters."""

COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Job:
    """A request: prompt, parameters and limits."""

    prompt: str
    params: SamplingParams
    guidance: Guidance | None = None


def generate(llm: LLM, jobs: Sequence[Job]) -> list[RequestOutput]:
    """Run the jobs in one batch."""
    process = llm.client.input_processor.process
    requests = [process(job.prompt, job.params, RequestOptions(guidance=job.guidance)) for job in jobs]
    batch = Batch(llm.client.router, llm.client.tokenizer, requests, [job.prompt for job in jobs])
    return batch.run(progress_bar(False, len(jobs), ""))


def schema_source(schema: dict[str, Any]) -> str:
    """Return the grammar of a JSON Schema, with the spelling of `json.dumps`."""
    return f"start: %json {json.dumps({**schema, 'x-guidance': COMPACT})}"


def grammar(source: str, *triggers: Marker, repeats: bool = False) -> Guidance:
    """Return the guidance of a grammar alone."""
    return Guidance(grammar=Grammar(source=source, triggers=triggers, repeats=repeats))


def letter(text: str) -> Marker:
    """Return a marker that is one token."""
    return Marker(text=text, token=TOKEN[text])


def thought(budget: int | None, *, opened: bool = True, end: str = "~>") -> Thought:
    """Return a thought between < and >."""
    return Thought(open=letter("<"), close=letter(">"), opened=opened, budget=budget, end=end)
