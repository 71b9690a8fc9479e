"""The application on a real local Ray cluster: streams, GPUs, figures, and the loss of a replica in their middle.

`scripts/ray` installs Ray and runs them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from psd_core.assets import demo_path
from tests.deploy.ray_cluster import ROOT, RayCluster, is_running, worker_pids
from tests.deploy.ray_streams import start
from tests.server.process import wait_until

NUM_STREAMS = 8

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: scripts/ray")
slow = pytest.mark.skipif(
    os.environ.get("PSD_TEST_RAY") != "1", reason="starts a Ray cluster, some minutes: scripts/ray runs it"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two replicas of the built-in model on a node that is said to have two GPUs; the workers compute on the CPU."""
    arguments = {"min_replicas": 2, "max_replicas": 2, "num_gpus": 1, "num_cpus": 1}
    with RayCluster(demo_path(), tmp_path_factory.mktemp("ray"), 2, arguments) as cluster:
        wait_until(lambda: len(cluster.targets()) == 2, 60)
        yield cluster


@needs_ray
@slow
def test_every_replica_has_a_gpu_of_its_own(cluster: RayCluster) -> None:
    workers = [worker_pids(pid) for pid in cluster.replica_pids()]
    variables = [text for (pid,) in workers for text in Path(f"/proc/{pid}/environ").read_text().split("\0")]
    assert sorted(text for text in variables if text.startswith("CUDA_VISIBLE_DEVICES=")) == [
        "CUDA_VISIBLE_DEVICES=0",
        "CUDA_VISIBLE_DEVICES=1",
    ]


@needs_ray
@slow
def test_streams_pass_through_and_every_replica_counts_its_own(cluster: RayCluster) -> None:
    for pid in cluster.replica_pids():
        assert "uvloop" in Path(f"/proc/{pid}/maps").read_text()  # Ray's choice of event loop
    sample = "psd_generation_tokens_total"
    targets = cluster.targets()
    before = [cluster.metric(address, sample) for address in targets.values()]
    with ThreadPoolExecutor(NUM_STREAMS) as executor:
        streams, futures = start(executor, cluster.client, NUM_STREAMS, 96)
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
        streams, futures = start(executor, cluster.client, NUM_STREAMS, 448)
        assert all(stream.has_begun.wait(120) for stream in streams)
        assert not any(stream.is_complete for stream in streams)
        (worker,) = cluster.kill_replica()
        for future in futures:
            future.result(300)  # nobody hangs
    num_complete = sum(stream.is_complete for stream in streams)
    assert 0 < num_complete < NUM_STREAMS
    wait_until(lambda: not is_running(worker), 30)  # its GPU is the next replica's

    wait_until(lambda: len(set(cluster.replica_pids()) - set(old_pids)) == 1, 120)
    wait_until(lambda: len(set(cluster.targets()) - set(old_targets)) == 1, 120)
    wait_until(lambda: len(cluster.targets()) == 2, 120)  # the dead one is no target any more

    def do_both_serve() -> bool:
        """A replica tells where its figures are a moment before Ray sends it requests."""
        with ThreadPoolExecutor(NUM_STREAMS) as executor:
            streams, futures = start(executor, cluster.client, NUM_STREAMS, 64)
            for future in futures:
                future.result(300)
        assert all(stream.is_complete for stream in streams)
        return all(cluster.metric(a, "psd_generation_tokens_total") > 0 for a in cluster.targets().values())

    wait_until(do_both_serve, 120)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"flags": {"polcy": "greedy"}}, "polcy is no flag"),
    ({"flags": {"threshold": 2}}, "--threshold must be a number between 0 and 1, got '2'"),
    ({"flags": {"replicas": 2}}, "replicas must be 1: Ray places them, got 2"),
    ({"min_replicas": 3, "max_replicas": 2}, "min_replicas must be at most max_replicas 2, got 3"),
    ({"flags": '{"replicas": 2}'}, "replicas must be 1"),
    ({"flags": "policy=greedy"}, "flags must be a JSON object, got 'policy=greedy'"),
    ({"min_replicas": -1}, "min_replicas"),
    ({"look_back_period_s": 0}, "look_back_period_s"),
    ({"replicas": 2}, "replicas"),
    ({"num_gpus": -1}, "num_gpus"),
    ({"num_gpus": 2}, "num_gpus must be tensor_parallel_size 1, one for each rank, got 2"),
    ({"flags": {"tensor_parallel_size": 2}}, "num_gpus must be tensor_parallel_size 2, one for each rank, got 1"),
    ({"flags": {"device": "cuda:1"}}, "device must be auto, cpu or cuda: Ray chooses the GPUs, got 'cuda:1'"),
    ({"flags": {"device": "cpu"}}, "num_gpus must be 0 where device is cpu, got 1"),
    ({"flags": {"device": "cuda"}, "num_gpus": 0}, "num_gpus must be above 0 where device is cuda, got 0"),
    ({"flags": {"tensor_parallel_size": 2}, "num_gpus": 2}, "accepted: auto"),
    ({"flags": {"tensor_parallel_size": 2}, "num_gpus": 0}, "accepted: cpu"),
    ({"flags": {"device": "cuda"}, "num_gpus": 0.5}, "accepted: cuda"),  # two replicas on one GPU
    ({"num_gpus": 0, "flags": {"cuda_graphs": True}}, "--cuda-graphs needs a CUDA device, got --device cpu"),
    ({"num_gpus": 0}, "accepted: cpu"),  # Ray would show it every GPU of the node
    ({"num_gpus": "1", "max_replicas": "2", "flags": '{"policy": "greedy"}'}, "accepted: auto"),  # a command line
]


@needs_ray
def test_arguments_are_judged_where_the_application_is_built() -> None:
    """Each is refused with these words, or accepted and gives replicas this device."""
    program = (
        "import json, sys\n"
        "from psd_core.errors import ConfigError\n"
        "from server.rayserve import RayArguments, build, resolve_flags\n"
        "for given in json.load(sys.stdin):\n"
        "    try:\n"
        "        build(given)\n"
        "        arguments = RayArguments.model_validate(given)\n"
        "        said = 'accepted: ' + resolve_flags(arguments.flags, arguments.num_gpus).model.device\n"
        "    except (ConfigError, ValueError) as error:\n"
        "        said = f'refused: {error}'\n"
        "    print(json.dumps(said))\n"
    )
    given = json.dumps([arguments for arguments, _ in ARGUMENTS])
    answers = [json.loads(line) for line in run_program(program, given).splitlines()]
    for (arguments, words), said in zip(ARGUMENTS, answers, strict=True):
        is_right = said == words if words.startswith("accepted") else said.startswith("refused") and words in said
        assert is_right, (arguments, said)


@needs_ray
def test_the_kuberay_manifest_carries_a_configuration_that_ray_accepts() -> None:
    program = (
        "import sys, yaml\n"
        "from ray.serve.schema import ServeDeploySchema\n"
        "from server.rayserve import build\n"
        "config = ServeDeploySchema.model_validate(yaml.safe_load(sys.stdin.read()))\n"
        "(application,) = config.applications\n"
        "assert application.import_path == 'server.rayserve:build'\n"
        "build(application.args)\n"
    )
    run_program(program, read_rayservice()["spec"]["serveConfigV2"])


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


def run_program(program: str, given: str) -> str:
    """What a program says to such an input. A process of its own: importing Ray warns."""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def read_rayservice() -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "ray" / "rayservice.yaml").read_text())
    return manifest
