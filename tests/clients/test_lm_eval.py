"""lm-eval, with tasks of its own: generation, and log-likelihoods over echoed prompts.

The tokenizer is the server's: lm-eval finds /tokenizer_info and /tokenize by itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.conftest import Runner
from tests.server.process import ServerProcess
from tests.server.reciter import ASK_LANGUAGES, LANGUAGES

COMMON = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
doc_to_text: "{{{{question}}}}"
metadata: {{version: 1}}
"""
GENERATE = """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n", "a", "b", "c", "Q:"], max_gen_toks: 160, do_sample: false, temperature: 0.0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSE = """
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def write_task(folder: Path, name: str, kind: str, documents: list[dict[str, object]]) -> None:
    """A task over some documents, as lm-eval includes it."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / f"{name}.yaml").write_text(COMMON.format(name=name, data=data) + kind)


def evaluate(run_client: Runner, folder: Path, url: str, name: str, *options: str, api: str = "completions") -> str:
    """Run one task; the folder then holds results and samples."""
    model = "local-completions" if api == "completions" else "local-chat-completions"
    arguments = f"model=tiny,base_url={url}/v1/{api},num_concurrent=2,max_retries=1,eos_string=<|endoftext|>"
    return run_client(
        "lm-eval", "lm_eval", "run", "--model", model, "--model_args", arguments, "--tasks", name,
        "--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples", *options,
        HF_HOME=str(folder / "hub"), HF_DATASETS_CACHE=str(folder / "cache"),
    )  # fmt: skip  # one option and its value per place


def read(folder: Path, pattern: str) -> str:
    """The one file of that name in the output."""
    (path,) = (folder / "out").rglob(pattern)
    return path.read_text()


def test_lm_eval_generates_what_the_server_answers(run_client: Runner, server: ServerProcess, tmp_path: Path) -> None:
    questions = ["Sort these numbers: 7, 9, 4.", "What is 7 + 5?"]
    until: dict[str, object] = {"max_tokens": 160, "stop": ["\n\n", "a", "b", "c", "Q:"]}
    answers = [server.complete(prompt=question, **until).json()["choices"][0]["text"] for question in questions]
    documents: list[dict[str, object]] = [
        {"question": question, "answer": answer} for question, answer in zip(questions, answers, strict=True)
    ]
    write_task(tmp_path, "recite", GENERATE, documents)
    evaluate(run_client, tmp_path, server.url, "recite")
    assert json.loads(read(tmp_path, "results_*.json"))["results"]["recite"]["exact_match,none"] == 1.0


def test_lm_eval_chats(run_client: Runner, reciter: ServerProcess, tmp_path: Path) -> None:
    kind = GENERATE.replace('["\\n\\n", "a", "b", "c", "Q:"]', '["\\n\\n"]')
    write_task(tmp_path, "greet", kind, [{"question": ASK_LANGUAGES[0]["content"], "answer": LANGUAGES}])
    evaluate(run_client, tmp_path, reciter.url, "greet", "--apply_chat_template", api="chat/completions")
    assert json.loads(read(tmp_path, "results_*.json"))["results"]["greet"]["exact_match,none"] == 1.0


def test_lm_eval_scores_choices(run_client: Runner, server: ServerProcess, tmp_path: Path) -> None:
    documents: list[dict[str, object]] = [
        {"question": "What is 7 + 5?", "choices": ["12", "the"], "label": 0},
        {"question": "Sort these numbers: 2, 1.", "choices": ["1, 2", "zzzzzz"], "label": 0},
    ]
    write_task(tmp_path, "choose", CHOOSE, documents)
    evaluate(run_client, tmp_path, server.url, "choose")
    for line in read(tmp_path, "samples_choose_*.jsonl").splitlines():
        sample = json.loads(line)
        for (context, continuation), response in zip(
            (request.values() for request in sample["arguments"].values()), sample["resps"], strict=True
        ):
            total, is_greedy = response[0]
            assert float(total) == pytest.approx(log_likelihood(server, context, continuation), abs=1e-3)
            assert is_greedy in ("True", "False", True, False)


def log_likelihood(server: ServerProcess, context: str, continuation: str) -> float:
    """Of the continuation's tokens, asked for directly."""
    ids = [
        server.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
        for text in (context, context + continuation)
    ]
    answer = server.complete(prompt=ids[1], echo=True, logprobs=1, max_tokens=1, temperature=0).json()
    logprobs: list[float] = answer["choices"][0]["logprobs"]["token_logprobs"]
    return sum(logprobs[len(ids[0]) : -1])
