"""Writes examples.jsonl: 50 held-out prompts of all tasks with their checkable answers.

python -m demo_model.examples
"""

from __future__ import annotations

import json
from pathlib import Path

from demo_model.tasks import problems


def main() -> None:
    lines = [
        json.dumps({"task": problem.task, "prompt": problem.prompt, "answer": problem.answer}, ensure_ascii=False)
        for problem in problems("held-out", 50, 50)
    ]
    Path(__file__).with_name("examples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
