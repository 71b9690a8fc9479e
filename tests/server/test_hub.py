"""Hub names are downloaded through huggingface_hub from a hub on loopback; what stands in the way is said clearly."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from psd_core.errors import CheckpointError
from psd_core.models.loader import load_model
from server.checkpoints import cached_source, resolve_source
from tests.server.checkpoint import write_checkpoint
from tests.server.hub import COMMIT, Hub
from tests.server.process import STOP_SECONDS, ServerProcess, wait_until

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model, `some/model`, beside which lie files that nobody should want."""
    folder = tmp_path / "model"
    (folder / "original").mkdir(parents=True)
    write_checkpoint(folder)
    shutil.copy(folder / WEIGHTS, folder / "original" / WEIGHTS)
    (folder / "tokenizer.model").write_text("of use where there is no tokenizer.json")
    (folder / "modeling_evil.py").write_text("raise SystemExit('remote code was run')")
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with Hub({"some/model": folder}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def resolve(name: str) -> Path:
    return asyncio.run(resolve_source(name))


def refusal(name: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        resolve(name)
    return str(caught.value)


def test_a_model_is_downloaded_once_without_code_and_then_needs_no_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve("some/model")
    assert folder == tmp_path / "home" / "hub" / "models--some--model" / "snapshots" / COMMIT
    assert load_model(folder).spec.vocab_size == 272
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        ["config.json", WEIGHTS, "tokenizer.json", "tokenizer.model", "tokenizer_config.json"]
    )
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve("some/model") == folder
    assert "HF_HUB_OFFLINE forbids" in refusal("some/other")
    assert hub.requests == []


def test_gated_and_missing_models_are_told_apart(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("some/model")
    assert "some/model is gated" in (told := refusal("some/model"))
    assert "HF_TOKEN" in told
    assert "HTTP 403" in told
    monkeypatch.setenv("HF_TOKEN", "hf_something")
    assert (resolve("some/model") / WEIGHTS).exists()
    assert "some/none is neither a folder here nor a public model" in (told := refusal("some/none"))
    assert "HTTP 404" in told


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("GPT2LMHeadModel", "architecture 'GPT2LMHeadModel' is not supported"),
        ("PanguEmbeddedForCausalLM", "is shared by autoregressive models, which are not served"),  # no "Diffusion"
    ],
)
def test_an_architecture_that_is_not_served_costs_no_download_of_weights(
    hub: Hub, architecture: str, message: str
) -> None:
    config = hub.repositories["some/model"] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [architecture]}))
    assert message in refusal("some/model")
    assert not any(WEIGHTS in request for request in hub.requests)


def test_a_stopped_download_ends_at_once_and_the_next_one_completes_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.stalled.add(WEIGHTS)

    async def stop_in_the_middle() -> None:
        resolving = asyncio.create_task(resolve_source("some/model"))
        while not any(request.startswith("GET") and WEIGHTS in request for request in hub.requests):
            assert not resolving.done()
            await asyncio.sleep(0.01)
        resolving.cancel()
        await asyncio.wait_for(asyncio.gather(resolving, return_exceptions=True), STOP_SECONDS)

    asyncio.run(stop_in_the_middle())
    hub.stalled.clear()
    hub.resumed.set()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "some/model is not complete in the local cache" in refusal("some/model")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert (resolve("some/model") / WEIGHTS).stat().st_size > 0
    assert "Fetching" in capfd.readouterr().err  # the hub's own progress bars


def test_a_hub_name_is_served_and_a_signal_stops_its_download(hub: Hub, tmp_path: Path) -> None:
    hub.stalled.add(WEIGHTS)
    with ServerProcess(Path("some/model"), tmp_path, waits_ready=False) as server:
        wait_until(lambda: any(request.startswith("GET") and WEIGHTS in request for request in hub.requests), 60.0)
        assert server.client.get("/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_SECONDS) == 0
    hub.stalled.clear()
    hub.resumed.set()
    with ServerProcess(Path("some/model"), tmp_path) as server:
        assert server.complete(max_tokens=4).status_code == 200


def test_a_server_says_why_its_model_cannot_be_had(hub: Hub, tmp_path: Path) -> None:
    with ServerProcess(Path("some/none"), tmp_path, waits_ready=False) as server:
        assert server.process.wait(60.0) == 1
        assert "psd serve: error: some/none is neither a folder here nor a public model" in server.log


def test_the_cache_is_looked_at_without_a_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="some/none is neither a folder nor a model in the local cache"):
        cached_source("some/none")
    with pytest.raises(CheckpointError, match="'no name' is neither a folder nor a hub name"):
        cached_source("no name")
    assert hub.requests == []
