"""`psd eval` as a process: its figures are the API's, from either source; runs resume; nothing is mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.evaluation.command import psd
from tests.server.process import ServerProcess

PROMPTS = ("What is 7 + 5?", "Sort these numbers: 7, 9, 4.", "Reverse this list: sun, tree, lamp.")
GREEDY: dict[str, object] = {"policy": "greedy", "draft_depth": 0}
DECODERS = ("greedy:draft_depth=0", "topk:draft_depth=0", "topk:draft_depth=1", "topk:draft_depth=3",
            "topk:draft_depth=3,draft_increment=2", "topk:draft_depth=3,acceptance=token")  # fmt: skip
TOKENS = 24


def flags(url: str, task: Path, output: Path, *decoders: str) -> list[str]:
    cells = [text for decoder in decoders for text in ("--decoder", decoder)]
    return [
        "eval", "--url", url, "--task", str(task), "--output", str(output), "--max-tokens", str(TOKENS), *cells,
        "--api-key", "sk-secret", "--api-k=sk-secret-too",
    ]  # fmt: skip  # one option and its value per place


@pytest.fixture(scope="module")
def greedy(server: ServerProcess) -> list[dict[str, Any]]:
    """The server's own answers."""
    return [server.complete(prompt=prompt, max_tokens=TOKENS, psd=GREEDY).json() for prompt in PROMPTS]


