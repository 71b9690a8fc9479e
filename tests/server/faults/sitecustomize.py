"""Faults for a real worker process: Python imports this file at start where its folder is in PYTHONPATH.

A forward with a request whose prompt begins with one of these ids goes wrong in the way named. Everything else is
the server's own code.

It also says on standard error what is unpickled, if anything is.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RAISES, HANGS, ABORTS, EXCEEDS_MEMORY, TAKES_LONG = 260, 261, 262, 263, 264
LONG_SECONDS = 0.5


def _go_wrong(first_ids: list[int]) -> None:
    if RAISES in first_ids:
        raise RuntimeError("CUDA error: device-side assert triggered")
    if HANGS in first_ids:
        time.sleep(3600)
    if TAKES_LONG in first_ids:
        time.sleep(LONG_SECONDS)
    if ABORTS in first_ids:
        os.kill(os.getpid(), signal.SIGABRT)
    if EXCEEDS_MEMORY in first_ids and len(first_ids) > 1:
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _patch(module: ModuleType) -> None:
    run = module.Runner._run

    def faulty_run(self: Any, plan: Any) -> Any:
        _go_wrong([span.request.prompt_ids[0] for span in plan.spans])
        return run(self, plan)

    module.Runner._run = faulty_run


class _PatchingFinder:
    """Patches `psd_core.runner` once it is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "psd_core.runner":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            _patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]  # the point of it
        return spec


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        print("unpickled", *arguments, file=sys.stderr, flush=True)


sys.addaudithook(_watch)
sys.meta_path.insert(0, _PatchingFinder())
