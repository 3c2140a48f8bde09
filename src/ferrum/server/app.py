"""The ASGI application: routes, guard, error handlers, the OpenAPI document and the engine's lifetime, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ferrum.client.async_engine import AsyncEngine
from ferrum.core.errors import ConfigError, FerrumError
from ferrum.core.param_values import TOKEN_SCHEMA
from ferrum.core.params import ALL_TOKENS
from ferrum.core.version import installed_version
from ferrum.server.anthropic.routes import MESSAGES, add_anthropic_routes
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError, error_response
from ferrum.server.common.field_rules import TOP_TOKENS
from ferrum.server.common.http_guard import Guard
from ferrum.server.common.json_routes import AddRoutes, JsonRoute, add_heads
from ferrum.server.common.key_limits import ApiKeys, KeyLimits, only_key, read_keys
from ferrum.server.common.service import Service, State
from ferrum.server.common.traces import otlp_provider
from ferrum.server.common.web_ui import add_web_ui
from ferrum.server.ollama.routes import OLLAMA, add_ollama_routes
from ferrum.server.openai.routes import OPENAI, add_openai_routes
from ferrum.server.responses.routes import RESPONSES, add_responses_routes
from ferrum.server.server_config import ServerConfig
from ferrum.server.tasks.embeddings import add_embedding_routes
from ferrum.server.tasks.infill_route import LLAMACPP, add_llamacpp_routes
from ferrum.server.tasks.lora_routes import add_lora_routes
from ferrum.server.tasks.model_catalog import add_model_routes
from ferrum.server.tasks.probes import add_plan_route, add_probes
from ferrum.server.tasks.records import add_record_routes
from ferrum.server.tasks.rerank import RERANK, add_rerank_routes
from ferrum.server.tasks.tokenize import add_token_routes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


DIALECTS: Final[Sequence[tuple[Dialect, AddRoutes]]] = (
    (OPENAI, add_openai_routes),
    (MESSAGES, add_anthropic_routes),
    (RESPONSES, add_responses_routes),
    (OLLAMA, add_ollama_routes),
    (RERANK, add_rerank_routes),
    (LLAMACPP, add_llamacpp_routes),
)
"""The dialects that are served, with their routes."""

TASKS: Final = (
    add_embedding_routes,
    add_token_routes,
    add_model_routes,
    add_probes,
    add_record_routes,
    add_plan_route,
    add_lora_routes,
)
"""The routes of no dialect."""

EXPOSED_HEADERS: Final = (
    "request-id",
    "retry-after",
    "x-ferrum-cache",
    "x-ferrum-ignored",
    "x-ferrum-replaced",
    "x-ferrum-unenforced",
    "x-request-id",
    "x-should-retry",
    *(f"x-ratelimit-{what}-{rate}" for what in ("limit", "remaining", "reset") for rate in ("requests", "tokens")),
)
"""Response headers that pages of other origins may read (CORS)."""


def create_app(
    make_engine: Callable[[], AsyncEngine],
    config: ServerConfig,
    traces: TracerProvider | None = None,
    *,
    api_key: str | None = None,
    dialects: Sequence[tuple[Dialect, AddRoutes]] = DIALECTS,
) -> FastAPI:
    """Create an application that serves one engine.

    The engine is built in the background; meanwhile the server answers probes.

    Args:
        make_engine: builds the engine, which is closed with the application.
        config: the server's options.
        traces: exports spans of requests; None: as the options say.
        api_key: the only accepted key. It is no option of `config`, which is logged and reported.
        dialects: of the API, with their routes.

    Raises:
        Unsupported: traces are enabled and their libraries are not installed.
        ConfigError: API keys or the chat template are invalid, key limits are set without keys, or the traces' address
            is invalid.
    """
    keys = _keys(config, api_key)
    if traces is None and config.otlp_traces_endpoint is not None:
        traces = otlp_provider(config.otlp_traces_endpoint)
    service = Service(config, {} if keys is None else keys.limits, traces, [dialect for dialect, _ in dialects])
    template = None if config.chat_template is None else _template(config.chat_template)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncGenerator[None, None]:
        loading = asyncio.create_task(service.load(make_engine, template))
        yield
        service.stop_loading()
        await asyncio.wait([loading])
        await service.close()

    app = FastAPI(
        title="ferrum",
        version=installed_version(),
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=dict.fromkeys((FerrumError, HTTPException, RequestValidationError), error_response),
    )
    app.state.service = service
    router = APIRouter(route_class=JsonRoute)
    for add in (*(add for _, add in dialects), *TASKS):
        add(router, service)
    add_web_ui(router, keys=keys is not None)
    add_heads(router)
    app.include_router(router)
    app.state.routes = router.routes
    app.openapi = partial(document, app, service)  # type: ignore[method-assign]
    app.add_middleware(Guard, service=service, keys=keys)
    if config.allow_origin is not None:
        _allow_origin(app, config.allow_origin)
    return app


def _allow_origin(app: FastAPI, origin: str) -> None:
    """Let pages of an origin use the server. Outermost: browsers hide errors without CORS headers."""
    app.add_middleware(
        _Cors,
        allow_origins=[origin],
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,  # browsers ask before a public page sends to a private address
        expose_headers=EXPOSED_HEADERS,
    )


class _Cors(CORSMiddleware):
    """CORS with refusals in the JSON form of other errors."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to a preflight."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        reason = bytes(response.body).decode().removeprefix("Disallowed CORS ")
        refusal = OPENAI.response(ApiError(response.status_code, f"CORS refuses the {reason}", code="cors_refused"))
        kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        refusal.headers.update(kept)
        return refusal


