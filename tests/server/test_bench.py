"""`psd bench` against this server and against a stand-in for somebody else's: counts, times, errors, interruption."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psd_core.errors import ConfigError
from server.bench.figures import spread
from server.bench.load import ClosedLoop, OpenLoop, arrivals
from server.bench.prompts import Prompt, random_prompts, read_prompts
from server.bench.report import to_json, to_markdown
from server.bench.run import BenchResult, BenchSettings, run_bench
from server.bench.target import Ask, Endpoint, UnreachableError
from server.cli import main
from tests.server.process import ServerProcess, wait_until
from tests.server.rival import Rival, running

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "server.cli", "bench")


def settings(url: str, **changes: Any) -> BenchSettings:
    """A small run."""
    given = BenchSettings(
        url=url,
        key=None,
        model=None,
        ask=Ask("", "completions", 5, {}, 20.0),
        loads=(ClosedLoop(2),),
        num_requests=6,
        num_warm=2,
        prompts=(),
        num_words=8,
        seed=3,
        max_connections=8,
        output=Path("unused"),
    )
    return replace(given, **changes)


def run(given: BenchSettings) -> BenchResult:
    return asyncio.run(run_bench(given, lambda load, num_done: None))


def test_our_own_server_is_measured_with_forwards_and_tokens_of_every_chunk(
    random_server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"ignore_eos": True, "psd": {"policy": "topk", "k": 2, "draft_depth": 0, "block_length": 8}}
    flags = ["--url", f"{random_server.url}/v1", "--concurrency", "1,4", "--requests", "5", "--max-tokens", "24"]
    assert main(["bench", *flags, "--extra-body", json.dumps(fields), "--output", str(tmp_path / "run")]) == 0
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["model"] == "tiny"
    for level, concurrency in zip(written["levels"], (1, 4), strict=True):
        assert level["load"] == {"loop": "closed", "concurrency": concurrency}
        assert (level["num_answered"], level["errors"]) == (5, {})
        assert level["output_tokens"]["mean"] == 24
        assert level["mean_tokens_per_forward"] == 2.0
        assert level["inter_chunk"]["count"] >= 5  # three blocks, but half a character waits for its other half
        assert level["inter_token"]["mean"] < level["inter_chunk"]["mean"]
        for sample in level["samples"]:
            assert 0 < sum(sample["gap_tokens"]) < 24
            assert 0 < sample["first_text"] <= sample["first_text"] + sum(sample["gaps"]) <= sample["total"]
        assert level["output_tokens_per_second"] == pytest.approx(24 * level["requests_per_second"])
    table = capsys.readouterr().out
    assert (tmp_path / "run.md").read_text() == table
    assert "| 4 at once | 5 of 5 | 0 |" in table
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize(("counts_chunks", "counts_tokens"), [(True, True), (False, True), (False, False)])
def test_a_plain_server_is_measured_as_far_as_it_counts(
    endpoint: Endpoint, counts_chunks: bool, counts_tokens: bool
) -> None:
    with running(Rival(counts_chunks=counts_chunks, counts_tokens=counts_tokens)) as rival:
        result = run(settings(rival.url, ask=Ask("", endpoint, 5, {}, 20.0)))
    (level,) = result.levels
    figures = level.figures
    assert result.model == "rival-1"
    assert (figures.num_answered, figures.errors) == (6, {})
    assert figures.inter_chunk is not None
    assert figures.inter_chunk.count == 6 * 4
    assert figures.tokens_per_forward is None
    assert figures.mean_tokens_per_forward is None
    notes = " ".join(figures.notes)
    assert ("does not count tokens per chunk" in notes) == (figures.inter_token is None) == (not counts_chunks)
    assert ("no usage of 6 of 6" in notes) == (figures.output_tokens_per_second is None) == (not counts_tokens)
    if counts_tokens:
        assert figures.output_tokens is not None
        assert (figures.output_tokens.mean, figures.output_tokens.count) == (5, 6)
    if counts_chunks:
        assert figures.inter_token == figures.inter_chunk
    measured = rival.bodies[-6:]
    assert len({json.dumps(body.get("prompt") or body["messages"]) for body in measured}) == 6


def test_errors_are_counted_by_kind_and_enter_no_latency() -> None:
    faults: dict[int, int | str] = {3: 429, 4: 429, 5: 500, 6: "error", 7: "lost", 8: "garbage", 9: "endless"}
    with running(Rival(counts_chunks=True, faults=faults)) as rival:  # 0 is the probe, 1 and 2 warm up
        (level,) = run(settings(rival.url, loads=(ClosedLoop(1),), num_requests=9)).levels
    assert level.figures.errors == {
        "429 too_busy": 2,
        "500 too_busy": 1,
        "error in the stream: luckless": 1,
        "connection lost: RemoteProtocolError": 1,
        "an event that is not JSON": 1,
        "a stream without an end": 1,
    }
    assert level.figures.num_answered == 2
    assert level.figures.total is not None
    assert level.figures.total.count == 2


@pytest.mark.parametrize("max_connections", [1, 8])
def test_an_open_loop_leaves_no_waiting_out(max_connections: int) -> None:
    """The server takes 40 ms for each, one after the other: whoever is due before that has waited, wherever."""
    with running(Rival(serial_seconds=0.04)) as rival:
        given = settings(rival.url, loads=(OpenLoop(200.0),), num_requests=8, max_connections=max_connections)
        (level,) = run(given).levels
    samples = sorted(level.samples, key=lambda sample: sample.due + sample.total)
    assert [sample.error for sample in samples] == [None] * 8
    for place, sample in enumerate(samples):
        assert sample.due + sample.total >= 0.04 * (place + 1)
    assert sorted(sample.due for sample in samples) == pytest.approx(arrivals(200.0, 8, 3), abs=1e-3)


def test_an_answer_that_takes_too_long_is_an_error() -> None:
    with running(Rival(serial_seconds=0.6)) as rival:
        given = settings(rival.url, ask=Ask("", "completions", 5, {}, 1.0), num_warm=0, loads=(ClosedLoop(3),))
        (level,) = run(replace(given, num_requests=3)).levels
    assert level.figures.errors["no end within 1 s"] >= 1


def test_after_ctrl_c_what_was_measured_is_written(tmp_path: Path) -> None:
    with running(Rival(serial_seconds=0.02, counts_chunks=True)) as rival:
        flags = ["--url", rival.url, "--concurrency", "2", "--requests", "100000", "--warm-up", "0", "--output", "run"]
        process = subprocess.Popen(
            [*COMMAND, *flags, "--max-tokens", "3"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            wait_until(lambda: len(rival.bodies) > 10, 60)
            process.send_signal(signal.SIGINT)
            shown, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, said
    written = json.loads((tmp_path / "run.json").read_text())
    (level,) = written["levels"]
    assert written["is_interrupted"]
    assert 5 <= level["num_answered"] == len(level["samples"]) < level["num_begun"] <= level["num_answered"] + 2
    assert "The run was interrupted" in shown


def test_without_matplotlib_everything_but_the_plot_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # importing it fails then
    with running(Rival()) as rival:
        flags = ["--concurrency", "1", "--requests", "2", "--output", str(tmp_path / "run")]
        assert main(["bench", "--url", rival.url, *flags]) == 0
    assert "no plot: it needs matplotlib" in capsys.readouterr().err
    assert {path.name for path in tmp_path.glob("run.*")} == {"run.json", "run.md"}


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--url", "localhost:8000"], 2, "--url must be like http://localhost:8000, got 'localhost:8000'"),
        (["--url", "http://127.0.0.1:1"], 1, "http://127.0.0.1:1 cannot be reached"),
        (
            ["--url", "http://localhost:99999"],
            2,
            "--url must be like http://localhost:8000, got 'http://localhost:99999'",
        ),
        (["--extra-body", "[" * 100_000], 2, "must be JSON"),
        (["--output", "/"], 2, "--output must be a file name in a folder that exists, got '/'"),
        (["--concurrency", "4,0"], 2, "must be between 1 and 10000, got '0'"),
        (["--concurrency", "1", "--rate", "1"], 2, "not allowed with"),
        (["--concurrency", "64", "--max-connections", "8"], 2, "--max-connections must be at least 64, got 8"),
        (["--extra-body", "[]"], 2, "must be a JSON object, got '[]'"),
        (["--extra-body", '{"stream": false}'], 2, "must not hold stream"),
        (["--prompts", "none.jsonl"], 2, "--prompts must be a readable file"),
        (["--output", "no/such/run"], 2, "in a folder that exists, got 'no/such/run.json'"),
    ],
)
def test_what_cannot_be_measured_is_said(
    capsys: pytest.CaptureFixture[str], flags: list[str], status: int, words: str
) -> None:
    try:
        ended = main(["bench", *flags])
    except SystemExit as error:  # argparse's own refusals
        ended = int(error.code or 0)
    shown = capsys.readouterr()
    assert (ended, shown.out) == (status, "")
    assert words in shown.err


def test_a_server_that_refuses_everything_is_no_benchmark() -> None:
    with (
        running(Rival(faults=dict.fromkeys(range(9), 401))) as rival,
        pytest.raises(UnreachableError, match="401 not now"),
    ):
        run(settings(rival.url))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("7", "line 2 must be a string or an object"),
        ('{"prompt": ""}', "line 2 must have either"),
        ('{"prompt": "a", "messages": [{}]}', "line 2 must have either"),
        ('{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens must be a positive integer, got 0"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2 has messages: they need --endpoint chat"),
    ],
)
def test_a_wrong_line_of_prompts_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(ConfigError, match=words):
        read_prompts(path, is_chat=False)


def test_prompts_come_from_a_file_with_lengths_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"one"\n\n{"prompt": "two", "max_tokens": 2}\n')
    prompts = read_prompts(path, is_chat=False)
    assert prompts == [Prompt("one"), Prompt("two", max_tokens=2)]
    with running(Rival()) as rival:
        run(settings(rival.url, prompts=tuple(prompts), num_warm=0, num_requests=4))
    assert (
        sorted((body["prompt"], body["max_tokens"]) for body in rival.bodies[1:]) == [("one", 5)] * 2 + [("two", 2)] * 2
    )


def test_the_key_is_sent_and_never_written() -> None:
    with running(Rival()) as rival:
        result = run(settings(rival.url, key="s3cret-key"))
    assert "s3cret" not in json.dumps(to_json(result)) + to_markdown(result)


def test_arrivals_are_those_of_a_poisson_process_and_the_same_for_one_seed() -> None:
    due = arrivals(50.0, 20_000, seed=4)
    gaps = [after - before for before, after in itertools.pairwise([0.0, *due])]
    assert due == arrivals(50.0, 20_000, seed=4) != arrivals(50.0, 20_000, seed=5)
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert sum(gap > 1 / 50 for gap in gaps) / len(gaps) == pytest.approx(1 / 2.718281828, rel=0.05)


def test_random_prompts_have_their_length_and_their_seed() -> None:
    first, second = random_prompts(20, 9, 1), random_prompts(20, 9, 2)
    assert first == random_prompts(20, 9, 1) != second
    assert all(prompt.text is not None and len(prompt.text.split()) == 9 for prompt in first)
    assert len({prompt.text for prompt in first}) == 20


def test_percentiles_are_interpolated() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert found is not None
    assert (found.count, found.mean, found.p50, found.p90) == (5, 3.0, 3.0, 4.6)
    assert spread([]) is None


def test_a_prompt_may_hold_what_unicode_calls_a_line_break(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a\u2028b"\n"c"\n', encoding="utf-8-sig")
    assert read_prompts(path, is_chat=False) == [Prompt("a\u2028b"), Prompt("c")]


def test_a_password_in_the_address_is_not_written() -> None:
    with running(Rival()) as rival:
        result = run(settings(rival.url.replace("http://", "http://alice:pa55word@")))
    assert "pa55word" not in json.dumps(to_json(result)) + to_markdown(result)
    assert rival.url in to_markdown(result)
