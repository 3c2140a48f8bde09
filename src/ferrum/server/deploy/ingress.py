"""`Ingress`: the server's application as the ingress of a Ray Serve application. Its engines are replicas."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from ray import serve
from ray.serve.handle import DeploymentHandle

from ferrum.client.async_engine import AsyncEngine
from ferrum.client.client_base import build
from ferrum.client.replicas.model_digests import digests_of
from ferrum.client.replicas.ray_replicas import RayReplicas
from ferrum.client.replicas.replica_host import ReplicaHost
from ferrum.core.errors import EngineDead
from ferrum.engine.engine_main import SWITCH_SECONDS
from ferrum.server.app import create_app
from ferrum.server.common.service import Service, State
from ferrum.server.deploy.scale import Scale
from ferrum.server.launch import log_as_text, log_to_stderr
from ferrum.server.server_config import ServerConfig

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ferrum.sources.model_source import ModelSource

LOAD_POLL_SECONDS: Final = 0.05
"""Interval at which the end of loading is looked for."""


class Ingress:
    """The one process that clients reach. It fixes seeds, keeps the tokens of each stream, and counts requests.

    Args:
        engines: the deployment of `EngineReplica`.
        model: the model's name on this machine, for its tokenizer and templates.
        options: of the model and the engine, as the replicas have them.
        config: of the server.
        scale: of the replicas.
        api_key: the only accepted key, or None.
    """

    def __init__(
        self,
        engines: DeploymentHandle,
        model: str,
        options: Mapping[str, Any],
        config: ServerConfig,
        scale: Scale,
        api_key: str | None,
    ) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        log_as_text() if config.logs_text else log_to_stderr()
        self._source = RayReplicas(engines, scale.start_seconds)
        self._model, self._options, self._stall_seconds = model, options, scale.stall_seconds
        self._app = create_app(self._engine, config, api_key=api_key)
        self._service: Service = self._app.state.service

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def check_health(self) -> None:
        """Raise if no request can be served any more. Ray Serve then starts another ingress.

        The first call returns once the model is loaded: Ray Serve sends requests after it, and during an update stops
        the ingress that is replaced.
        """
        while self._service.state is State.LOADING:
            await asyncio.sleep(LOAD_POLL_SECONDS)
        if self._service.state is State.FAILED:
            raise EngineDead(str(self._service.failure))

    def _engine(self) -> AsyncEngine:
        parts = build(self._model, **self._options)
        files = digests_of(cast("ModelSource", parts.files))
        host = ReplicaHost(self._source, stall_seconds=self._stall_seconds, files=files)
        return AsyncEngine.from_parts(replace(parts, host=host))


INGRESS = serve.ingress()(Ingress)
"""The class as Ray Serve needs it."""
