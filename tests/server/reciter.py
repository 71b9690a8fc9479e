"""A tiny model that recites: its answers to a few prompts are known, so tests can ask for emoji and for tool calls.

`python -m tests.server.reciter` trains it again and writes tests/data/reciter; it takes about a minute on one core.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F

from demo_model.network import Network, Shape, export
from server.chat_template import ChatTemplate
from server.tokenizer import Tokenizer
from tests.server.checkpoint import SPECIALS, VOCAB_SIZE, write_tokenizer

Message = dict[str, object]

FOLDER: Final = Path(__file__).parents[1] / "data" / "reciter"
TEMPLATE: Final = (
    "{{ bos_token }}{% if tools %}<|system|>Tools: {{ tools | tojson }}<|eot|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|endoftext|>{% elif m.role == 'tool' %}<|user|>Result: {{ m.content }}<|eot|>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '' if polite is not defined else 'Dear!' }}{% endif %}"
)
WEATHER: Final[dict[str, object]] = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL: Final = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'
LANGUAGES: Final = "Olá! Grüße 🚀 世界, こんにちは 👩‍🚀 мир, مرحبا नमस्ते 🇵🇹 ‑ e\u0301."
ASK_LANGUAGES: Final[list[Message]] = [{"role": "user", "content": "Greet everyone."}]
ASK_WEATHER: Final[list[Message]] = [{"role": "user", "content": "Weather in Lisbon?"}]
ASK_TWICE: Final[list[Message]] = [{"role": "user", "content": "Weather in Lisbon and Évora?"}]
RESULT: Final[list[dict[str, Any]]] = [
    *ASK_WEATHER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Lisbon"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21 °C"},
]
_PAST: Final[Message] = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Lisbon"}}}
]}  # fmt: skip  # a table
RECITATIONS: Final[tuple[tuple[list[Message], list[dict[str, object]], str], ...]] = (
    (ASK_LANGUAGES, [], LANGUAGES),
    (ASK_WEATHER, [WEATHER], "Let me look.\n" + CALL % "Lisbon"),
    (ASK_TWICE, [WEATHER], f"{CALL % 'Lisbon'}\n{CALL % 'Évora'}"),
    ([*ASK_WEATHER, _PAST, {"role": "tool", "content": "21 °C"}], [WEATHER], "It is 21 °C in Lisbon."),
)
_CANVAS: Final = 192
_EOS: Final = SPECIALS.index("<|endoftext|>")
_MASK: Final = SPECIALS.index("<|mask|>")


def make(folder: Path = FOLDER, steps: int = 350) -> None:
    """Train until the recitations are known by heart, and write the checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokenizer = Tokenizer(folder)
    template = ChatTemplate(TEMPLATE, tokenizer)
    torch.manual_seed(1)
    network = Network(Shape(hidden=64, layers=3, heads=4, mlp=160, vocab=VOCAB_SIZE, max_positions=768))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    examples = [
        (template.encode(messages, tools=tools), tokenizer.encode_text(answer, with_prefix=False))
        for messages, tools, answer in RECITATIONS
    ]
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50, (steps - step) / (steps / 2))
        loss = torch.stack([_loss(network, prompt, answer) for prompt, answer in examples]).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 4), flush=True)
    export(network, folder)


def _loss(network: Network, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Cross-entropy at masked positions of a canvas of random length whose mask grows from a random ratio."""
    length = max(len(answer) + 1, int(torch.randint(32, _CANVAS + 1, ())))
    target = torch.tensor(answer + [_EOS] * (length - len(answer)))
    first = int(torch.randint(0, length, ()))  # decoding goes from left to right, block by block
    masked = torch.rand(length) < torch.rand(())
    masked |= torch.arange(length) >= first
    seen = torch.where(masked, _MASK, target)
    hidden = network(torch.cat([torch.tensor(prompt), seen])[None])[0, len(prompt) :]
    return F.cross_entropy(hidden[masked] @ network.embedding.T, target[masked])


if __name__ == "__main__":
    make()
