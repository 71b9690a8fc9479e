"""Traces: a tree of spans per finished request, in the caller's trace, without any text."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
import uvicorn
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from psd_core.errors import ConfigError
from server.app import create_app
from server.otel import OtelTraces
from server.settings import resolve
from server.tracing import NoTraces, make_traces
from tests.server.process import ServerProcess, wait_until

PROMPT = "Quixotic-Marmalade"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def client(exporter: InMemorySpanExporter, random_model_path: Path) -> Iterator[httpx.Client]:
    """A server in this process, so that its spans can be looked at; its worker is a process as ever."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = resolve({"model": [str(random_model_path)], "served_model_name": ["tiny"]}, {})
    config = uvicorn.Config(create_app(settings, traces=OtelTraces(provider)), port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, 60)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_until(lambda: client.get("/ready").status_code == 200, 120)
            yield client
    finally:
        server.should_exit = True
        thread.join()


def spans_of(exporter: InMemorySpanExporter, request_id: str) -> tuple[ReadableSpan, Sequence[ReadableSpan]]:
    """The root of a request's spans and its children."""

    def roots() -> list[ReadableSpan]:
        spans = exporter.get_finished_spans()
        return [span for span in spans if (span.attributes or {}).get("psd.request_id") == request_id]

    wait_until(lambda: bool(roots()), 10)
    (root,) = roots()
    children = [
        span for span in exporter.get_finished_spans() if span.parent and span.parent.span_id == root.context.span_id
    ]
    return root, children


def test_a_request_is_a_tree_of_spans_with_its_figures(client: httpx.Client, exporter: InMemorySpanExporter) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"x-request-id": "traced", "traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 70, "n": 2, "ignore_eos": True, "psd": {"cache": "dual"}}
    answer = client.post("/v1/completions", json=body, headers=headers).json()
    root, children = spans_of(exporter, "traced")
    assert format(root.context.trace_id, "032x") == trace_id
    attributes = dict(root.attributes or {})
    assert attributes["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
    assert attributes["psd.forwards"] == answer["psd"]["forwards"]
    assert attributes["psd.finish_reason"] == "length"
    names = sorted(span.name for span in children)
    assert names == ["denoise", "denoise", "queue", "queue", "refresh", "refresh", "stream"]
    for span in children:
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time  # type: ignore[operator]  # an ended span has both
    counted = sum(span.attributes["psd.forwards"] for span in children if span.name in ("refresh", "denoise"))  # type: ignore[index,misc]  # checked to be there
    assert counted == answer["psd"]["forwards"]


def test_without_refreshes_there_is_no_refresh_span(client: httpx.Client, exporter: InMemorySpanExporter) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "stream": True}
    client.post("/v1/completions", json=body, headers={"x-request-id": "plain"})
    _, children = spans_of(exporter, "plain")
    assert sorted(span.name for span in children)[:2] == ["denoise", "queue"]
    assert "refresh" not in {span.name for span in children}


def test_no_span_carries_text(client: httpx.Client, exporter: InMemorySpanExporter) -> None:
    client.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT, "max_tokens": 4})
    assert PROMPT not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_spans_reach_a_collector(random_model_path: Path, tmp_path: Path) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=collector.serve_forever)
    thread.start()
    try:
        flags = ["--otlp-endpoint", f"http://127.0.0.1:{collector.server_port}/v1/traces"]
        with ServerProcess(random_model_path, tmp_path, flags) as server:
            assert server.complete(max_tokens=4).status_code == 200
            server.process.terminate()
            assert server.process.wait(30) == 0
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    assert b"denoise" in b"".join(received)


def test_without_the_extra_the_flag_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_traces(None), NoTraces)
    real_import = builtins.__import__

    def without_extra(name: str, *arguments: object, **named: object) -> object:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, *arguments, **named)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.delitem(sys.modules, "server.otel")
    monkeypatch.setattr(builtins, "__import__", without_extra)
    with pytest.raises(ConfigError, match="psd-server\\[otel\\]"):
        make_traces("http://localhost:4318/v1/traces")


def test_the_address_of_a_collector_must_be_a_url() -> None:
    with pytest.raises(ConfigError, match="--otlp-endpoint must begin with http"):
        resolve({"otlp_endpoint": ["localhost:4318"]}, {})
    assert resolve({"otlp_endpoint": ["http://x"]}, {}).otlp_endpoint == "http://x"
