"""Everything around generation: models, probes, metrics, tokens, keys."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from psd_core.config import CACHE_NAMES, DecoderConfig
from tests.server.process import SLOW, ServerProcess, wait_until

METRICS = (
    "psd_request_tokens_per_forward",
    "psd_forwards_total",
    "psd_forward_seconds",
    "psd_forward_rows",
    "psd_forward_tokens",
    "psd_drafted_tokens_total",
    "psd_accepted_tokens_total",
    "psd_accepted_depth",
    "psd_draft_depth",
    "psd_prompt_tokens_total",
    "psd_generation_tokens_total",
    "psd_discarded_tokens_total",
    "psd_time_to_first_token_seconds",
    "psd_inter_chunk_latency_seconds",
    "psd_inter_token_latency_seconds",
    "psd_e2e_request_latency_seconds",
    "psd_request_queue_seconds",
    "psd_requests_running",
    "psd_requests_waiting",
    "psd_requests_total",
    "psd_request_errors_total",
    "psd_kv_cache_usage_ratio",
    "psd_workers",
    "psd_worker_restarts_total",
    "psd_model_load_seconds",
    "psd_model_info",
    "psd_build_info",
)


@pytest.fixture(scope="module")
def guarded(random_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two keys, one web origin, a second name and a short queue."""
    flags = ["--api-key", "first", "--api-key", "second", "--allowed-origins", "https://app.example"]
    flags += ["--served-model-name", "second-name", "--max-num-seqs", "1", "--max-waiting", "1"]
    with ServerProcess(random_model_path, tmp_path_factory.mktemp("guarded"), flags) as process:
        yield process


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_models_are_listed_with_their_context(server: ServerProcess) -> None:
    (model,) = server.client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("tiny", "model", "psd-server")
    assert model["max_model_len"] == 512
    assert server.client.get("/v1/models/tiny").json() == model


def test_a_model_tells_what_the_server_does_by_default(server: ServerProcess, reciter: ServerProcess) -> None:
    model = server.client.get("/v1/models/tiny").json()
    own = model["psd"]
    assert own["decoder"] == asdict(DecoderConfig(draft_depth="auto"))
    assert (own["takes_suffix"], own["block_length"], own["seed"]) == (True, None, None)
    said = server.complete(max_tokens=None).json()
    used = {name: said["psd"][name] for name in own["decoder"] if name in said["psd"]}
    assert used == {name: own["decoder"][name] for name in used}
    other = reciter.client.get("/v1/models/tiny").json()["psd"]
    assert not other["is_built_in"]
    refused = reciter.complete(psd={"cache": next(name for name in CACHE_NAMES if name not in other["caches"])})
    assert refused.status_code == 400


HEAD_PATHS = ("/health", "/ready", "/metrics", "/version", "/v1/models", "/v1/models/tiny", "/docs", "/openapi.json")


@pytest.mark.parametrize("path", [*HEAD_PATHS, "/tokenizer_info"])
def test_probes_may_use_head(server: ServerProcess, path: str) -> None:
    response = server.client.head(path)
    assert response.status_code == 200
    assert response.content == b""
    assert response.headers["content-type"] == server.client.get(path).headers["content-type"]


