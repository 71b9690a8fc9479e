"""The Kubernetes overlays: rendered by kustomize itself, held against the API's own schemas, and against the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor
from pydantic import BaseModel

from server.flags import FLAGS
from server.processes import STOP_SECONDS
from server.run import LAST_FRAMES_SECONDS
from server.settings import resolve
from tests.deploy.prometheus import RULES
from tests.server.process import ServerProcess

Manifest = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = ("cpu-demo", "single-gpu", "tensor-parallel", "multi-replica", "multi-replica-keda")
VERSIONS = ("1.29", "1.37")  # the oldest and the newest that the manifests are held against
CUSTOM: dict[str, type[BaseModel]] = {
    "ScaledObject": ScaledObject,
    "PrometheusRule": PrometheusRule,
    "ServiceMonitor": ServiceMonitor,
}
NAME = {"app.kubernetes.io/name": "psd"}

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Manifest]]:
    """Every overlay as `kubectl kustomize` builds it."""
    kubectl = Path(sys.executable).parent / "kubectl"
    results = {}
    for overlay in OVERLAYS:
        command: list[str | Path] = [kubectl, "kustomize", FOLDER / "overlays" / overlay]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        results[overlay] = list(yaml.safe_load_all(result.stdout))
    return results


def only(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def pod_of(manifests: list[Manifest]) -> Manifest:
    spec: Manifest = only(manifests, "Deployment")["spec"]["template"]["spec"]
    return spec


def config_of(manifests: list[Manifest]) -> dict[str, str]:
    data: dict[str, str] = only(manifests, "ConfigMap")["data"]
    return data


@each_overlay
def test_every_object_follows_its_schema(rendered: dict[str, list[Manifest]], overlay: str) -> None:
    for manifest in rendered[overlay]:
        model = CUSTOM.get(manifest["kind"])
        if model is None:
            for version in VERSIONS:
                kubernetes_validate.validate(manifest, version, strict=True)
            continue
        # The model drops keys that it does not know, so what comes back must be what went in.
        kept = model.model_validate(manifest).model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert kept == manifest


@each_overlay
def test_everything_is_in_one_namespace_and_selected_by_one_label(
    rendered: dict[str, list[Manifest]], overlay: str
) -> None:
    manifests = rendered[overlay]
    namespace = only(manifests, "Namespace")["metadata"]["name"]
    others = [manifest for manifest in manifests if manifest["kind"] != "Namespace"]
    assert {manifest["metadata"]["namespace"] for manifest in others} == {namespace}
    deployment = only(manifests, "Deployment")["spec"]
    assert deployment["selector"]["matchLabels"] == NAME
    assert NAME.items() <= deployment["template"]["metadata"]["labels"].items()
    assert only(manifests, "Service")["spec"]["selector"] == NAME
    assert NAME.items() <= only(manifests, "Service")["metadata"]["labels"].items()
    assert only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == NAME
    network = only(manifests, "NetworkPolicy")["spec"]
    assert network["podSelector"]["matchLabels"] == NAME
    assert network["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == {"psd-client": "true"}


@each_overlay
def test_the_configuration_is_one_the_server_accepts(rendered: dict[str, list[Manifest]], overlay: str) -> None:
    manifests = rendered[overlay]
    (container,) = pod_of(manifests)["containers"]
    name = only(manifests, "ConfigMap")["metadata"]["name"]
    assert container["envFrom"] == [{"configMapRef": {"name": name}}]
    assert name != "psd"  # the hash behind it rolls the pods when the configuration changes
    variables = config_of(manifests)
    assert {key for key in variables if key.startswith("PSD_")} <= {flag.variable for flag in FLAGS}
    settings = resolve({}, variables)
    assert settings.http.is_metrics_open  # Prometheus has no key


@each_overlay
def test_a_pod_has_time_to_drain(rendered: dict[str, list[Manifest]], overlay: str) -> None:
    pod = pod_of(rendered[overlay])
    (container,) = pod["containers"]
    word, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    drain = resolve({}, config_of(rendered[overlay])).http.drain_seconds
    needed = float(pause) + drain + LAST_FRAMES_SECONDS + STOP_SECONDS
    assert needed < pod["terminationGracePeriodSeconds"]


@each_overlay
def test_only_the_demo_serves_without_a_key(rendered: dict[str, list[Manifest]], overlay: str) -> None:
    (container,) = pod_of(rendered[overlay])["containers"]
    variables = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in container.get("env", [])}
    if overlay == "cpu-demo":
        assert variables == {}
        return
    assert variables["PSD_API_KEY"] == {"name": "psd-keys", "key": "api-keys"}  # not optional


@each_overlay
def test_a_pod_is_restricted(rendered: dict[str, list[Manifest]], overlay: str) -> None:
    pod = pod_of(rendered[overlay])
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert writable == {"/models", "/tmp"} | ({"/dev/shm"} if overlay == "tensor-parallel" else set())


@each_overlay
def test_every_rank_has_a_gpu_and_ranks_have_shared_memory(rendered: dict[str, list[Manifest]], overlay: str) -> None:
    pod = pod_of(rendered[overlay])
    (container,) = pod["containers"]
    model = resolve({}, config_of(rendered[overlay])).model
    num_ranks = model.replicas * model.tensor_parallel_size
    num_gpus = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
    assert num_gpus == (num_ranks if model.device == "cuda" else 0)
    mounted = {mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm"}
    media = [volume["emptyDir"]["medium"] for volume in pod["volumes"] if volume["name"] in mounted]
    assert media == ["Memory"] * (model.tensor_parallel_size > 1)


def test_the_probes_ask_what_the_server_answers_without_a_key(
    rendered: dict[str, list[Manifest]], server: ServerProcess
) -> None:
    (container,) = pod_of(rendered["single-gpu"])["containers"]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/ready",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }
    for probe in probes.values():
        assert probe["port"] == container["ports"][0]["name"]
        assert server.client.get(probe["path"]).status_code == 200


def test_scaling_follows_metrics_that_exist(rendered: dict[str, list[Manifest]], server: ServerProcess) -> None:
    families = {line.split()[2] for line in server.client.get("/metrics").text.splitlines() if line.startswith("# T")}
    scaler = only(rendered["multi-replica"], "HorizontalPodAutoscaler")["spec"]
    names = [entry["pods"]["metric"]["name"] for entry in scaler["metrics"]]
    assert names == ["psd_requests_waiting", "psd_requests_running"]
    assert set(names) <= families
    assert scaler["scaleTargetRef"]["name"] == only(rendered["multi-replica"], "Deployment")["metadata"]["name"]
    keda = only(rendered["multi-replica-keda"], "ScaledObject")["spec"]
    assert [trigger["metadata"]["query"] for trigger in keda["triggers"]] == [
        f'sum ({name}{{job="psd"}})' for name in names
    ]
    for overlay in ("multi-replica", "multi-replica-keda"):
        assert "replicas" not in only(rendered[overlay], "Deployment")["spec"]
    assert not list(kinds(rendered["multi-replica-keda"], "HorizontalPodAutoscaler"))


def test_the_operator_gets_the_rules_that_are_tested(rendered: dict[str, list[Manifest]]) -> None:
    assert only(rendered["single-gpu"], "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text())
    monitor = only(rendered["single-gpu"], "ServiceMonitor")["spec"]
    service = only(rendered["single-gpu"], "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "psd"


def kinds(manifests: list[Manifest], kind: str) -> Iterator[Manifest]:
    return (manifest for manifest in manifests if manifest["kind"] == kind)
