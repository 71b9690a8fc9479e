"""Autoscaling on a real local Ray cluster: a replica comes with the load and leaves without cutting a stream."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deploy.ray_cluster import RayCluster
from tests.deploy.ray_streams import start
from tests.server.checkpoint import write_checkpoint
from tests.server.process import wait_until

pytestmark = pytest.mark.skipif(
    os.environ.get("PSD_TEST_RAY") != "1", reason="starts a Ray cluster, some minutes: scripts/ray runs it"
)


def test_load_adds_a_replica_and_the_one_that_leaves_finishes_its_streams(tmp_path: Path) -> None:
    """Eight open requests are too many for one replica of five; four are too few for two."""
    write_checkpoint(tmp_path, max_sequence_length=2048)  # room for streams that last
    arguments = {"target_ongoing_requests": 5, "upscale_delay_s": 0, "downscale_delay_s": 5, "look_back_period_s": 1.5}
    arguments |= {"min_replicas": 1, "max_replicas": 2, "num_gpus": 0, "num_cpus": 1}
    with RayCluster(tmp_path, tmp_path, 0, arguments) as cluster, ThreadPoolExecutor(12) as executor:
        wait_until(lambda: len(cluster.targets()) == 1, 60)
        crowd, ends = start(executor, cluster.client, 8, 1500)
        wait_until(lambda: len(cluster.targets()) == 2, 120)
        for stream in crowd:
            stream.is_wanted = False
        for end in ends:
            end.result(60)
        addresses = cluster.targets().values()
        wait_until(lambda: all(cluster.metric(address, "psd_requests_running") == 0 for address in addresses), 60)

        streams, ends = start(executor, cluster.client, 4, 700)
        assert all(stream.has_begun.wait(60) for stream in streams)
        assert all(cluster.metric(address, "psd_requests_running") > 0 for address in addresses)

        def is_one_gone() -> bool:
            num_replicas = len(cluster.replica_pids())
            assert num_replicas == 1 or len(cluster.targets()) == 2  # who finishes streams still tells its figures
            return num_replicas == 1

        wait_until(is_one_gone, 300)
        for end in ends:
            end.result(300)
        assert all(stream.is_complete for stream in streams)
