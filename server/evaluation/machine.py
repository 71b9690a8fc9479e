"""What a run was measured on, in words."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from server.body import JsonObject
from server.version import VERSION


def describe_machine() -> JsonObject:
    """Processor, cores, versions and the date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "psd": VERSION,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    """As the system names it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
