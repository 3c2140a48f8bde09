"""The routes that load and scale adapters: vLLM's `/v1/load_lora_adapter` and llama.cpp's `/lora-adapters`."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from ferrum.client.adapter_registry import NamedAdapter
from ferrum.core.errors import CapacityError, CheckpointError, FerrumError, ModelNotFound, RequestError, Unsupported
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.field_rules import Items
from ferrum.server.common.json_bodies import Body, Reply, optional
from ferrum.server.common.json_routes import ignored, reply
from ferrum.server.common.openai_errors import BODY_ERRORS, ERRORS
from ferrum.server.common.served_model import LoraScale, ServedModel, of_scales, public_name
from ferrum.server.common.service import Service

_TEXT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The adapter is changed."},
    **BODY_ERRORS,
}
_OFF: Final = "adapters cannot be changed here (start the server with --allow-runtime-lora and --lora-root DIR)"


class LoadAdapterBody(Body):
    """The body of /v1/load_lora_adapter."""

    NO_OPS = MappingProxyType(
        {"is_3d_lora_weight": "the files say how experts are stored", "lora_int_id": "adapters are known by name"}
    )

    lora_name: str | None = optional("Name of the adapter as a model.")
    lora_path: str | None = optional("Directory or GGUF file below --lora-root; relative paths begin there.")
    load_inplace: bool | None = optional("Replace an adapter of the same name; running requests keep theirs.")


class UnloadAdapterBody(Body):
    """The body of /v1/unload_lora_adapter."""

    NO_OPS = MappingProxyType({"lora_int_id": "adapters are known by name"})

    lora_name: str | None = optional("Name of the adapter.")


class AdapterEntry(Reply):
    """An adapter as llama.cpp lists it; `scale` is that of requests to the base model."""

    id: int
    path: str
    scale: float
    task_name: str
    prompt_prefix: str
    alora_invocation_string: str | None = None
    alora_invocation_tokens: list[int] | None = None


class Changed(Reply):
    """The reply of POST /lora-adapters."""

    success: bool


def add_lora_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""

    @router.post("/v1/load_lora_adapter", responses=_TEXT)
    async def load(body: LoadAdapterBody) -> Response:
        """Load an adapter, which is a model of this name from now on."""
        model, headers = service.model(), ignored(service, body)
        name, path = _to_load(service, model, body)
        try:
            await model.engine.load_adapter(name, path)
        except FerrumError as error:
            raise _failed(error, str(Path(service.config.lora_root or "").expanduser().resolve())) from None
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.", headers=headers)

    @router.post("/v1/unload_lora_adapter", responses=_TEXT)
    async def unload(body: UnloadAdapterBody) -> Response:
        """Forget an adapter. Running requests keep it."""
        model, headers = service.model(), ignored(service, body)
        _check_allowed(service)
        if not body.lora_name:
            raise _wrong("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
        if body.lora_name not in model.client.adapters:
            text = f"The lora adapter '{body.lora_name}' cannot be found."
            raise ApiError(404, text, code="model_not_found", param="lora_name")
        model.engine.unload_adapter(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", headers=headers)

    @router.get("/lora-adapters", responses={200: {"model": list[AdapterEntry]}, 401: ERRORS[401], 503: ERRORS[503]})
    async def listed() -> Response:
        """List the adapters with the scales that requests to the base model have."""
        model = service.model()
        found = [_entry(each, model.applied.get(each.name, 0.0)) for each in model.client.adapters]
        return Response(b"[" + b",".join(each.json_bytes() for each in found) + b"]", media_type="application/json")

    @router.post("/lora-adapters", responses={200: {"model": Changed}, **BODY_ERRORS})
    async def scaled(body: Items[LoraScale]) -> Response:
        """Set the scales of later requests to the base model; adapters that are not named have 0."""
        model = service.model()
        for each in body:
            ignored(service, each)
        model.applied = {each.name: each.scale for each in of_scales(model.client.adapters, body) if each.scale}
        return reply(Changed(success=True))


def _entry(adapter: NamedAdapter, scale: float) -> AdapterEntry:
    facts = adapter.facts
    invoked: dict[str, Any] = {}
    if facts.invocation:
        invoked = {"alora_invocation_tokens": list(facts.invocation)}
    return AdapterEntry(
        id=adapter.id - 1,
        path=public_name(facts.path),
        scale=scale,
        task_name=facts.about.get("task_name", ""),
        prompt_prefix=facts.about.get("prompt_prefix", ""),
        **invoked,
    )


def _to_load(service: Service, model: ServedModel, body: LoadAdapterBody) -> tuple[str, str]:
    """Return name and path of an adapter to load. Raises ApiError."""
    _check_allowed(service)
    name, path = body.lora_name, body.lora_path
    if not name or not path:
        raise _wrong("Both 'lora_name' and 'lora_path' must be provided.", "lora_path" if name else "lora_name")
    if name in service.models:
        raise _wrong(f"The lora adapter name '{name}' conflicts with a served base model.", "lora_name")
    if name in model.client.adapters and not body.load_inplace:
        again = "If you want to load the adapter in place, set 'load_inplace' to True."
        raise _wrong(f"The lora adapter '{name}' has already been loaded. {again}", "lora_name")
    root = Path(service.config.lora_root or "").expanduser().resolve()
    try:
        found = (root / path).resolve()
        inside = found.is_relative_to(root)
    except (OSError, ValueError):  # a path with a null character, or too long
        inside = False
    if not inside:
        raise _wrong(f"{path!r} is not below the directory of --lora-root", "lora_path")
    return name, str(found)


def _check_allowed(service: Service) -> None:
    if not service.config.allow_runtime_lora:
        raise ApiError(404, _OFF, code="not_served")


def _failed(error: FerrumError, root: str) -> Exception:
    """Return what a client reads about an adapter that cannot be loaded, without the directory `root`."""
    text = str(error).replace(f"{root}/", "")
    if isinstance(error, ModelNotFound):
        return ApiError(404, text, code="model_not_found", param="lora_path")
    if isinstance(error, RequestError | CheckpointError | Unsupported | CapacityError):
        return _wrong(text, "lora_path")
    return error


def _wrong(text: str, param: str) -> ApiError:
    return ApiError(400, text, code="invalid_value", param=param)
