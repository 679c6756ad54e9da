"""Profile a few steps and hand back a Trace."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from roseinfer.arguments import require_count
from roseinfer.hardware import device_name

from .chrome import read_chrome_trace
from .trace import DEVICE_WORK, METADATA_KEY, Trace

# Kineto writes "USDT: ... profiler_start" to stderr with a date in it, which would land in recorded
# notebooks. Levels below 6 still print it; Kineto reads this when the process's first profiler starts.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def capture(run_step: Callable[[], object], *, steps: int = 3, warmup: int = 2, record_shapes: bool = False) -> Trace:
    """Profile `steps` calls of `run_step`, after one unprofiled call and `warmup` profiled ones, thrown away.

    So `run_step` runs 1 + warmup + steps times. On a CUDA machine the device is synchronised after each step,
    so that a step's kernels lie inside its ProfilerStep. With record_shapes the trace's args hold the ops'
    input shapes.

    An error in `run_step` propagates, and the profiler is stopped. Raises ValueError for steps < 1, warmup < 0.
    """
    require_count("steps", steps, at_least=1)
    require_count("warmup", warmup, at_least=0)
    plan = schedule(wait=1, warmup=warmup, active=steps, repeat=1)
    data = record(run_step, 1 + warmup + steps, schedule=plan, record_shapes=record_shapes)
    on_gpu = any(event.get("cat") in DEVICE_WORK for event in data["traceEvents"])
    data[METADATA_KEY] = {
        "device": device_name("cuda" if on_gpu else "cpu"),
        "torch": str(torch.__version__),
        "steps": steps,
        "warmup": warmup,
        "recorded_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return Trace(data)


def record(run_step: Callable[[], object], calls: int, **options: Any) -> dict[str, Any]:
    """Record the Chrome trace of `calls` calls of `run_step` under torch.profiler with `options`."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        # acc_events: there is one cycle, but torch 2.11 warns of a next one unless told so.
        with profile(activities=activities, acc_events=True, **options) as profiler:
            for _ in range(calls):
                run_step()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                profiler.step()
        profiler.export_chrome_trace(str(path))
        return read_chrome_trace(path)
