"""phase_shares: where one decode step spends its time, by labelled phase and batch size, beside its floor."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from roseinfer.bench.contenders import StageContender
from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied, capture, decode_floor, measure_machine
from roseinfer.profiling.clock import seconds_of
from roseinfer.profiling.spans import listening
from roseinfer.profiling.step_bound import products_seconds, step_bound
from roseinfer.profiling.traces.phases import DECODE, PHASES, device_phases, host_phases, phase_times
from roseinfer.stage import Stage

from ..measure.progress_bar import progress_bar

LABELLED = [f"{phase} ms" for phase in PHASES]
INDEX_CALLS = ("aten::index", "aten::index_put_")
LIVE = [*LABELLED, "unlabelled ms", "step ms", "forward share", "tok/s", "floor ms", "of floor", "bound by"]


def phase_shares(
    stage_class: type[Stage], model: Model, batch_sizes: Sequence[int], *, prompt_len: int = 16, steps: int = 5
) -> Table:
    """Time the three phases of a dense stage's decode step, in ms a step, for each batch size.

    batch_sizes: how many equally long sequences, each with a prompt of prompt_len tokens. steps: how many decode steps
    are timed by the clock; as many again run under the profiler, for the counts and the times of a device.

    A row of side "host" has wall time, without the profiler: step is the whole step, sampling included, and unlabelled
    is what no label covers. On a GPU a row of side "device" follows: the time in which kernels and memory copies ran,
    by label. It is left out of text/plain. forward share is the forward's share of the three labels, as in post 001.
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
        note=f"{machine.name}; ms: means of {steps} steps; tok/s and of floor: by their median"
        + ("" if on_host.all() else f"; device: {steps} profiled steps"),
        formats={**dict.fromkeys(shares, "{:.1%}"), "tok/s": "{:,.1f}"},
        bars=["forward share"],
        folded=[*INDEX_CALLS, "floor ms", "bound by"],
        exact_rows=on_host,
    )


def _measure(
    stage_class: type[Stage], model: Model, batch_size: int, prompt_len: int, steps: int
) -> list[dict[str, object]]:
    """Measure one batch size: a row for the host, and one for the device if it is a GPU."""
    prompts = [[1 + i % 7] * prompt_len for i in range(batch_size)]
    max_tokens = 2 * steps + 5  # the prefill's, a warm-up step before either measurement, one in capture, the last
    stage, seqs = StageContender(stage_class, model, prompts, max_tokens).at_step(1)
    context_lens = [len(seq) + steps // 2 for seq in seqs]
    heard = phase_times()
    with listening(heard):
        # Sampling reads the tokens back, so a GPU has finished at the end of a step.
        seconds = [seconds_of(lambda: decode_step(stage, seqs)) for _ in range(steps)]
    trace = capture(lambda: decode_step(stage, seqs), steps=steps, warmup=1)

    machine = measure_machine(model.device, model.dtype)
    floor = decode_floor(model.config, context_lens, model.dtype, machine)
    calls, step = trace.op_counts(DECODE), median(seconds)
    host = {"batch": batch_size, "side": "host", **{op: calls[op] for op in INDEX_CALLS}}
    host |= per_step(host_phases(heard.kept, seconds))
    host |= {"tok/s": batch_size / step, "floor ms": 1e3 * floor.seconds, "of floor": floor.seconds / step}
    own = bytes_copied(lambda: stage.decode(seqs))
    products = products_seconds(model, batch_size, stage.model)
    host["bound by"] = step_bound(floor, machine, step, products, 2 * own.copied + own.filled)
    if model.device.type != "cuda":
        return [host]
    return [host, {"batch": batch_size, "side": "device", **per_step(device_phases(trace))}]


def per_step(phases: dict[str, list[float]]) -> dict[str, float]:
    """Average each phase over the steps; add what no label covers, and the forward's share of the labelled time."""
    ms = {f"{phase} ms": mean(samples) for phase, samples in phases.items()}
    known = sum(ms[column] for column in LABELLED)
    return ms | {"unlabelled ms": ms["step ms"] - known, "forward share": ms["forward ms"] / known}
