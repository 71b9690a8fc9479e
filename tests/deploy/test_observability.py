"""Dashboard, rules and metrics against a real Prometheus that has scraped a real server under load."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.affinity import OUTCOMES
from server.metrics import ENDPOINTS, ERROR_CODES, FINISH_REASONS, WORKER_STATES, Metrics
from tests.deploy.prometheus import RULES, PrometheusProcess
from tests.server.process import ServerProcess, wait_until
from tests.server.sse import read_stream

DASHBOARD = RULES.parents[1] / "grafana" / "psd.json"
LOAD_SECONDS = 6.0  # a dozen scrapes

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus is not installed: apt-get install prometheus",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What the tests look at. num_tokens: those that all answers together say they returned."""

    server: ServerProcess
    prometheus: PrometheusProcess
    num_tokens: int


def expressions() -> list[tuple[str, str]]:
    """(panel title, query) of every target of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def load(server: ServerProcess) -> int:
    """Streams, whole answers, cached ones, chats and mistakes; returns the tokens that the answers counted."""

    def wave(_: int) -> int:
        fields: dict[str, Any] = {"max_tokens": 64, "ignore_eos": True, "temperature": 1.0}
        options = {"stream_options": {"include_usage": True}}
        body = {"model": "tiny", "prompt": "What is 7 + 5?"} | fields | options
        usages = [read_stream(server.client, "/v1/completions", body)[-1]["usage"]]
        usages.append(server.complete(psd={"cache": "prefix"}, **fields).json()["usage"])
        usages.append(server.chat(**fields).json()["usage"])
        assert server.complete(model="none").status_code == 404
        assert server.complete(temperature=-1).status_code == 400
        return sum(usage["completion_tokens"] for usage in usages)

    deadline = time.monotonic() + LOAD_SECONDS
    num_tokens = 0
    with ThreadPoolExecutor(4) as executor:
        while time.monotonic() < deadline:
            num_tokens += sum(executor.map(wave, range(4)))
    return num_tokens


@pytest.fixture(scope="module")
def scene(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two replicas under load; then one of them is killed and comes back."""
    folder = tmp_path_factory.mktemp("observability")
    with ServerProcess(random_model_path, folder, ["--replicas", "2"]) as server:
        wait_until(lambda: server.metric('psd_workers{state="ready"}') == 2, 60)
        with PrometheusProcess(server.url.removeprefix("http://"), folder) as prometheus:
            wait_until(lambda: bool(prometheus.query("psd_worker_restarts_total")))  # one scrape
            num_tokens = load(server)
            os.kill(server.worker_pids()[0], signal.SIGKILL)
            wait_until(lambda: prometheus.value("psd_worker_restarts_total") == 1)
            yield Scene(server, prometheus, num_tokens)


@needs_prometheus
def test_every_panel_has_data(scene: Scene) -> None:
    queries = expressions()
    assert len(queries) > 40
    empty = []
    for title, expression in queries:
        assert "$" in expression or "ALERTS" in expression, f"{title} ignores the choice of server"
        query = expression.replace("$__rate_interval", "60s").replace("$instance", ".*")
        assert "$" not in query, f"{title} has a variable that no dashboard of ours defines"
        if not scene.prometheus.query(query):
            empty.append((title, query))
    assert not empty


@needs_prometheus
def test_totals_are_those_of_all_replicas(scene: Scene) -> None:
    assert scene.num_tokens > 0
    wait_until(lambda: scene.prometheus.value("psd_generation_tokens_total") == scene.num_tokens)
    ended = scene.prometheus.value('sum (psd_requests_total{finish_reason=~"stop|length"})')
    assert ended == scene.prometheus.value("psd_e2e_request_latency_seconds_count")


