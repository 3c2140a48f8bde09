"""`application`: the server as a Ray Serve application, which `serve.run` and RayService manifests deploy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig

from ferrum.client.client_base import engine_config
from ferrum.client.replicas.ray_replica import EngineReplica
from ferrum.client.replicas.ray_router import PinnedRouter
from ferrum.core.errors import ConfigError
from ferrum.server.deploy.ingress import INGRESS
from ferrum.server.deploy.scale import Scale
from ferrum.server.server_config import ServerConfig

CALLS: Final = 10_000
"""Calls that a replica takes at once. Requests are limited by the ingress (`--max-queue`)."""

_QUIET: Final = {"enable_access_log": False}
"""Ray logs a line for each call else; the server has its own log."""


def application(
    model: str,
    options: Mapping[str, Any] | None = None,
    config: ServerConfig | None = None,
    scale: Scale | None = None,
    api_key: str | None = None,
) -> serve.Application:
    """Return an application with one ingress and replicas of an engine.

    Args:
        model: a name by which each machine opens the same files.
        options: of the model and the engine.
        config: of the server.
        scale: of the replicas.
        api_key: the only accepted key. Ray keeps it in its state: prefer `config.api_key_file`.

    Raises:
        ConfigError: an option is invalid, or does not go with replicas of Ray Serve.
    """
    options, config, scale = dict(options or {}), config or ServerConfig(), scale or Scale()
    _check(model, options, config, scale)
    engines = serve.deployment(EngineReplica).options(
        name="engines",
        **_number(scale),
        ray_actor_options={"num_cpus": scale.replica_cpus, "num_gpus": scale.replica_gpus},
        max_ongoing_requests=CALLS,
        request_router_config=RequestRouterConfig(request_router_class=PinnedRouter),
        graceful_shutdown_timeout_s=config.drain_seconds,
        graceful_shutdown_wait_loop_s=1.0,
        health_check_period_s=5.0,
        logging_config=_QUIET,
    )
    ingress = serve.deployment(INGRESS).options(
        name="ingress",
        num_replicas=1,  # keys, rates, the queue and stored responses are in its memory
        max_ongoing_requests=CALLS,
        graceful_shutdown_timeout_s=config.drain_seconds,
        graceful_shutdown_wait_loop_s=1.0,
        logging_config=_QUIET,
    )
    bound = engines.bind(model, options, scale.stall_seconds)
    return ingress.bind(bound, model, options, config, scale, api_key)


def from_arguments(arguments: Mapping[str, Any]) -> serve.Application:
    """Return the application for a manifest: `import_path` names this function, and `args` has these fields.

    Args:
        arguments: `model`, and any option of `ferrum deploy` by its field name.

    Raises:
        ConfigError: as `application`, or `model` is missing.
    """
    given = dict(arguments)
    model = given.pop("model", None)
    if not isinstance(model, str):
        raise ConfigError("is required: a name by which each machine opens the same files", param="model")
    config = ServerConfig(**_taken(given, ServerConfig))
    scale = Scale(**_taken(given, Scale))
    return application(model, given, config, scale)


def _taken(given: dict[str, Any], kind: type[ServerConfig | Scale]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)} & given.keys()
    return {name: given.pop(name) for name in names}


def _check(model: str, options: Mapping[str, Any], config: ServerConfig, scale: Scale) -> None:
    """Refuse options that are invalid, or that Ray Serve decides on. Raises ConfigError."""
    for name in ("host", "replicas", "stall_seconds"):
        if name in options:
            raise ConfigError("is an option of `Scale` here, or decided by Ray Serve", param=name)
    engine = engine_config(model, {**options, "host": "process"})
    if engine.model.device.partition(":")[2]:
        raise ConfigError("Ray chooses the GPU of each replica: use cuda", param="device")
    if engine.model.device == "cuda" and not scale.replica_gpus:
        raise ConfigError("must be above 0 for replicas on GPUs (--device cuda)", param="replica_gpus")
    if config.head_seconds != ServerConfig().head_seconds:
        raise ConfigError("has no effect: Ray Serve's proxy reads the headers", param="head_seconds")


def _number(scale: Scale) -> dict[str, Any]:
    """Return the options of a deployment for the number of replicas."""
    if scale.least == scale.most:
        return {"num_replicas": scale.least}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=scale.least,
            max_replicas=scale.most,
            target_ongoing_requests=scale.choices_per_replica,
            upscale_delay_s=scale.up_seconds,
            downscale_delay_s=scale.down_seconds,
            look_back_period_s=15.0,  # replicas report every 10 s, and Ray wants more than that
            policy=AutoscalingPolicy(policy_function=f"{__name__}:by_choices"),
        )
    }


def by_choices(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas for the choices that run or wait; Ray Serve applies limits and delays.

    Its own count of requests has only the calls between ingress and replicas, which last as long as both.
    """
    choices = (context.aggregated_metrics or {}).get("choices", {})
    scale = Scale(choices_per_replica=context.config.target_ongoing_requests)
    return scale.wanted(sum(choices.values())), {}
