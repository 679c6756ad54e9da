"""Post 001 beside what was measured here: the phases of a decode step, what its labels leave out, and its calls."""

from __future__ import annotations

from statistics import median

import pandas as pd

from roseinfer.profiling.phases import PHASES, STEP

from ..data import post_facts, post_table
from ..report.content import Fact, Grid, Section, Time, judge
from .measure import Batch, Measurements, by_batch, labels_ms, unlabelled_ms

LABELS = {"gather": "gather_batch_kv", "forward": "model_forward", "append": "write_decode_kv"}
COLUMNS = {"gather": "gather_ms", "forward": "forward_ms", "append": "write_ms"}


def phases(m: Measurements) -> Section:
    """The post's table of three labelled phases."""
    shares = by_batch("phases")["forward_share"]
    bounds = ", ".join(f"{batch.floor.bound} at batch {batch.size}" for batch in m.batches)
    side = (
        "As in the post, these are times of the device: how long the kernels and copies of a label ran."
        if m.has_device_times
        else "The post's times are a GPU's. Here no GPU was profiled: these are wall times of the host."
    )
    return Section(
        "Three labelled phases of a decode step",
        text=[
            "The post labels three phases of a decode step and lets the profiler add up each: `model_forward` takes "
            f"{shares.min():.1%} to {shares.max():.1%} of the three.",
            f"Here `{m.stage}` runs `{m.sizes.config.model}` in {m.sizes.config.dtype}. Prompts have {m.prompt_len} "
            "tokens, as many as the post's example of a gather has cached; with which lengths it measured, the post "
            f"does not say. Times are medians of {len(m.batches[0].labelled[STEP])} steps, and the share is of "
            f"the three labels. {side}",
            "The floor of `model_forward` is that of a whole step: the weights it needs and all cached keys and values "
            f"read once, or its arithmetic where that takes longer. What bounds it here: {bounds}. The machine's rates "
            "are measured for about a second in this run: had it other work just then, they come out low, and the "
            "floor too high.",
        ],
        times=[time for batch in m.batches for time in _phase_times(batch)],
        grids=[Grid("The labels", ["post", "here"], [[LABELS[phase], name] for phase, name in PHASES.items()])],
        samples={f"batch {batch.size}": {"host_ms": batch.host, "device_ms": batch.device} for batch in m.batches},
    )


def _phase_times(batch: Batch) -> list[Time]:
    post, at = by_batch("phases").loc[batch.size], f"batch {batch.size}"
    here = {phase: median(batch.labelled[phase]) for phase in PHASES}
    floors = {"forward": 1e3 * batch.floor.seconds}
    times = [
        Time(f"{label}, {at}", "ms/step", post[COLUMNS[phase]], here[phase], floors.get(phase))
        for phase, label in LABELS.items()
    ]
    share = 100 * here["forward"] / sum(here.values())
    return [*times, Time(f"share of model_forward, {at}", "%", 100 * post["forward_share"], share)]


def residual(m: Measurements) -> Section:
    """Wall time of a step less its labels, and the calls that the labels hide."""
    wait = " and, since it reads the tokens back, the wait for the device" if m.has_device_times else ""
    estimate = post_table("001", "residual")
    return Section(
        "The time without a label",
        text=[
            *_what_the_post_subtracts(),
            "For each batch, the first row is a step here without the profiler, and the host's labels are of the same "
            "steps, by the same clock. The device's labels are from a separate, profiled capture, and are subtracted "
            f"from the step as in the post. What the host's labels leave is sampling{wait}, the choice of blocks and "
            "the input tensors. The write is inside its label.",
            f"`{m.stage}` writes the new token of all sequences with one `index_put_` for K and one for V in each "
            "layer, so the number of its calls does not grow with the batch.",
            "The last table is the post's own estimate of where the time without a label goes. Its first row has a "
            "label, so it cannot be part of what the labels leave.",
        ],
        facts=[fact for batch in m.batches for fact in _writes(batch, m.sizes.shape.num_layers)],
        times=[time for batch in m.batches for time in _residual_times(batch)],
        grids=[Grid.of("The post's estimate, ms a step", estimate)],
        samples={f"batch {batch.size}": {"step_seconds": batch.step_seconds} for batch in m.batches},
    )


