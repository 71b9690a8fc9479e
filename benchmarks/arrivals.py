"""What open streams feel of long prompts that arrive: the time between chunks, with and without a new prompt a second.

    python -m benchmarks.arrivals --seconds 20 --max-refresh-tokens 256 65536
    python -m benchmarks.arrivals --attention full --cache dual

Starts a server of its own on a random model of the built-in one's size with 4096 positions, since the built-in one has
512. Streams are kept open all the time; quiet and busy stretches take turns. A gap is the time between two forwards
that a stream took part in, as the client sees it (`diffusing` sends the canvas after every one).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import httpx

from benchmarks.decoding import cpu_name
from benchmarks.loading import write_checkpoint
from benchmarks.own_server import OwnServer
from psd_core.assets import demo_path
from psd_core.models.family import ConfigJson

Body = dict[str, Any]

VOCAB_SIZE = 1280  # the built-in tokenizer's
FIRST_TEXT_ID = 16  # below are special tokens
NUM_POSITIONS = 4096
WARM_UP_SECONDS = 3.0
SHAPE = {"vocab_size": VOCAB_SIZE, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "mask_token_id": 2, "eos_token_id": 1}


def config_of(attention: str) -> ConfigJson:
    """config.json of a model as large as the built-in one: SDAR's if block-causal, else LLaDA's."""
    if attention == "full":
        sizes = {"d_model": 256, "n_heads": 4, "n_kv_heads": 4, "n_layers": 6, "mlp_hidden_size": 768}
        more = {"embedding_size": VOCAB_SIZE, "max_sequence_length": NUM_POSITIONS}
        return {"architectures": ["LLaDAModelLM"], **sizes, **more, **SHAPE}
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 6}
    more = {"intermediate_size": 768, "head_dim": 64, "max_position_embeddings": NUM_POSITIONS, "block_size": 32}
    return {"architectures": ["SDARForCausalLM"], **sizes, **more, **SHAPE}


def write_model(folder: Path, attention: str) -> None:
    """Random weights beside the built-in tokenizer."""
    write_checkpoint(folder, config_of(attention))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_path() / name, folder / name)


@dataclass(slots=True)
class Seen:
    """Seconds, of the quiet stretches or of the busy ones."""

    gaps: list[float] = field(default_factory=list)  # between two forwards of a stream
    prompts: list[float] = field(default_factory=list)  # from asking with a long prompt to the whole answer


class Load:
    """Streams that never end, and prompts that arrive."""

    def __init__(self, client: httpx.AsyncClient, decoder: Body, num_prompt: int, max_tokens: int) -> None:
        self._client = client
        self._decoder = decoder
        self._num_prompt = num_prompt
        self._max_tokens = max_tokens
        self._chance = random.Random(0)
        self.seen = Seen()  # where measurements go now

    def _body(self, num_prompt: int, max_tokens: int) -> Body:
        ids = [self._chance.randrange(FIRST_TEXT_ID, VOCAB_SIZE) for _ in range(num_prompt)]
        return {
            "model": "soak",
            "prompt": ids,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "psd": self._decoder,
        }

    async def stream(self) -> None:
        """One client: the next stream begins when one ends, until cancelled."""
        while True:
            body = self._body(32, self._max_tokens) | {"stream": True, "diffusing": True}
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                response.raise_for_status()
                previous: float | None = None
                async with aclosing(_canvases(response)) as canvases:
                    async for now in canvases:
                        if previous is not None:
                            self.seen.gaps.append(now - previous)
                        previous = now

    async def ask(self) -> None:
        """One long prompt with an answer of a block."""
        seen, started = self.seen, time.perf_counter()
        response = await self._client.post("/v1/completions", json=self._body(self._num_prompt, 32))
        response.raise_for_status()
        seen.prompts.append(time.perf_counter() - started)

    async def arrive(self, seconds: float, every: float) -> None:
        """A new prompt every so often; returns when the time is over and all of them are answered."""
        asked = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            asked.append(asyncio.create_task(self.ask()))
            await asyncio.sleep(every)
        await asyncio.gather(*asked)


async def _canvases(response: httpx.Response) -> AsyncGenerator[float, None]:
    """When each forward of a stream was seen."""
    async for line in response.aiter_lines():
        if line.startswith("data: {") and "canvas" in json.loads(line.removeprefix("data: ")).get("psd", {}):
            yield time.perf_counter()


async def measure(url: str, given: argparse.Namespace, decoder: Body) -> tuple[Seen, Seen]:
    """(quiet, busy) of one server."""
    quiet, busy = Seen(), Seen()
    limits = httpx.Limits(max_connections=1000)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        load = Load(client, decoder, given.prompt_tokens, given.max_tokens)
        streams = [asyncio.create_task(load.stream()) for _ in range(given.streams)]
        try:
            await asyncio.sleep(WARM_UP_SECONDS)
            await load.ask()
            for _ in range(given.rounds):
                load.seen = quiet
                await asyncio.sleep(given.seconds / given.rounds)
                load.seen = busy
                await load.arrive(given.seconds / given.rounds, given.every)
            assert not any(stream.done() for stream in streams), "a stream ended"
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    return quiet, busy


def line(name: str, quiet: Seen, busy: Seen) -> str:
    """A line of the table, in milliseconds."""
    calm, full = (statistics.quantiles(seen.gaps, n=100) for seen in (quiet, busy))
    return (
        f"| {name} | {1e3 * calm[49]:.1f} | {1e3 * full[49]:.1f} | {1e3 * calm[98]:.1f} | {1e3 * full[98]:.1f} "
        f"| {full[98] / calm[98]:.2f} | {len(busy.prompts)} | {1e3 * statistics.median(busy.prompts):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=("block-causal", "full"), default="block-causal")
    parser.add_argument("--cache", choices=("none", "prefix", "dual", "causal"), help="absent: the server's default")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=512, help="of a stream; then the next one begins")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two prompts")
    parser.add_argument("--seconds", type=float, default=20.0, help="of quiet, and of busy time")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-refresh-tokens", type=int, nargs="+", default=[256, 65_536], help="a server for each")
    given = parser.parse_args()
    decoder: Body = {"policy": "topk", "k": 2, "draft_depth": given.depth}
    if given.cache is not None:
        decoder["cache"] = given.cache
    print(
        f"Random {given.attention} model of the built-in one's size, cache {given.cache or 'by default'}, `topk` 2, "
        f"`exact`, D = {given.depth}, {given.streams} streams, a prompt of {given.prompt_tokens} tokens every "
        f"{given.every:g} s, {given.seconds:g} s of each kind, dtype {given.dtype}, 1 thread, {cpu_name()}, "
        f"{date.today()}. Milliseconds.\n"
    )
    print(
        "| --max-refresh-tokens | gap p50 quiet | busy | p99 quiet | busy | p99 busy ÷ quiet | prompts "
        "| prompt to answer |"
        f"\n|{'---|' * 8}"
    )
    with tempfile.TemporaryDirectory(prefix="psd-arrivals-") as name:
        folder = Path(name) / "model"
        write_model(folder, given.attention)
        for room in given.max_refresh_tokens:
            flags = ["--max-refresh-tokens", str(room), "--dtype", given.dtype]
            with OwnServer(str(folder), flags) as server:
                quiet, busy = asyncio.run(measure(server.wait_ready(), given, decoder))
            print(line(str(room), quiet, busy), flush=True)


if __name__ == "__main__":
    main()
