"""From the command to the first token, and what importing the engine's package costs.

    python -m benchmarks.startup --runs 5

Files are in the page cache: a run that does not count comes first.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from datetime import date

from benchmarks.decoding import cpu_name
from benchmarks.scaling import wait_listening

START_SECONDS = 120.0
IMPORTS = ("psd_core", "psd_core.request", "server.run", "psd_core.engine")


def first_token_seconds(flags: Sequence[str]) -> tuple[float, float, float]:
    """Seconds from spawning a server until it listens, is ready, and has sent its first text."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "server.cli", "serve", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        url = wait_listening(process.stdout)
        listening = time.perf_counter() - started
        while not is_ready(url):
            if time.perf_counter() - started > START_SECONDS:
                raise SystemExit(f"the server was not ready after {START_SECONDS:.0f} s")
            time.sleep(0.01)
        ready = time.perf_counter() - started
        body = {
            "model": "psd-demo",
            "prompt": "Otto has 10 photos. Tom has 7 more than Otto. How many photos does Tom have?",
            "max_tokens": 32,
            "stream": True,
        }
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
        return listening, ready, time.perf_counter() - started
    finally:
        process.terminate()
        process.communicate()


def is_ready(url: str) -> bool:
    """What /ready says."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def import_seconds(module: str) -> tuple[float, bool]:
    """(seconds that importing a module takes, Python's own start not counted; whether torch came with it)."""
    code = (
        "import sys, time; t = time.perf_counter(); import {}; print(time.perf_counter() - t, 'torch' in sys.modules)"
    )
    seconds, has_torch = subprocess.run(
        [sys.executable, "-c", code.format(module)], capture_output=True, text=True, check=True
    ).stdout.split()
    return float(seconds), has_torch == "True"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="for psd serve; last")
    given = parser.parse_args()
    print(f"Built-in model, Python {platform.python_version()}, {cpu_name()}, {date.today()}; {given.runs} runs.\n")
    print("| until | median, s | least, s | most, s |\n|---|---|---|---|")
    first_token_seconds(given.flags)
    runs = [first_token_seconds(given.flags) for _ in range(given.runs)]
    for name, found in zip(("it listens", "it is ready", "the first text"), zip(*runs, strict=True), strict=True):
        print(f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |")
    print("\n| import | median, s | brings torch |\n|---|---|---|")
    for module in IMPORTS:
        imports = [import_seconds(module) for _ in range(given.runs)]
        print(
            f"| `{module}` | {statistics.median(one for one, _ in imports):.3f} | {'yes' if imports[0][1] else 'no'} |"
        )


if __name__ == "__main__":
    main()
