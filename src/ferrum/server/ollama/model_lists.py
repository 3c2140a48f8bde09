"""What Ollama's API says of the served models: /api/tags, /api/ps and /api/show."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.served_model import ServedModel, find_model, listed_models
from ferrum.server.common.service import Service
from ferrum.server.ollama.replies import Details, ModelEntry, ModelList, Shown, written_time
from ferrum.text.infill import infill_prompt

LATEST: Final = ":latest"
"""The tag that Ollama's clients add to a name without one."""

NEVER: Final = "9999-12-31T23:59:59Z"
"""When a model is unloaded."""

ARCHITECTURE: Final = "ferrum"
"""Prefix of the keys of `model_info`: clients search the context under the architecture's name."""


def known_name(service: Service, name: str | None) -> str | None:
    """Return the served name that a client means: with or without the tag `latest`; None is the first model."""
    if name is None or find_model(service.models, name) is not None:
        return name
    other = name.removesuffix(LATEST) if name.endswith(LATEST) else name + LATEST
    return name if find_model(service.models, other) is None else other


def tagged(name: str) -> str:
    """Return a name with a tag, as Ollama lists it."""
    return name if ":" in name else name + LATEST


def listed(service: Service, *, running: bool) -> ModelList:
    """Return the served models by their names; with `running` as loaded ones. Raises ApiError while loading."""
    service.model()
    return ModelList(models=[_entry(service, each, name, running) for name, each in listed_models(service.models)])


def _entry(service: Service, model: ServedModel, name: str, running: bool) -> ModelEntry:
    info = model.engine.info
    memory = info.memory
    about: dict[str, Any] = {"modified_at": written_time(service.started)}
    size = 0 if memory is None else memory.weights
    if running:
        about = {"expires_at": NEVER, "size_vram": 0, "context_length": model.context}
        size = 0 if memory is None else memory.total
    digest = hashlib.sha256(f"{model.name} {info.numerics_id}".encode()).hexdigest()
    named = tagged(name)
    return ModelEntry(name=named, model=named, size=size, digest=digest, details=_details(model), **about)


def _details(model: ServedModel) -> Details:
    return Details(
        parent_model=model.parent or "",
        format="",
        family="",
        families=[],
        parameter_size="",
        quantization_level=model.engine.info.weights,
    )


def shown(service: Service, name: str | None) -> Shown:
    """Return what is known of a model. Raises ApiError, 404, 503."""
    model = service.model(known_name(service, name))
    client = model.client
    template = "" if client.chat_template is None else "\n".join(client.chat_template.sources.values())
    return Shown(
        modelfile=f"# served by ferrum\nFROM {model.root}\n",
        parameters="\n".join(f"{name} {json.dumps(value)}" for name, value in sorted(client.recommended.items())),
        template=template,
        details=_details(model),
        model_info={
            "general.architecture": ARCHITECTURE,
            "general.basename": model.root,
            f"{ARCHITECTURE}.context_length": model.context,
            f"{ARCHITECTURE}.vocab_size": model.engine.info.vocab_size,
        },
        capabilities=capabilities(model),
        modified_at=written_time(service.started),
    )


def capabilities(model: ServedModel) -> list[str]:
    """Return what a model can do, in Ollama's words."""
    client = model.client
    found = ["completion"]
    if client.chat_template is not None and client.tokenizer is not None:
        format = client.output_format().format
        if format is not None and format.calls is not None:
            found.append("tools")
        if format is not None and format.reasoning is not None:
            found.append("thinking")
    if client.reads_images:
        found.append("vision")
    if client.tokenizer is not None and infill_prompt(client.tokenizer, [], "", begin=False) is not None:
        found.append("insert")
    return found


def refused_change(path: str) -> ApiError:
    """Return the error of a route that changes models."""
    reason = "this server's model does not change; choose it with `ferrum serve MODEL` and restart"
    return ApiError(400, f"{path} is not served: {reason}", code="not_served")
