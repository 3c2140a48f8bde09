"""The routes for operators of a server: health, version, metrics, options and the memory plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response

from ferrum.core.memory_plan import PoolPart, StatePart
from ferrum.core.version import installed_version
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import reply
from ferrum.server.common.openai_errors import ERRORS
from ferrum.server.common.served_model import template_reads, without_directories
from ferrum.server.common.service import Service

REASONING_VARIABLES: Final = ("enable_thinking", "reasoning_effort")
"""Variables of templates that `reasoning_effort` of a chat sets."""


class Health(Reply):
    """The reply of the probes."""

    status: str


class Version(Reply):
    """The reply of /version."""

    version: str


class Config(Reply):
    """The reply of /v1/config."""

    server: dict[str, Any]
    engine: dict[str, Any] | None
    model: dict[str, Any]
    sampling: dict[str, Any]


def add_probes(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    probe: dict[int | str, dict[str, Any]] = {200: {"model": Health}, 503: ERRORS[503]}

    async def health() -> Response:
        """Report whether requests are served now."""
        service.check_ready()
        return reply(Health(status="ok"))

    for path in ("/health", "/ping", "/ready"):
        router.get(path, responses=probe)(health)

    @router.get("/version", responses={200: {"model": Version}})
    async def version() -> Response:
        """Return the version of ferrum."""
        return reply(Version(version=installed_version()))

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @router.get("/metrics", responses=text, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return Prometheus metrics; docs/metrics.md defines each."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/config", responses={200: {"model": Config}, 401: ERRORS[401], 503: ERRORS[503]})
    async def config() -> Response:
        """Return the options in effect and the properties of the model; of paths their last parts."""
        model = service.model()
        client, info = model.client, model.engine.info
        return reply(
            Config(
                server=without_directories(service.config.to_dict()),
                engine=None if client.config is None else without_directories(client.config.to_dict()),
                model={
                    "name": model.name,
                    "vocab_size": info.vocab_size,
                    "max_model_len": model.context,
                    "kv_capacity": info.kv_capacity,
                    "numerics_id": info.numerics_id,
                    "kernels": info.kernels,
                    "chat_template": client.chat_template is not None,
                    "reasoning": [name for name in REASONING_VARIABLES if template_reads(client, name)],
                    "tools": template_reads(client, "tools"),
                    "images": client.reads_images,
                    "image_limits": _image_limits() if client.reads_images else None,
                    "recorded": client.recorder is not None,
                },
                sampling=dict(client.recommended),
            )
        )


def _image_limits() -> dict[str, Any]:
    """Return the limits on the images of a request, and their media types."""
    from ferrum.images.decoding import DEFAULT_LIMITS, MEDIA_TYPES  # numpy, which a server of texts need not load

    return {**asdict(DEFAULT_LIMITS), "types": MEDIA_TYPES}


# The memory plan


class Fitting(Reply):
    """The number of sequences of a length that fit in the pool."""

    length: int
    sequences: int


class Plan(Reply):
    """The reply of GET /v1/plan, in bytes; `activation_row` is for one token, `allowance` comes on top of `total`."""

    object: Literal["plan"]
    model: str
    device: str
    weights: int
    kv_pool: int
    activations: int
    activation_row: int
    tables: int
    libraries: int
    allowance: int
    draft_model: int
    images: int
    total: int
    kv_capacity: int
    max_model_len: int
    pool: list[PoolPart]
    states: StatePart | None = None
    fitting: list[Fitting]


def add_plan_route(router: APIRouter, service: Service) -> None:
    """Add the route."""

    @router.get("/v1/plan", responses={200: {"model": Plan}, 401: ERRORS[401], 404: ERRORS[404], 503: ERRORS[503]})
    async def plan() -> Response:
        """Return the engine's memory and what fits in it."""
        model = service.model()
        info = model.engine.info
        memory = info.memory
        if memory is None:
            raise ApiError(404, "this engine has no memory plan", code="plan_not_found")
        parts = memory.to_dict()
        return reply(
            Plan(
                **parts,
                object="plan",
                model=model.name,
                kv_pool=memory.kv_pool,
                draft_model=info.draft_memory,
                images=info.image_memory,
                total=memory.total + info.draft_memory + info.image_memory,
                kv_capacity=info.kv_capacity,
                max_model_len=model.context,
                fitting=[Fitting(length=length, sequences=count) for length, count in memory.fitting(model.context)],
            )
        )
