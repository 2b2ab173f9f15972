"""Manifests for Kubernetes and Compose: valid by their schemas, and they name what izwi has."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from izwi_api.cli.main import app
from izwi_api.environment import VARIABLES
from izwi_api.http.auth import PROBES
from izwi_api.serve.ray_options import parse_options

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
RAY_SERVICE = ROOT / "deploy" / "ray" / "rayservice.yaml"
COMPOSE = ROOT / "docs" / "operations" / "compose.yaml"
RECIPE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KUBECTL = shutil.which("kubectl")
VERSION = "1.37"  # of Kubernetes, as kubernetes-validate has it
LEAVING_S = 10.0  # what a stop takes beside waiting and draining
FOREIGN = {"TRITON_CACHE_DIR", "HF_HOME"}

# Fields of KubeRay 1.1 to 1.4 (ray-operator/apis/ray/v1), of which it needs those that are True.
RAY_FIELDS = {
    "spec": {"serveConfigV2": True, "rayClusterConfig": True, "serveService": False},
    "cluster": {
        "headGroupSpec": True,
        "workerGroupSpecs": False,
        "rayVersion": False,
        "enableInTreeAutoscaling": False,
        "autoscalerOptions": False,
        "headServiceAnnotations": False,
        "suspend": False,
    },
    "head": {
        "serviceType": False,
        "headService": False,
        "enableIngress": False,
        "rayStartParams": True,
        "template": True,
    },
    "worker": {
        "groupName": True,
        "replicas": False,
        "minReplicas": True,
        "maxReplicas": True,
        "numOfHosts": False,
        "rayStartParams": True,
        "template": True,
        "scaleStrategy": False,
    },
}


def documents(*folders: str) -> list[dict[str, Any]]:
    """Return the manifests of folders, without what kustomize makes of them."""
    paths = [path for folder in folders for path in sorted((KUBERNETES / folder).glob("*.yaml"))]
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [one for one in documents("base") if one["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = of_kind("Deployment")["spec"]["template"]["spec"]
    return found


def ray_service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(RAY_SERVICE.read_text(encoding="utf-8"))
    return found


def ray_groups() -> Iterator[dict[str, Any]]:
    cluster = ray_service()["spec"]["rayClusterConfig"]
    yield cluster["headGroupSpec"]
    yield from cluster["workerGroupSpecs"]


def test_probes_ask_endpoints_that_need_no_key() -> None:
    (container,) = pod()["containers"]
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in PROBES
        assert asked["port"] in ports
    # an engine that is loading, or a drain, is no reason to kill the supervisor
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert of_kind("Service")["spec"]["ports"][0]["targetPort"] in ports


def test_requests_in_flight_have_their_time_before_the_pod_is_killed() -> None:
    (container,) = pod()["containers"]
    arguments = container["args"]
    drain_s = float(arguments[arguments.index("--drain-s") + 1])
    wait_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] >= wait_s + drain_s + LEAVING_S
    # a proxy stops sending requests only after it has noticed; the probe's own time is part of it
    assert wait_s >= container["readinessProbe"]["periodSeconds"]


def test_options_of_the_container_are_those_of_izwi_serve() -> None:
    (container,) = pod()["containers"]
    (patch,) = documents("gpu")[0]["patches"]
    added = [one["value"] for one in yaml.safe_load(patch["patch"]) if "/args/" in one["path"]]
    arguments = [*container["args"], *added, "--port", "none"]
    refused = CliRunner().invoke(app, ["serve", *arguments])
    assert refused.exit_code == 2
    assert "--port" in refused.output
    assert "No such option" not in refused.output


def test_variables_are_known() -> None:
    literals = documents("base")[_place("kustomization.yaml")]
    names = {
        one.partition("=")[0] for made in literals["configMapGenerator"] for one in made["literals"]
    }
    names |= {one["name"] for group in ray_groups() for one in _containers(group)[0]["env"]}
    assert names <= {one.name for one in VARIABLES} | FOREIGN


def _place(name: str) -> int:
    return [path.name for path in sorted((KUBERNETES / "base").glob("*.yaml"))].index(name)


def _containers(group: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = group["template"]["spec"]["containers"]
    return found


def test_the_pod_runs_as_the_images_user_and_writes_where_the_image_does() -> None:
    (user,) = re.findall(r"useradd --uid (\d+)", RECIPE)
    context = pod()["securityContext"]
    assert context["runAsUser"] == context["fsGroup"] == int(user)
    (volume,) = re.findall(r"^VOLUME (\S+)$", RECIPE, flags=re.MULTILINE)
    (container,) = pod()["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {volume, "/tmp"} <= set(mounts)  # the root is read-only
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        one["name"] for one in pod()["volumes"]
    }
    claims = {
        one["persistentVolumeClaim"]["claimName"]
        for one in pod()["volumes"]
        if "persistentVolumeClaim" in one
    }
    assert claims == {of_kind("PersistentVolumeClaim")["metadata"]["name"]}


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
@pytest.mark.parametrize("folder", ["base", "gpu"])
def test_kubernetes_accepts_what_kustomize_makes(folder: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    made = kustomized(folder)
    kinds = [one["kind"] for one in made]
    assert {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget"} <= set(kinds)
    for one in made:
        validate.validate(one, VERSION, strict=True)
    broken = next(one for one in made if one["kind"] == "Deployment")
    broken["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, VERSION, strict=True)


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
def test_selectors_match_the_pods_labels() -> None:
    made = {one["kind"]: one for one in kustomized("gpu")}
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert made["Service"]["spec"]["selector"].items() <= labels.items()
    for kind in ("PodDisruptionBudget", "Deployment"):
        assert made[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"][0]["configMapRef"]["name"] == made["ConfigMap"]["metadata"]["name"]
    assert container["image"].endswith("-cuda")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def kustomized(folder: str) -> list[dict[str, Any]]:
    command = shlex.split(f"kubectl kustomize {KUBERNETES / folder}")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_the_ray_service_has_fields_that_kuberay_knows() -> None:
    spec = ray_service()["spec"]
    cluster = spec["rayClusterConfig"]
    asked = [("spec", spec), ("cluster", cluster), ("head", cluster["headGroupSpec"])]
    asked += [("worker", worker) for worker in cluster["workerGroupSpecs"]]
    for name, given in asked:
        known = RAY_FIELDS[name]
        assert set(given) <= set(known)
        assert {field for field, is_needed in known.items() if is_needed} <= set(given)
    for group in ray_groups():
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_the_ray_service_asks_for_what_its_machines_have() -> None:
    (served,) = yaml.safe_load(ray_service()["spec"]["serveConfigV2"])["applications"]
    module, _, name = served["import_path"].partition(":")
    path = ROOT / "api" / (module.replace(".", "/") + ".py")
    assert f"\ndef {name}(" in path.read_text(encoding="utf-8")
    options = parse_options(served["args"])
    _, worker = ray_groups()
    (container,) = _containers(worker)
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"]) * worker["replicas"]
    assert options.engines * options.engine_gpus <= gpus
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (pin,) = project["project"]["optional-dependencies"]["ray"]
    assert pin.endswith("==" + ray_service()["spec"]["rayClusterConfig"]["rayVersion"])
    assert worker["template"]["spec"]["terminationGracePeriodSeconds"] > options.drain_s


def test_kubernetes_accepts_the_pods_of_the_ray_service() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for group in ray_groups():
        one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}}
        validate.validate(one | {"spec": group["template"]["spec"]}, VERSION, strict=True)


def test_ray_serve_accepts_the_configuration_of_the_ray_service() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    text = ray_service()["spec"]["serveConfigV2"]
    schema.ServeDeploySchema.model_validate(yaml.safe_load(text))


def test_the_compose_file_is_valid_by_the_specification() -> None:
    """`compose-spec` reads files by the specification, and refuses fields that it does not have."""
    compose_spec = pytest.importorskip("compose_spec")
    text = COMPOSE.read_text(encoding="utf-8")
    found = compose_spec.PyCompose.from_yaml(text)
    found.validate()
    assert "izwi" in found.service_names()
    with pytest.raises(Exception, match="helthcheck"):
        compose_spec.PyCompose.from_yaml(text.replace("    init: true", "    helthcheck: {}", 1))
