"""`ferrum deploy`: the server with replicas on Ray Serve."""

from __future__ import annotations

import time
from dataclasses import Field, fields
from typing import Annotated, Any, Final

import typer

from ferrum.cli.options import MODEL_HELP, chosen, engine_fields, server_fields, with_options
from ferrum.core.config import api_key_variable
from ferrum.core.errors import EngineDead, Unsupported
from ferrum.server.deploy.scale import Scale

_RAYS: Final = ("host", "replicas", "stall_seconds")
"""Fields of an engine that `Scale` has in its place, or Ray Serve decides on."""

ENGINE_FIELDS: Final = [field for field in engine_fields() if field.name not in _RAYS]
SCALE_FIELDS: Final[list[Field[Any]]] = list(fields(Scale))

NAME: Final = "ferrum"
"""Default of `--name`."""

POLL_SECONDS: Final = 2.0
"""Interval at which the state of the application is read."""


@with_options(SCALE_FIELDS, "Replicas")
@with_options(server_fields(), "Server")
@with_options(ENGINE_FIELDS, "Model and engine")
def deploy(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{MODEL_HELP} Each machine must have the same files.")],
    name: Annotated[str, typer.Option(help="Name of the Ray Serve application.")] = NAME,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Address of a Ray cluster (default: RAY_ADDRESS, else Ray is started here)."
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Leave the application running in the cluster.")] = False,
    **options: Any,
) -> None:
    """Serve a model with replicas on Ray Serve. Ctrl-C deletes the application, unless --detach is given.

    A second command with the same name updates the application replica by replica.
    """
    from ferrum.server.server_config import ServerConfig

    config = ServerConfig(**chosen(server_fields(), options))
    scale = Scale(**chosen(SCALE_FIELDS, options))
    try:
        import ray
        from ray import serve

        from ferrum.server.deploy.application import application
    except ImportError as error:
        reason = str(error) if error.name is None else f"{error.name} is missing"
        raise Unsupported("ferrum deploy", f"{reason}: pip install 'ferrum-llm[ray]'") from None
    app = application(model, chosen(ENGINE_FIELDS, options), config, scale, api_key_variable())
    ray.init(address=ray_address, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": config.host, "port": config.port})
    serve.run(app, name=name, blocking=False)
    typer.echo(f"{model} is deployed as {name}: http://{config.host}:{config.port}/v1", err=True)
    if not detach:
        _watch(name)


def _watch(name: str) -> None:
    """Wait until the application ends; delete it at Ctrl-C. Raises EngineDead if it fails."""
    from ray import serve

    try:
        while (found := serve.status().applications.get(name)) is not None:
            if found.status in ("DEPLOY_FAILED", "UNHEALTHY") and not any(
                each.status == "HEALTHY" for each in found.deployments.values()
            ):
                raise EngineDead(f"the application {name} has failed: {found.message.strip() or found.status}")
            time.sleep(POLL_SECONDS)
    finally:
        serve.delete(name)