@needs_prometheus
def test_every_rule_evaluates_and_every_record_has_data(scene: Scene) -> None:
    wait_until(lambda: not scene.prometheus.unhealthy_rules())
    groups = yaml.safe_load(RULES.read_text())["groups"]
    records = [rule["record"] for group in groups for rule in group["rules"] if "record" in rule]
    assert [record for record in records if not scene.prometheus.query(record)] == []


@needs_prometheus
def test_buckets_hold_what_the_small_model_does_and_what_a_large_one_would(scene: Scene) -> None:
    """Nothing observed lies beyond the last bound, nor most of it below the first; bounds reach minutes."""
    for family in ("time_to_first_token", "e2e_request_latency", "forward"):
        buckets = scene.prometheus.query(f"sum by (le) (psd_{family}_seconds_bucket)")
        counts = {float(sample.labels["le"]): sample.value for sample in buckets}
        *bounds, infinity = sorted(counts)
        assert counts[bounds[-1]] == counts[infinity] > 0
        assert counts[bounds[0]] < counts[infinity] / 2
        assert bounds[-1] >= 300


@needs_prometheus
def test_a_killed_worker_fires_its_alert_and_returns(scene: Scene) -> None:
    firing = 'ALERTS{alertname="WorkerRestarting", alertstate="firing"}'
    wait_until(lambda: bool(scene.prometheus.query(firing)))
    wait_until(lambda: scene.prometheus.value('psd_workers{state="ready"}') == 2, 60)
    assert not scene.prometheus.query('ALERTS{alertname="PSDDown", alertstate="firing"}')


@needs_prometheus
def test_promtool_accepts_the_metrics(scene: Scene) -> None:
    text = scene.server.client.get("/metrics").text
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@needs_prometheus
def test_the_rules_pass_their_unit_tests() -> None:
    for command in (["check", "rules", RULES.name], ["test", "rules", "rules_test.yml"]):
        result = subprocess.run(["promtool", *command], cwd=RULES.parent, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout + result.stderr


@needs_prometheus
def test_the_configurations_of_prometheus_are_valid_and_find_the_rules(tmp_path: Path) -> None:
    root = RULES.parents[2]
    for path in (RULES, root / "docker" / "prometheus" / "prometheus.yml"):
        shutil.copy(path, tmp_path)  # as compose mounts them
    for path in (tmp_path / "prometheus.yml", root / "deploy" / "ray" / "prometheus.yml"):
        command: list[str | Path] = ["promtool", "check", "config", path]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "1 rule files found" in result.stdout


def test_the_dashboard_shows_every_metric() -> None:
    lines = Metrics().render().decode().splitlines()
    families = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    queries = " ".join(query for _, query in expressions())
    assert len(families) > 30
    assert {family for family in families if family not in queries} == set()


def test_every_alert_is_unit_tested_and_explained() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert alerts == {"PSDDown", "HighQueue", "WorkerRestarting", "LowAcceptance", "SlowTTFT"}
    tests = yaml.safe_load((RULES.parent / "rules_test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case["exp_alerts"]}
    assert fired == alerts
    operations = (RULES.parents[2] / "docs" / "operations.md").read_text()
    assert [alert for alert in alerts if f"`{alert}`" not in operations] == []


def test_every_label_is_there_before_the_first_request(random_model_path: Path, tmp_path: Path) -> None:
    with ServerProcess(random_model_path, tmp_path, waits_ready=False) as server:
        lines = server.client.get("/metrics").text.splitlines()
    series = {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
    expected = {f'psd_request_errors_total{{code="{code}"}}' for code in ERROR_CODES}
    expected |= {f'psd_workers{{state="{state}"}}' for state in WORKER_STATES}
    expected |= {f'psd_prefix_affinity_total{{outcome="{outcome}"}}' for outcome in OUTCOMES}
    expected |= {
        f'psd_requests_total{{endpoint="{endpoint}",finish_reason="{reason}"}}'
        for endpoint in ENDPOINTS
        for reason in FINISH_REASONS
    }
    assert expected <= series
