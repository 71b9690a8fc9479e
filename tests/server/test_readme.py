"""What the README shows works as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from psd_core.assets import demo_path
from tests.server.process import ServerProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readmes_examples_run(tmp_path: Path) -> None:
    (script,) = code_blocks("python")
    (curl,) = [block for block in code_blocks("bash") if block.startswith("curl")]
    with ServerProcess(demo_path(), tmp_path, ["--served-model-name", "psd-demo"]) as server:
        here = server.url.removeprefix("http://")
        script = script.replace("localhost:8000", here)
        result = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr
        assert "Bruno" in result.stdout
        assert '{"name": "Greta", "age": 21, "city": "Quito", "job": "pilot", "years": 19}' in result.stdout
        answer = subprocess.run(
            ["bash", "-c", curl.replace("localhost:8000", here)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert json.loads(answer.stdout)["choices"][0]["text"].strip().splitlines()[-1] == "#### 17"


def test_the_readmes_prompts_are_shipped_examples() -> None:
    examples = (ROOT / "demo_model" / "examples.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in examples]
    used = [prompt for prompt in prompts if prompt in README]
    assert len(used) >= 2


def test_the_readmes_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not missing


def test_the_readmes_scripts_exist() -> None:
    named = set(re.findall(r"^(scripts/\w+)", "\n".join(code_blocks("bash")), re.MULTILINE))
    assert {"scripts/serve", "scripts/test"} <= named
    assert all((ROOT / name).exists() for name in named)
