"""`ServedModel`: a model with its engine and the names by which clients know it.

What all models of a server share (keys, limits, pools, requests in progress) is in `service`.

"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ferrum.client.adapter_registry import AdapterRegistry, NamedAdapter
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.diagnosis.prefix_explainer import PrefixExplainer
from ferrum.client.input_processor import Prompt, RequestOptions
from ferrum.client.model_client import ModelClient
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.types import Pooling, Request
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.field_rules import Integer
from ferrum.server.common.json_bodies import Body
from ferrum.server.server_config import ServerConfig
from ferrum.text.reranker import qwen3_reranker
from ferrum.text.tokenizer import Tokenizer


class ServedModel:
    """A model that is served.

    Args:
        engine: runs it.
        config: the server's options.
        template: source of a chat template that replaces the model's.

    Attributes:
        root: the name that it was loaded by; of a path its last part.
        names: those by which clients know it; `name`, the first one, is used in replies.
        accepted: the names that requests may use: `names`, and the path as typed.
        pooling: of embeddings.
        embeds: the model's files or the options say how it embeds texts.
        reranker: how the model scores documents; None if it is no reranker.
        context: limit of prompt and output tokens together. The last token of a sequence is never stored.
        cache_page: tokens of a page of the prefix cache; None without one.
        explainer: compares the prompts of chats; None without `--explain-prefixes`.
        parent: name of the base model, if this is an adapter of it.
        applied: scales of adapters, by name, for requests to the base model.
    """

    parent: str | None = None

    def __init__(self, engine: AsyncEngine, config: ServerConfig, template: str | None) -> None:
        self.engine = engine
        self.client = engine.client
        if template is not None:
            self.client.use_template(template, config.chat_template or "")
        self.pooling = self.client.pooling() if config.pooling == "auto" else Pooling(config.pooling)
        self.embeds = self.client.embeds or config.pooling != "auto"
        tokenizer = self.client.tokenizer
        self.reranker = self.client.reranker() if config.reranker == "auto" else qwen3_reranker(tokenizer)
        info = engine.info
        self.cache_page = info.page_size if info.prefix_cache else None
        self.explainer = PrefixExplainer(self.client) if config.explain_prefixes else None
        self.root = public_name(info.model)
        self.names: Sequence[str] = config.served_model_name or (self.root,)
        self.name = self.client.name = self.names[0]
        self.accepted = (*self.names, *(() if config.served_model_name else (info.model,)))
        self.context = min(info.max_sequence_length, info.kv_capacity + 1)
        self.applied: dict[str, float] = {}
        self._adapter: NamedAdapter | None = None

    def adapted(self, adapter: NamedAdapter) -> ServedModel:
        """Return the model with an adapter, which is a model of the adapter's name."""
        made = copy(self)
        made.parent, made._adapter = self.name, adapter
        made.root, made.name, made.names = public_name(adapter.facts.path), adapter.name, (adapter.name,)
        return made

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        options: RequestOptions,
        adapters: tuple[NamedAdapter, ...] | None = None,
    ) -> Request:
        """Return the engine's request. Raises as `InputProcessor.process`.

        Args:
            adapters: that the client has chosen; None: those of the model.
        """
        chosen = adapters
        if chosen is None and self._adapter is not None:
            chosen = (self._adapter,)
        elif chosen is None and self.applied:
            every = self.client.adapters
            chosen = tuple(each.scaled(self.applied[each.name]) for each in every if each.name in self.applied)
        return self.client.input_processor.process(
            prompt, params, replace(options, adapters=chosen) if chosen else options
        )


def part_id(name: str, place: int) -> str:
    """Return the id of the engine's request for one of several prompts; clients' ids have no slash."""
    return f"{name}/{place}"


def find_model(models: Mapping[str, ServedModel], name: str) -> ServedModel | None:
    """Return a served model or one of its adapters by name, or None."""
    found = models.get(name)
    bases = (each for each in models.values() if found is None and name in each.client.adapters)
    base = next(bases, None)
    return found if base is None else base.adapted(base.client.adapters.find(name))


def listed_models(models: Mapping[str, ServedModel]) -> list[tuple[str, ServedModel]]:
    """Return the served models with each of their names, adapters after their base."""
    bases = dict.fromkeys(models.values())
    found = [(name, each) for each in bases for name in each.names]
    return found + [(each.name, base.adapted(each)) for base in bases for each in base.client.adapters]


