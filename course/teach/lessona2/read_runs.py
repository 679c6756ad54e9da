"""trace_reads: the program of walk_reads by the wall clock, on a device with a clock of its own, as a trace."""

from __future__ import annotations

from datetime import datetime, timezone
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor

from roseinfer.overlap import Launched, OwnClock
from roseinfer.profiling import Trace
from roseinfer.profiling.traces.trace import METADATA_KEY

from .events import KERNEL, OP, SPAN

HOST_THREAD, STREAM = 1, 7
EACH, END = "roseinfer.read_after_each", "roseinfer.read_at_the_end"
Times = tuple[float, float]
WIDTH = 32  # of the matrices, which are small: the times are the clock's


def trace_reads(num_ops: int = 12, host_ms: float = 2, device_ms: float = 3) -> Trace:
    """Run two programs of `num_ops` matrix products: one reads each result, the other one the last.

    The host sleeps host_ms before each launch, in place of the Python that a step runs. The device is a thread, and
    takes at least device_ms for an op. In the trace both programs are spans; launches and reads are ops of the host,
    named as PyTorch names them, and the products are kernels of stream 7.
    """
    device = OwnClock(lambda num_tokens: 1e-3 * device_ms)
    device.launch(lambda: None, 0).result()  # its thread starts with its first work
    events: list[dict[str, Any]] = []
    for name in (EACH, END):
        began = perf_counter()
        launched, launches, reads = _run(device, num_ops, 1e-3 * host_ms, reads_each=name == EACH)
        ended = perf_counter()
        events.append(_event(name, SPAN, HOST_THREAD, began, ended))
        events += [_event("aten::mm", OP, HOST_THREAD, *times) for times in launches]
        events += [_event("aten::item", OP, HOST_THREAD, *times) for times in reads]
        events += [_event("gemm", KERNEL, STREAM, each.began, each.ended) for each in launched]
    known = {
        "device": f"a thread with a clock of its own ({device_ms:g} ms per op)",
        "torch": str(torch.__version__),
        "steps": 2,
        "warmup": 0,
        "recorded_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return Trace({"traceEvents": events, METADATA_KEY: known})


def _run(
    device: OwnClock, num_ops: int, host_seconds: float, reads_each: bool
) -> tuple[list[Launched[Tensor]], list[Times], list[Times]]:
    """Run the ops, and return them and the times (from, to) of the host's launches and of its waits for results."""
    x, weight = torch.ones(1, WIDTH), torch.ones(WIDTH, WIDTH) / WIDTH
    launched: list[Launched[Tensor]] = []
    launches: list[Times] = []
    reads: list[Times] = []
    for number in range(num_ops):
        began = perf_counter()
        sleep(host_seconds)
        launched.append(device.launch(lambda: x @ weight, 1))
        launches.append((began, perf_counter()))
        if reads_each or number == num_ops - 1:
            began = perf_counter()
            launched[-1].result().sum().item()
            reads.append((began, perf_counter()))
    return launched, launches, reads


def _event(name: str, cat: str, tid: int, began: float, ended: float) -> dict[str, Any]:
    """Make an event of a trace, which has its times in microseconds, from times in seconds."""
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": 1e6 * began, "dur": 1e6 * (ended - began)}