@pytest.fixture(scope="module")
def task(greedy: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task to which greedy's answers are the right ones."""
    path = tmp_path_factory.mktemp("task") / "mine.jsonl"
    texts = [answer["choices"][0]["text"].strip() or "nothing" for answer in greedy]
    records = [{"prompt": prompt, "answer": text} for prompt, text in zip(PROMPTS, texts, strict=True)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def run(server: ServerProcess, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    output = tmp_path_factory.mktemp("run") / "out"
    ended = psd(*flags(server.url, task, output, *DECODERS))
    assert ended.returncode == 0, ended.stderr
    assert (output / "results.md").read_text() in ended.stdout
    return output


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def answers(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """By cell and problem; each of them once."""
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    found = [line["answer"] for line in lines if "answer" in line]
    by_key = {(answer["cell"], answer["problem"]): answer["reply"] for answer in found}
    assert len(by_key) == len(found)
    return by_key


def test_the_figures_are_those_of_the_api(run: Path, greedy: list[dict[str, Any]]) -> None:
    cells = {cell["name"]: cell for cell in results(run)["cells"]}
    assert list(cells) == ["greedy", "topk 2", "PSD(topk 2), exact, D = 1", "PSD(topk 2), exact, D = 3",
                           "PSD(topk 2), exact, +2, D = 3", "PSD(topk 2), token, D = 3"]  # fmt: skip
    ours = cells["greedy"]
    assert ours["forwards"] == sum(answer["psd"]["forwards"] for answer in greedy)
    assert ours["tokens"] == sum(answer["usage"]["completion_tokens"] for answer in greedy)
    assert ours["tpf"] == ours["tokens"] / ours["forwards"]
    assert ours["seconds"] > 0
    for name, cell in cells.items():
        drafted = cell["against_undrafted"]
        if "exact" in name:
            assert drafted["name"] == "topk 2"
            assert drafted["same_output"] == 1.0
            assert cell["forwards"] <= cells["topk 2"]["forwards"]
        assert sum(cell["accepted_depths"]) == cell["forwards"] - cell["refresh_forwards"]
        assert cell["against_baseline"] is None or cell["against_baseline"]["name"] == "greedy"
        decided = sum(cell["spatial_deciles"]) + sum(cell["temporal_deciles"])
        assert decided >= cell["tokens"]
        assert (sum(cell["temporal_deciles"]) > 0) == (cell["accepted_tokens"] > 0)


def test_results_are_written_as_tables_and_as_pictures(run: Path) -> None:
    text = (run / "results.md").read_text()
    assert "| greedy |" in text
    assert "AUP" in text
    expected = {"pareto.png", "depth.png", "rules.png", "acceptance.png", "aup.png"}
    if any(sum(cell["temporal_deciles"]) for cell in results(run)["cells"] if cell["settings"]["draft_depth"] == 3):
        expected.add("progress.png")
    assert {path.name for path in run.glob("*.png")} == expected
    for name in expected:
        with Image.open(run / name) as picture:
            assert picture.size[0] > 500
            assert min(picture.convert("RGBA").getchannel("A").tobytes()) == 0  # transparent: it stands on any page


def test_keys_are_not_written_down(run: Path) -> None:
    assert not [path for path in run.iterdir() if b"sk-secret" in path.read_bytes()]
    assert "--api-key … --api-k=…" in results(run)["command"].replace("'", "")


def test_a_run_that_was_killed_goes_on_with_what_is_missing(
    run: Path, server: ServerProcess, task: Path, tmp_path: Path
) -> None:
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    output = tmp_path / "out"
    output.mkdir()
    num_kept = len(whole) - 5
    (output / "journal.jsonl").write_bytes(b"".join(whole[:num_kept]) + whole[num_kept][:40])
    ended = psd(*flags(server.url, task, output, *DECODERS))
    assert ended.returncode == 0, ended.stderr
    assert "13 of 18 answers are there already" in ended.stderr
    assert answers(output) == answers(run)
    assert (output / "journal.jsonl").read_bytes().startswith(b"".join(whole[:num_kept]))


def test_problems_may_be_added_and_a_changed_prompt_is_asked_anew(
    server: ServerProcess, task: Path, tmp_path: Path
) -> None:
    output, mine = tmp_path / "out", tmp_path / task.name
    lines = task.read_text().splitlines(keepends=True)
    for text, said in (
        ("".join(lines[:2]), ""),
        ("".join(lines), "2 of 3 answers are there already"),
        ("".join(lines).replace("7 + 5", "7 + 6"), "2 of 3 answers are there already"),
    ):
        mine.write_text(text)
        ended = psd(*flags(server.url, mine, output, "topk:draft_depth=0"))
        assert ended.returncode == 0, ended.stderr
        assert said in ended.stderr
    assert len(answers(output)) == 4
    assert results(output)["cells"][0]["num_problems"] == 3


def test_answers_of_other_settings_are_refused(run: Path, server: ServerProcess, task: Path) -> None:
    before = (run / "journal.jsonl").read_bytes()
    other = psd(*flags(server.url, task, run, *DECODERS), "--stop", "x")
    assert other.returncode == 2
    assert "stop: None, now ['x']" in other.stderr
    assert "--restart" in other.stderr
    renamed = psd(*flags(server.url, task, run, "greedy=topk"))
    assert renamed.returncode == 2
    assert "has a cell 'greedy' with other settings (policy: 'greedy', now 'topk'" in renamed.stderr
    assert (run / "journal.jsonl").read_bytes() == before


# In bfloat16, which is what a machine may find faster, a near tie falls as the shape of the batch will have it.
ALIKE = ("--batch", "2", "--threads", "1", "--dtype", "float32")


def test_an_engine_in_the_process_gives_the_servers_answers(
    run: Path, task: Path, model_path: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = flags("", task, output, "topk:draft_depth=0", "topk:draft_depth=3")
    ended = psd(*arguments[:1], *arguments[3:], "--model", str(model_path), *ALIKE)
    assert ended.returncode == 0, ended.stderr
    assert answers(output)
    for key, reply in answers(output).items():
        other = answers(run)[key]
        assert {**reply, "cost": None} == {**other, "cost": None}
        # How many drafts a forward carries depends on who shares it: only the tokens are equal.
        assert reply["cost"]["tokens"] == other["cost"]["tokens"]
    assert results(output)["settings"]["batch"] == 2
    assert results(run)["settings"]["server"]["block_length"] == results(run)["cells"][0]["settings"]["block_length"]


def test_code_is_run_only_if_that_is_allowed(server: ServerProcess, tmp_path: Path) -> None:
    task = tmp_path / "code.jsonl"
    record = {"prompt": "def f():\n", "test": "def check(f):\n    pass", "entry_point": "f"}
    task.write_text(json.dumps(record) + "\n")
    refused = psd(*flags(server.url, task, tmp_path / "out", "greedy"))
    assert refused.returncode == 2
    assert "1 of 1 problems are left out" in refused.stderr
    assert "--allow-code-execution" in refused.stderr
    allowed = psd(*flags(server.url, task, tmp_path / "out", "threshold"), "--allow-code-execution")
    assert allowed.returncode == 0, allowed.stderr
    (note,) = results(tmp_path / "out")["notes"]
    assert "code is run with these limits: 5 s" in note


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--baseline", "none"], "--baseline must be one of 'PSD(greedy), exact, D = 3'; got 'none'"),
        (["--system", "Be brief."], "--system needs --form chat"),
        (["--url", "localhost"], "--url must be like http://"),
        (["--extract", "("], "must be a regular expression"),
        (["--problems", "0"], "must be between 1 and"),
        (["--task", "no-such-file"], "neither a file nor one of builtin"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], words: str, task: Path, tmp_path: Path) -> None:
    ended = psd(*flags("http://127.0.0.1:9", task, tmp_path / "out", "greedy"), *arguments)
    assert ended.returncode in (1, 2)
    assert words in ended.stderr


def test_a_server_that_is_full_is_asked_again(random_model_path: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.jsonl"
    task.write_text("".join(json.dumps({"prompt": f"say {n}", "answer": str(n)}) + "\n" for n in range(12)))
    with ServerProcess(random_model_path, tmp_path, ["--max-num-seqs", "1", "--max-waiting", "1"]) as server:
        command = flags(server.url, task, tmp_path / "out", "greedy:draft_depth=0")
        ended = psd(*command, "--concurrency", "8")
        num_refused = server.metric('psd_request_errors_total{code="queue_full"}')
    assert ended.returncode == 0, ended.stderr
    answered = (tmp_path / "out" / "journal.jsonl").read_text().count('{"answer"')
    assert answered == 12
    assert num_refused > 0, "it was never full: the test asks too little"