def _what_the_post_subtracts() -> list[str]:
    left, layers = _post_step_ms() - _post_labelled_ms(), post_facts("001")["num_layers"]
    few, many = left.index.min(), left.index.max()
    copies = 2 * layers * many
    write_us = 1e3 * by_batch("phases").loc[many, "write_ms"] / copies
    growth_us = 1e3 * (left[many] - left[few]) / (2 * layers * (many - few))
    return [
        f"By its tokens a second, a step of the post at batch {many} takes {left[many]:.1f} ms longer than its three "
        "labels. The post calls that the price of a paged cache behind an interface for dense ones.",
        f"But a label there is device time, and the step is wall time. The write of {many} sequences starts {layers} "
        f"layers x {many} x 2 = {copies} small copies. Its label is {write_us:.2f} us for each, and no Python program "
        "starts a copy in so short a time. What the host spends to start them is part of the step and of no label. "
        f"The time without a label grows with the batch by {growth_us:.1f} us for each further copy, an ordinary price "
        "for starting one. This fits, and is no proof: prefills, if the post's tokens a second include them, grow with "
        "the batch too.",
    ]


def _post_step_ms() -> pd.Series:
    """By batch size, from the post's tokens a second."""
    speed = by_batch("throughput")["tokens_per_second"]
    return 1e3 * speed.index / speed


def _post_labelled_ms() -> pd.Series:
    return by_batch("phases")[list(COLUMNS.values())].sum(axis=1)


def _residual_times(batch: Batch) -> list[Time]:
    at, step, labelled = f"batch {batch.size}", _post_step_ms()[batch.size], _post_labelled_ms()[batch.size]
    device = labels_ms(batch.device) if batch.device else None
    rest = None if device is None else batch.step_ms - device
    return [
        Time(f"step, {at}", "ms/step", round(step, 2), batch.step_ms, 1e3 * batch.floor.seconds),
        Time(f"device labels, {at}", "ms/step", round(labelled, 3), device),
        Time(f"step less device labels, {at}", "ms/step", round(step - labelled, 2), rest),
        Time(f"host labels, {at}", "ms/step", None, labels_ms(batch.host)),
        Time(f"step less host labels, {at}", "ms/step", None, unlabelled_ms(batch.host)),
    ]


def _writes(batch: Batch, num_layers: int) -> list[Fact]:
    calls, at = batch.calls["append"], f"write_decode_kv, batch {batch.size}"
    copies, puts = 2 * post_facts("001")["num_layers"] * batch.size, 2 * num_layers
    why = f"one index_put_ for K and one for V in each of {num_layers} layers, whatever the batch, and no copy"
    return [
        judge(f"copy_ in {at}", copies, calls["aten::copy_"], rule=0, why=why),
        judge(f"index_put_ in {at}", 0, calls["aten::index_put_"], rule=puts, why=why),
    ]


def gather(m: Measurements) -> Section:
    """Scalar reads before, indexing calls now."""
    facts = post_facts("001")
    example, theirs, ours = facts["python_gather"], facts["num_layers"], m.sizes.shape.num_layers
    size, tokens = example["batch_size"], example["cached_tokens"]
    reads, rule = theirs * size * tokens, "layers x sequences x tokens"
    what = f"scalar reads of the Python gather: {theirs} layers x {size} sequences x {tokens} tokens"
    return Section(
        "The gather: from scalar reads to indexing calls",
        text=[
            "The post's first gather was a Python loop over layers, sequences and tokens. The second is advanced "
            "indexing, a call for K and one for V in each layer, and its time hardly grows with the batch.",
            "The calls below are counted in a profiled step: as many at every batch size. The bytes that they copy do "
            "grow with the batch and with the length.",
        ],
        facts=[
            judge(what, example["scalar_reads"], reads, why=rule),
            *(_indexing_calls(batch, theirs, ours) for batch in m.batches),
        ],
        grids=[
            Grid(
                f"One gather here, of {m.prompt_len} cached tokens a sequence",
                ["batch", f"scalar reads of a Python loop ({rule})", "indexing calls"],
                [[b.size, ours * b.size * m.prompt_len, b.calls["gather"]["aten::index"]] for b in m.batches],
            )
        ],
    )


def _indexing_calls(batch: Batch, theirs: int, ours: int) -> Fact:
    what, calls = f"indexing calls of gather_batch_kv, batch {batch.size}", batch.calls["gather"]["aten::index"]
    return judge(what, 2 * theirs, calls, rule=2 * ours, why=f"two a layer: {ours} layers here, {theirs} in the post")
