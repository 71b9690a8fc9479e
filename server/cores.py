"""How many processor cores this process may use: those it may run on, and what its control group allows.

By itself torch takes every core for each worker, also where a container may not use them all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# OpenMP's threads wait for each other some dozen times per forward. By default they do so in a loop that keeps the core
# busy: with anything else on the machine, the thread that all wait for may be the one that is kept from it.
WAIT_POLICY: Final = "OMP_WAIT_POLICY"

CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(cpu_max: Path = CPU_MAX) -> int:
    """At least 1. A quota of one and a half cores counts as one: threads that wait for each other gain nothing."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text(encoding="utf-8").split()
        allowed = cores if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, allowed))