def build_engine(make: Callable[[], AsyncEngine], built: Future[AsyncEngine]) -> None:
    """Build an engine for a future; close it if the future was cancelled."""
    try:
        engine = make()
    except Exception as error:  # noqa: BLE001 - it is raised where the engine is awaited
        if built.set_running_or_notify_cancel():
            built.set_exception(error)
        return
    if built.set_running_or_notify_cancel():
        built.set_result(engine)
    else:
        engine.close()


# Names for clients, without directories of this machine. Logs and records on disk keep the paths as typed


def public_name(text: str) -> str:
    """Return the last part of a path on this machine; any other text, such as a hub id, unchanged."""
    try:
        path = Path(text).expanduser()
        if not (text and (path.is_absolute() or path.exists())):
            return text
    except (OSError, RuntimeError, ValueError):  # too long for a path, or the home of an unknown user
        return text
    name = path.absolute().name  # not resolved: links of the hub's cache lead to hashes
    return path.resolve().name if name in ("", "..") else name


def without_directories(value: Any) -> Any:
    """Return options with `public_name` of every text, also of the path in NAME=PATH."""
    if isinstance(value, str):
        name, equals, path = value.partition("=")  # an adapter as NAME=PATH
        return f"{name}={public_name(path)}" if equals else public_name(value)
    if isinstance(value, Mapping):
        return {name: without_directories(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_directories(each) for each in value]
    return value


# Prompts that are too long


def truncated(
    tokenizer: Tokenizer | None, prompt: str | list[int], keep: int, *, special: bool = True, start: bool = False
) -> str | list[int]:
    """Return at most `keep` tokens of a prompt, special tokens included.

    Models expect the special tokens that begin and end every text; they are kept, and the text between them is cut.

    Args:
        tokenizer: None: a text is returned unchanged, to be refused later.
        special: a text gets special tokens.
        start: keep the start of the text, not its end.
    """
    if tokenizer is None or not isinstance(prompt, str):
        return prompt[:keep] if start else prompt[-keep:]
    ids = tokenizer.encode(prompt, add_special_tokens=special)
    if len(ids) <= keep:
        return ids
    around = tokenizer.encode("", add_special_tokens=special)
    begin = sum(takewhile(bool, map(eq, ids, around)))
    if not start:
        return [*ids[:begin], *ids[len(ids) + begin - keep :]][:keep]
    end = sum(takewhile(bool, map(eq, reversed(ids), reversed(around[begin:]))))
    return [*ids[: max(0, keep - end)], *ids[len(ids) - end :]][:keep]


# Variables that a chat template reads: fields about reasoning have an effect only through them


def template_reads(client: ModelClient, name: str, chat_template: str | None = None) -> bool:
    """Return whether the template of a request reads a variable.

    Args:
        client: of the model.
        name: of the variable.
        chat_template: replaces the model's.
    """
    model_sources = () if client.chat_template is None else client.chat_template.sources.values()
    sources = model_sources if chat_template is None else (chat_template,)
    return any(re.search(rf"\b{name}\b", source) for source in sources)


def read_variables(
    client: ModelClient, variables: Mapping[str, Any], chat_template: str | None = None
) -> dict[str, Any]:
    """Return the variables that the template of a request reads. Arguments as of `template_reads`."""
    return {name: value for name, value in variables.items() if template_reads(client, name, chat_template)}


# Adapters of a request by llama.cpp's ids: the field `lora` and the body of POST /lora-adapters


class LoraScale(Body):
    """An adapter and its scale."""

    id: Annotated[int, Integer(0)] = Field(description="Of GET /lora-adapters.")
    scale: float = Field(description="Factor of its low-rank products; 0 leaves it out.")


def of_scales(adapters: AdapterRegistry, given: Sequence[LoraScale], field: str = "lora") -> tuple[NamedAdapter, ...]:
    """Return adapters with scales. Raises RequestError for an unknown id, or a scale that it cannot have."""
    by_id, found = {each.id - 1: each for each in adapters}, dict[int, NamedAdapter]()
    for place, each in enumerate(given):
        if each.id not in by_id:
            known = ", ".join(map(str, by_id)) or "none"
            raise invalid(f"{field}[{place}].id", f"no adapter has the id {each.id} (ids: {known})")
        if each.id in found:
            raise invalid(f"{field}[{place}].id", f"names the adapter {each.id} twice")
        try:
            found[each.id] = by_id[each.id].scaled(each.scale)
        except RequestError as error:
            raise error.about(f"{field}[{place}].scale") from None
    return tuple(found.values())