def _template(path: str) -> str:
    from ferrum.text.sandbox import template_of  # slow to import, and rarely needed here

    return template_of(path)


def _keys(config: ServerConfig, api_key: str | None) -> ApiKeys | None:
    """Return the API keys; None: no key is required."""
    limits = KeyLimits(config.key_max_live, config.key_requests_per_minute, config.key_tokens_per_minute)
    if api_key is not None:
        if config.api_key_file is not None:
            raise ConfigError("cannot be combined with --api-key-file; add it to the file", param="api_key")
        return only_key(api_key, limits)
    if config.api_key_file is not None:
        return read_keys(config.api_key_file, limits)
    if limits != KeyLimits():
        raise ConfigError("is required by the --key-* limits, or --api-key", param="api_key_file")
    return None


# The OpenAPI document: generated from the routes, corrected, and completed with limits of the model


_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def document(app: FastAPI, service: Service) -> dict[str, Any]:
    """Return the document, without FastAPI's status 422: faulty bodies get 400."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    for schema in _objects(made):
        _write_whole(schema)
    if service.state is State.READY:
        for schema in _objects(made):
            if schema.get("format") == TOKEN_SCHEMA["format"]:
                schema["maximum"] = service.model().engine.info.vocab_size - 1
            elif schema.get("format") == TOP_TOKENS:
                _bound_top_tokens(schema, service)
        app.openapi_schema = made
    return made


def _bound_top_tokens(schema: dict[str, Any], service: Service) -> None:
    most = service.config.max_logprobs
    schema["maximum"] = min(most, schema.get("maximum", most))
    if schema["minimum"] == ALL_TOKENS and service.model().engine.info.vocab_size > most:
        schema["minimum"] = 0


def _write_whole(schema: dict[str, Any]) -> None:
    """Write integral bounds as integers: the framework makes floats, which cannot represent 2**63 exactly."""
    for name in _BOUNDS:
        bound = schema.get(name)
        if isinstance(bound, float) and bound.is_integer():
            schema[name] = int(bound)


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a part of a document, outermost first."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        yield from _objects(inner)
