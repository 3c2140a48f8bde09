"""Manifests of examples/kubernetes: their fields, and options that the program knows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from ferrum.cli.options import engine_fields, option_names, server_fields
from ferrum.server.deploy.scale import Scale
from source_tree import REPOSITORY

FOLDER = REPOSITORY / "examples" / "kubernetes"


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def pods(node: Any) -> list[dict[str, Any]]:
    """Return all pod templates in a part of a manifest."""
    if isinstance(node, list):
        return [pod for each in node for pod in pods(each)]
    if not isinstance(node, dict):
        return []
    own = [node["template"]["spec"]] if "template" in node else []
    return own + [pod for each in node.values() for pod in pods(each)]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_pods_have_limits_and_mount_volumes_that_they_have(path: Path) -> None:
    found = [pod for each in objects(path) for pod in pods(each)]
    assert found
    for pod in found:
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        volumes = {each["name"] for each in pod["volumes"]}
        assert {each["name"] for each in container["volumeMounts"]} <= volumes
        assert pod["terminationGracePeriodSeconds"] > 300


def test_the_plain_manifest_has_options_of_serve_and_routes_of_the_server() -> None:
    deployment, service = objects(FOLDER / "server.yaml")
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command, model, *options = container["args"]
    known = {name for field in (*server_fields(), *engine_fields()) for name in option_names(field)}
    assert command == "serve" and model.startswith("/")
    assert {each.partition("=")[0] for each in options} <= known
    probes = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes <= {"/health", "/ping", "/ready"}


def test_the_service_of_kuberay_has_options_of_deploy() -> None:
    (service,) = objects(FOLDER / "ray-service.yaml")
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, function = application["import_path"].partition(":")
    assert f"def {function}(" in (REPOSITORY / "src" / f"{module.replace('.', '/')}.py").read_text()
    known = {field.name for field in (*server_fields(), *engine_fields(), *fields(Scale))}
    arguments = application["args"]
    assert {*arguments} - {"model"} <= known
    scale = Scale(replicas=arguments["replicas"], replica_cpus=arguments["replica_cpus"])
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (scale.least, scale.most)
