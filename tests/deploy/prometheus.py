"""A real Prometheus in a process of its own, which scrapes one server with the project's rules."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from tests.server.process import wait_until

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of the answer to a query, at one moment."""

    labels: dict[str, str]
    value: float


class PrometheusProcess:
    """`prometheus` on a free port, scraping twice a second. Use as a context manager."""

    def __init__(self, target: str, folder: Path) -> None:
        """target: host:port whose /metrics is read as the job psd."""
        scrape = {"job_name": "psd", "static_configs": [{"targets": [target]}]}
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [scrape],
        }
        config_path = folder / "prometheus.yml"
        config_path.write_text(yaml.safe_dump(config))
        self._log_path = folder / "prometheus.log"
        self._log = self._log_path.open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config_path}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.client = httpx.Client()
        try:
            wait_until(lambda: self._port() is not None or self._process.poll() is not None, 30)
            assert self._process.poll() is None, self._log_path.read_text()
            self.client = httpx.Client(base_url=f"http://127.0.0.1:{self._port()}", timeout=10)
            wait_until(lambda: self.client.get("/-/ready").status_code == 200, 30)
        except BaseException:  # nobody else will end the process
            self.__exit__(None, None, None)
            raise

    def _port(self) -> str | None:
        found = re.search(r'"Listening on" address=127\.0\.0\.1:(\d+)', self._log_path.read_text())
        return found.group(1) if found else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def query(self, expression: str) -> list[Sample]:
        """What an instant query gives, without series that are not a number."""
        answer = self.client.post("/api/v1/query", data={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result = answer["data"]["result"]
        samples = [Sample(series["metric"], float(series["value"][1])) for series in result]
        return [sample for sample in samples if not math.isnan(sample.value)]

    def value(self, expression: str) -> float:
        """The value of a query that gives one series; 0 before there is one."""
        samples = self.query(expression)
        assert len(samples) <= 1, samples
        return samples[0].value if samples else 0.0

    def unhealthy_rules(self) -> list[str]:
        """Names of rules whose evaluation failed, or has not happened yet."""
        groups = self.client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]
