"""SDKs of other makers and other languages, each through a script that fails if an answer is not what it must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS, SCRIPTS, Runner, execute, require_program
from tests.server.process import ServerProcess


def test_langchain(run_script: Runner, server: ServerProcess, reciter: ServerProcess) -> None:
    run_script("langchain-openai", "with_langchain.py", server.url, reciter.url, LANGSMITH_TRACING="false")


def test_llamaindex(run_script: Runner, server: ServerProcess) -> None:
    run_script("llama-index-llms-openai-like", "with_llamaindex.py", server.url)


def test_litellm(run_script: Runner, server: ServerProcess, reciter: ServerProcess) -> None:
    run_script("litellm", "with_litellm.py", server.url, reciter.url, LITELLM_LOCAL_MODEL_COST_MAP="True")


def test_openai_for_node(server: ServerProcess, reciter: ServerProcess, tmp_path: Path) -> None:
    node = require_program("node")
    folder = CLIENTS / "node"
    if not (folder / "node_modules" / "openai").exists():
        pytest.skip("openai for Node is not installed in .venv-clients/node: scripts/clients installs it")
    execute([node, str(SCRIPTS / "with_openai.cjs"), str(folder), server.url, reciter.url], tmp_path)


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize("options", [[], ["--no-stream"]])
def test_the_llm_command(
    run_client: Runner, server: ServerProcess, tmp_path: Path, is_chat: bool, options: list[str]
) -> None:
    model = {"model_id": "psd", "model_name": "tiny", "api_base": f"{server.url}/v1"} | (
        {} if is_chat else {"completion": True}
    )
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))  # JSON is YAML
    said = run_client(
        "llm", "llm", "-m", "psd", *options, "-o", "max_tokens", "24", "What is 7 + 5?",
        LLM_USER_PATH=str(tmp_path), OPENAI_API_KEY="none",
    )  # fmt: skip  # one option and its value per place
    if is_chat:
        expected = server.chat(max_tokens=24).json()["choices"][0]["message"]["content"]
    else:
        expected = server.complete(max_tokens=24).json()["choices"][0]["text"]
    assert said.strip() == expected.strip()