def test_head_is_no_way_around_a_method(server: ServerProcess) -> None:
    response = server.client.head("/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert server.client.head("/nope").status_code == 404


def test_the_version_is_told(server: ServerProcess) -> None:
    assert server.client.get("/version").json()["version"]


def test_health_answers_while_a_forward_takes_for_ever(server: ServerProcess) -> None:
    """The worker is stopped in the middle of its work: whatever the API process answers then, it answers by itself."""
    (pid,) = server.worker_pids()
    with ThreadPoolExecutor(4) as executor:
        busy = [executor.submit(server.complete, max_tokens=64, ignore_eos=True, psd=SLOW) for _ in range(4)]
        wait_until(lambda: server.metric("psd_requests_running") > 0)
        os.kill(pid, signal.SIGSTOP)
        try:
            for path in ("/health", "/v1/models", "/metrics", "/version") * 5:
                assert server.client.get(path).status_code == 200
            assert not all(future.done() for future in busy)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert all(future.result().status_code == 200 for future in busy)


def test_every_metric_is_there_tokens_per_forward_first(server: ServerProcess) -> None:
    server.complete(max_tokens=40)
    text = server.client.get("/metrics").text
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert families[0] == "psd_request_tokens_per_forward"
    assert set(METRICS) <= set(families)
    assert "_created" not in text


def test_metrics_count_what_the_answer_says(server: ServerProcess) -> None:
    samples = ("psd_prompt_tokens_total", "psd_generation_tokens_total", "psd_request_tokens_per_forward_count")
    before = [server.metric(sample) for sample in samples]
    forwards = server.metric('psd_forwards_total{phase="denoise"}')
    answer = server.complete(max_tokens=40, n=2).json()
    after = [server.metric(sample) for sample in samples]
    usage = answer["usage"]
    assert after == [before[0] + usage["prompt_tokens"], before[1] + usage["completion_tokens"], before[2] + 2]
    assert server.metric('psd_forwards_total{phase="denoise"}') >= forwards + answer["psd"]["forwards"] / 2 - 1


def test_the_tpf_of_requests_and_the_log_agree(server: ServerProcess) -> None:
    response = server.complete(max_tokens=40, ignore_eos=True)
    line = next(line for line in server.log.splitlines() if response.headers["x-request-id"] in line)
    assert f"TPF {response.json()['psd']['tokens_per_forward']:.2f}" in line
    assert "What is" not in line


def test_text_and_tokens_are_inverses(server: ServerProcess) -> None:
    tokens = server.client.post("/tokenize", json={"prompt": "héllo 🚀", "add_special_tokens": False}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert server.client.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "héllo 🚀"}


def test_a_special_token_s_text_is_that_token_unless_it_shall_be_text(server: ServerProcess) -> None:
    text = server.client.get("/tokenizer_info").json()["eos_token"]
    body = {"prompt": text, "add_special_tokens": False}
    (eos_id,) = server.client.post("/tokenize", json=body).json()["tokens"]
    assert server.client.post("/detokenize", json={"tokens": [eos_id]}).json()["prompt"] == text
    plain = server.client.post("/tokenize", json=body | {"parse_special": False}).json()["tokens"]
    assert eos_id not in plain
    assert (
        server.complete(prompt=text, max_tokens=1, return_token_ids=True).json()["choices"][0]["prompt_token_ids"][
            -len(plain) :
        ]
        == plain
    )


def test_the_tokenizer_tells_what_remote_tokenizers_need(server: ServerProcess) -> None:
    info = server.client.get("/tokenizer_info").json()
    assert info == server.client.get("/v1/tokenizer_info").json()
    assert {"tokenizer_class", "eos_token", "bos_token", "chat_template"} <= set(info)


def test_the_api_page_loads_nothing_from_elsewhere(server: ServerProcess) -> None:
    page = server.client.get("/docs")
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(sources) == 4
    for source in sources:
        response = server.client.get(source)
        assert response.status_code == 200, source
        assert "https://" not in source
    assert '"/openapi.json"' in server.client.get("/docs/start.js").text
    assert server.client.get("/docs/redoc.standalone.js").status_code == 404
    assert server.client.get("/docs/..%2f..%2f__init__.py").status_code == 404


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Basic first"}, bearer("first2"), bearer("firs"), bearer("é")]
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/nope", "/docs", "/openapi.json"])
def test_without_a_valid_key_everything_is_refused(guarded: ServerProcess, path: str, header: dict[str, str]) -> None:
    raw = {name.encode(): value.encode() for name, value in header.items()}
    response = guarded.client.get(path, headers=raw)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_each_key_opens_and_probes_need_none(guarded: ServerProcess) -> None:
    for key in ("first", "second"):
        assert guarded.client.get("/v1/models", headers=bearer(key)).status_code == 200
    assert guarded.client.get("/v1/models", headers={"Authorization": "bearer first"}).status_code == 200
    for path in ("/health", "/ready"):
        assert guarded.client.get(path).status_code == 200


def test_keys_are_never_logged(guarded: ServerProcess) -> None:
    guarded.client.get("/v1/models", headers=bearer("first"))
    assert "first" not in guarded.log


def test_a_preflight_needs_no_key_and_refusals_carry_cors_headers(guarded: ServerProcess) -> None:
    origin = {"Origin": "https://app.example"}
    asked = origin | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = guarded.client.options("/v1/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    refused = guarded.client.get("/v1/models", headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"


def test_cors_is_off_by_default(server: ServerProcess) -> None:
    response = server.client.get("/health", headers={"Origin": "https://app.example"})
    assert "access-control-allow-origin" not in response.headers


def test_every_served_name_works(guarded: ServerProcess) -> None:
    data = guarded.client.get("/v1/models", headers=bearer("first")).json()["data"]
    assert [model["id"] for model in data] == ["tiny", "second-name"]


def test_a_full_queue_is_a_429_with_advice(guarded: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 448, "ignore_eos": True, "psd": SLOW, "stream": True}
    url, headers = f"{guarded.url}/v1/completions", bearer("first")
    with (
        httpx.stream("POST", url, json=body, headers=headers, timeout=60) as running,
        httpx.stream("POST", url, json=body, headers=headers, timeout=60) as waiting,
    ):
        assert running.status_code == waiting.status_code == 200
        refused = httpx.post(url, json=body, headers=headers)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
    too_many = httpx.post(url, json=body | {"n": 3}, headers=headers)
    assert too_many.status_code == 400
    assert too_many.json()["error"]["param"] == "n"


def test_every_endpoint_is_documented_with_its_errors(server: ServerProcess) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    documented = {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/health", "/ready", "/metrics"}
    assert documented <= set(paths)
    assert {"200", "400", "401", "404", "413", "429", "500", "503"} <= set(
        paths["/v1/completions"]["post"]["responses"]
    )
    assert "UserWarning" not in server.log
