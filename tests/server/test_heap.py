"""Freed memory goes back to the system, now and then."""

from __future__ import annotations

import subprocess
import sys

from server.heap import TRIM_SECONDS, HeapTrimmer

# Pieces too small to be mapped by themselves, every other one kept: only trimming gives the pages between back.
FRAGMENTS = """
import torch
from server.heap import system_trim

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

pieces = [torch.ones(16384) for _ in range(4000)]
full = resident()
kept = pieces[::2]
del pieces
before = resident()
system_trim()()
print(full, before, resident(), sum(piece[0].item() for piece in kept))
"""


def test_the_heap_is_trimmed_once_in_a_while() -> None:
    now, trims = [0.0], []
    heap = HeapTrimmer(lambda: now[0], lambda: trims.append(now[0]))
    for second in range(int(3 * TRIM_SECONDS)):
        now[0] = second + 0.5
        heap.pass_by()
    assert trims == [TRIM_SECONDS + 0.5, 2 * TRIM_SECONDS + 0.5]


def test_trimming_gives_back_what_lies_between_pieces_in_use() -> None:
    result = subprocess.run([sys.executable, "-c", FRAGMENTS], capture_output=True, text=True, check=True, timeout=60)
    full, before, after, kept = map(float, result.stdout.split())
    assert kept == 2000, "what is in use stays as it was"
    assert full - before < 20e6, "freed pieces stay with the process"
    assert before - after > 80e6
