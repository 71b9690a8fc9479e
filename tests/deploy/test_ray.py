"""The application on a real local Ray cluster: streams, figures, and the loss of a replica in the middle of them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml

from tests.deploy.ray_cluster import ROOT, RayCluster
from tests.server.process import SLOW, wait_until

NUM_STREAMS = 8

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'psd-server[ray]'"
)
slow = pytest.mark.skipif(
    os.environ.get("PSD_TEST_RAY") != "1", reason="starts a Ray cluster, some minutes; PSD_TEST_RAY=1 runs it"
)


@dataclass(slots=True)
class Stream:
    """What a client saw of one stream."""

    has_begun: Event
    is_complete: bool = False
    num_chunks: int = 0


@pytest.fixture(scope="module")
def cluster(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with RayCluster(random_model_path, tmp_path_factory.mktemp("ray")) as cluster:
        wait_until(lambda: len(cluster.targets()) == 2, 60)
        yield cluster


def follow(client: httpx.Client, stream: Stream, max_tokens: int) -> None:
    """Read a stream to its end, whatever end that is."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "psd": SLOW}
    try:
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                stream.is_complete |= line == "data: [DONE]"
                stream.num_chunks += line.startswith("data: ")
                stream.has_begun.set()
    except httpx.TransportError:
        pass  # the replica died: the stream ends without [DONE]
    finally:
        stream.has_begun.set()


def start(
    executor: ThreadPoolExecutor, client: httpx.Client, max_tokens: int
) -> tuple[list[Stream], list[Future[None]]]:
    streams = [Stream(Event()) for _ in range(NUM_STREAMS)]
    return streams, [executor.submit(follow, client, stream, max_tokens) for stream in streams]


@needs_ray
@slow
def test_streams_pass_through_and_every_replica_counts_its_own(cluster: RayCluster) -> None:
    sample = "psd_generation_tokens_total"
    targets = cluster.targets()
    before = [cluster.metric(address, sample) for address in targets.values()]
    with ThreadPoolExecutor(NUM_STREAMS) as executor:
        streams, futures = start(executor, cluster.client, 96)
        for future in futures:
            future.result(300)
    assert all(stream.is_complete for stream in streams)
    assert all(stream.num_chunks > 3 for stream in streams)  # a block of 32 tokens at a time, not all at once
    after = [cluster.metric(address, sample) for address in targets.values()]
    shares = [new - old for new, old in zip(after, before, strict=True)]
    assert sum(shares) == NUM_STREAMS * 96
    assert min(shares) > 0


@needs_ray
@slow
def test_errors_have_the_api_s_form_and_metrics_belong_to_replicas(cluster: RayCluster) -> None:
    unknown = cluster.client.post("/v1/completions", json={"model": "none", "prompt": "a"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    mixed = cluster.client.get("/metrics")
    assert (mixed.status_code, mixed.json()["error"]["code"]) == (404, "unknown_path")
    assert cluster.client.get("/ready").json() == {"status": "ready"}


@needs_ray
@slow
def test_one_replica_dies_the_others_finish_and_it_returns(cluster: RayCluster) -> None:
    old_targets, old_pids = cluster.targets(), cluster.replica_pids()
    assert len(old_pids) == 2
    with ThreadPoolExecutor(NUM_STREAMS) as executor:
        streams, futures = start(executor, cluster.client, 448)
        assert all(stream.has_begun.wait(120) for stream in streams)
        assert not any(stream.is_complete for stream in streams)
        cluster.kill_replica()
        for future in futures:
            future.result(300)  # nobody hangs
    num_complete = sum(stream.is_complete for stream in streams)
    assert 0 < num_complete < NUM_STREAMS

    wait_until(lambda: len(set(cluster.replica_pids()) - set(old_pids)) == 1, 120)
    wait_until(lambda: len(set(cluster.targets()) - set(old_targets)) == 1, 120)
    wait_until(lambda: len(cluster.targets()) == 2, 120)  # the dead one is no target any more
    with ThreadPoolExecutor(NUM_STREAMS) as executor:
        streams, futures = start(executor, cluster.client, 64)
        for future in futures:
            future.result(300)
    assert all(stream.is_complete for stream in streams)
    wait_until(lambda: all(cluster.metric(a, "psd_generation_tokens_total") > 0 for a in cluster.targets().values()))


@needs_ray
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("flags={'polcy': 'greedy'}", "polcy is no flag"),
        ("flags={'threshold': 2}", "--threshold must be a number between 0 and 1, got '2'"),
        ("flags={'replicas': 2}", "replicas must be 1"),
        ("min_replicas=3, max_replicas=2", "min_replicas must be at most max_replicas 2, got 3"),
        ("min_replicas=-1", "min_replicas"),
        ("replicas=2", "replicas"),
    ],
)
def test_wrong_arguments_are_refused_where_the_application_is_built(arguments: str, message: str) -> None:
    program = f"from server.rayserve import RayArguments, build; build(RayArguments({arguments}))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode != 0
    assert message in result.stderr.splitlines()[-1] or message in result.stderr


@needs_ray
def test_the_kuberay_manifest_carries_a_configuration_that_ray_accepts() -> None:
    program = (
        "import sys, yaml\n"
        "from ray.serve.schema import ServeDeploySchema\n"
        "from server.rayserve import RayArguments, build\n"
        "config = ServeDeploySchema.model_validate(yaml.safe_load(sys.stdin.read()))\n"
        "(application,) = config.applications\n"
        "assert application.import_path == 'server.rayserve:build'\n"
        "build(RayArguments(**application.args))\n"
    )
    config = read_rayservice()["spec"]["serveConfigV2"]
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=ROOT, input=config, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_kuberay_manifest_makes_pods_that_kubernetes_accepts() -> None:
    """Its own kind has no schema in a registry: the pods inside are checked, and the replicas against the nodes."""
    spec = read_rayservice()["spec"]
    cluster = spec["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    for template in (cluster["headGroupSpec"]["template"], group["template"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "psd"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, "1.37", strict=True)
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    arguments = application["args"]
    (container,) = group["template"]["spec"]["containers"]
    assert float(container["resources"]["limits"]["nvidia.com/gpu"]) == arguments["num_gpus"]
    assert float(container["resources"]["requests"]["cpu"]) >= arguments["num_cpus"]
    assert (group["minReplicas"], group["maxReplicas"]) == (arguments["min_replicas"], arguments["max_replicas"])


def read_rayservice() -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "ray" / "rayservice.yaml").read_text())
    return manifest
