"""phase_shares: where one decode step spends its time, by labelled phase and batch size, beside its floor."""

from __future__ import annotations

from collections.abc import Sequence as List
from statistics import mean, median
from time import perf_counter

from roseinfer.display.table import Table
from roseinfer.generate import begin, decode_step
from roseinfer.models import Model
from roseinfer.profiling import Trace, capture, decode_floor, measure_machine
from roseinfer.profiling.phases import PHASES, device_phases, host_phases
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .progress_bar import progress_bar

LABELLED = [f"{phase} ms" for phase in PHASES]
STEP = "roseinfer.decode_step_sessions.total"
INDEX_CALLS = ("aten::index", "aten::index_put_")
LIVE = [*LABELLED, "unlabelled ms", "step ms", "forward share", "tok/s", "floor ms", "of floor", "bound by"]


def phase_shares(
    stage_class: type[Stage], model: Model, batch_sizes: List[int], *, prompt_len: int = 16, steps: int = 5
) -> Table:
    """The three phases of a dense stage's decode step, in ms a step, for each batch size.

    batch_sizes: how many equally long sequences, each with a prompt of prompt_len tokens. steps: decode steps that
    are timed without the profiler (tok/s, by the median), and as many again under it (everything in ms but the floor).

    A row of side "host" has wall time: the step is the whole of it, sampling included, unlabelled what no label
    covers. On a GPU a row of side "device" follows with the time that kernels and memory copies ran, by label. It is
    not in text/plain. forward share is of the three labels, as in post 001.
    """
    import pandas as pd

    rows = []
    with progress_bar("batch sizes", total=len(batch_sizes)) as done:
        for size in batch_sizes:
            rows += _measure(stage_class, model, size, prompt_len, steps)
            done()
    frame = pd.DataFrame(rows, columns=["batch", *INDEX_CALLS, "side", *LIVE])
    frame = frame.astype(dict.fromkeys(INDEX_CALLS, "Int64"))  # none in a device's row
    machine = measure_machine(model.device, model.dtype)
    shares = ["forward share", "of floor"]
    on_host = frame["side"] == "host"
    return Table(
        frame,
        exact=["batch", *INDEX_CALLS],
        live=LIVE if on_host.all() else ["side", *LIVE],
        title=f"{stage_class.name}: one decode step by phase",
        note=f"{machine.name}; ms: means of {steps} profiled steps, the profiler's own cost included; tok/s and of "
        f"floor: median of {steps} steps without it",
        formats={**dict.fromkeys(shares, "{:.1%}"), "tok/s": "{:,.1f}"},
        bars=["forward share"],
        exact_rows=on_host,
    )


def _measure(
    stage_class: type[Stage], model: Model, batch_size: int, prompt_len: int, steps: int
) -> list[dict[str, object]]:
    """One row for the host, and one for the device where there is one."""
    max_tokens = 2 * steps + 4  # one from the prefill, one warm-up step before either measurement, one in capture
    stage = stage_class(model, num_blocks=batch_size * -(-(prompt_len + max_tokens) // 64), max_num_seqs=batch_size)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    seqs = begin(stage, [[1 + i % 7] * prompt_len for i in range(batch_size)], params)
    decode_step(stage, seqs)
    context_lens = [len(seq) + steps // 2 for seq in seqs]
    seconds = median(_seconds(stage, seqs) for _ in range(steps))
    trace = capture(lambda: decode_step(stage, seqs), steps=steps, warmup=1)

    machine = measure_machine(model.device, model.dtype)
    floor = decode_floor(model.config, context_lens, model.dtype, machine)
    calls = trace.op_counts(STEP)
    host = {"batch": batch_size, "side": "host", **{op: calls[op] for op in INDEX_CALLS}, **host_ms(trace)}
    host |= {"tok/s": batch_size / seconds, "floor ms": 1e3 * floor.seconds, "of floor": floor.seconds / seconds}
    host["bound by"] = floor.bound
    if model.device.type != "cuda":
        return [host]
    return [host, {"batch": batch_size, "side": "device", **device_ms(trace)}]


def _seconds(stage: Stage, seqs: list[Sequence]) -> float:
    start = perf_counter()
    decode_step(stage, seqs)  # sampling reads the tokens back, so a GPU has finished here
    return perf_counter() - start


def host_ms(trace: Trace) -> dict[str, float]:
    """Wall time of the labels, of the whole step, and of what no label covers, in ms a step, and the share."""
    return _per_step(host_phases(trace))


def device_ms(trace: Trace) -> dict[str, float]:
    """As host_ms, in time that kernels and memory copies ran on a GPU. They belong to the label that launched them."""
    return _per_step(device_phases(trace))


def _per_step(phases: dict[str, list[float]]) -> dict[str, float]:
    """Means over the profiled steps."""
    ms = {f"{phase} ms": mean(samples) for phase, samples in phases.items()}
    known = sum(ms[column] for column in LABELLED)
    return ms | {"unlabelled ms": ms["step ms"] - known, "forward share": ms["forward ms"] / known}
