"""Post 001 beside what was measured here: the phases of a decode step, what its labels leave out, and its calls."""

from __future__ import annotations

from statistics import mean, median

import pandas as pd

from roseinfer.profiling.traces.phases import PHASES, STEP

from ..data import COMPUTED, Source, post_facts, post_table
from ..report.content import Fact, Grid, Ruled, Time, judge, judged
from ..report.template import Values
from .measure import Batch, Measurements, by_batch, labels_ms, unlabelled_ms

LABELS = {"gather": "gather_batch_kv", "forward": "model_forward", "append": "write_decode_kv"}
COLUMNS = {"gather": "gather_ms", "forward": "forward_ms", "append": "write_ms"}
FROM_ITS_TABLES = Source(COMPUTED, "the batch over its tokens a second, and its three labels added up")


def phases(m: Measurements) -> Values:
    """Compare the post's table of three labelled phases with the phases here."""
    shares = by_batch("phases")["forward_share"]
    return {
        "least_share": f"{shares.min():.1%}",
        "most_share": f"{shares.max():.1%}",
        "stage": m.stage,
        "config": m.sizes.config,
        "prompt_len": m.prompt_len,
        "steps": len(m.batches[0].labelled[STEP]),
        "has_device_times": m.has_device_times,
        "bounds": ", ".join(f"{batch.floor.bound} at batch {batch.size}" for batch in m.batches),
        "times": [time for batch in m.batches for time in _phase_times(batch)],
        "labels": [[LABELS[phase], name] for phase, name in PHASES.items()],
        "kernels": [(b.size, kernel, f"{share:.1%}") for b in m.batches for kernel, share in b.profile.kernels.items()],
        "samples": {f"batch {batch.size}": {"host_ms": batch.host, "device_ms": batch.device} for batch in m.batches},
    }


def _phase_times(batch: Batch) -> list[Time]:
    post, at = by_batch("phases").loc[batch.size], f"batch {batch.size}"
    here = {phase: median(batch.labelled[phase]) for phase in PHASES}
    floors = {"forward": 1e3 * batch.floor.seconds}
    times = [
        Time(f"{label}, {at}", "ms/step", post[COLUMNS[phase]], here[phase], floors.get(phase))
        for phase, label in LABELS.items()
    ]
    steps = post_facts("001")["num_decode_steps"]
    every_step = mean(map(sum, zip(*(batch.labelled[phase] for phase in PHASES), strict=True)))
    times.append(Time(f"the three labels, all {steps} steps, {at}", "ms", post["total_ms"], steps * every_step))
    shares = {"forward": post["forward_share"]}
    if batch.size == by_batch("phases").index.max():
        shares |= post_facts("001")["label_shares"]
    total = sum(here.values())
    return times + [
        Time(f"share of {LABELS[phase]}, {at}", "%", 100 * share, 100 * here[phase] / total)
        for phase, share in shares.items()
    ]


def residual(m: Measurements) -> Values:
    """Compute the wall time of a step less its labels, and the calls that the labels hide."""
    return {
        "stage": m.stage,
        "many": m.batches[-1].size,
        "post": _what_the_post_subtracts(),
        "has_device_times": m.has_device_times,
        "facts": [fact for batch in m.batches for fact in _writes(batch, m.sizes.shape.num_layers)],
        "times": [*(time for batch in m.batches for time in _residual_times(batch)), *_cat_times(m.batches[-1])],
        "estimate": Grid.of(post_table("001", "residual")),
        "samples": {f"batch {batch.size}": {"step_seconds": batch.step_seconds} for batch in m.batches},
    }


def _what_the_post_subtracts() -> Values:
    """Subtract the labels from the post's largest step; if the rest is copies, say what the host needs for each."""
    facts, left = post_facts("001"), _post_step_ms() - _post_labelled_ms()
    layers, few, many = facts["num_layers"], left.index.min(), left.index.max()
    copies = 2 * layers * many
    return {
        "left": _post_printed()[-1],
        "layers": layers,
        "copies": copies,
        "write_us": f"{1e3 * by_batch('phases').loc[many, 'write_ms'] / copies:.2f}",
        "growth_us": f"{1e3 * (left[many] - left[few]) / (2 * layers * (many - few)):.1f}",
    }


def _post_step_ms() -> pd.Series:
    """Compute the milliseconds of a step by batch size, from the post's tokens a second."""
    speed = by_batch("throughput")["tokens_per_second"]
    return 1e3 * speed.index / speed


def _post_labelled_ms() -> pd.Series:
    return by_batch("phases")[list(COLUMNS.values())].sum(axis=1)


def _post_printed() -> tuple[float, float, float]:
    """Return a step at the largest batch, its labels, and the difference, in ms as the post prints them."""
    step = post_table("001", "step_time").set_index("engine").loc["mini-infer"]
    return (
        step["ms_per_step"],
        step["labelled_ms"],
        post_table("001", "residual").set_index("source").loc["total", "ms_low"],
    )


def _residual_times(batch: Batch) -> list[Time]:
    at, step, labelled = f"batch {batch.size}", _post_step_ms(), _post_labelled_ms()[batch.size]
    posted = step[batch.size], labelled, step[batch.size] - labelled
    source: Source | None = FROM_ITS_TABLES
    if batch.size == step.index.max():
        posted, source = _post_printed(), None
    device = labels_ms(batch.device) if batch.device else None
    rest = None if device is None else batch.step_ms - device
    whole, labels, left = (round(ms, 2) for ms in posted)
    return [
        Time(f"step, {at}", "ms/step", whole, batch.step_ms, 1e3 * batch.floor.seconds, source),
        Time(f"device labels, {at}", "ms/step", labels, device, source=source),
        Time(f"step less device labels, {at}", "ms/step", left, rest, source=source),
        Time(f"host labels, {at}", "ms/step", None, labels_ms(batch.host)),
        Time(f"step less host labels, {at}", "ms/step", None, unlabelled_ms(batch.host)),
    ]


def _cat_times(batch: Batch) -> list[Time]:
    facts = post_facts("001")
    cat, steps, here = facts["cat"], facts["num_decode_steps"], batch.profile.cat_ms
    return [
        Time(f"aten::cat, all {steps} steps, batch {batch.size}", "ms", cat["total_ms"], steps * mean(here)),
        Time(f"aten::cat, batch {batch.size}", "ms/step", cat["ms_per_step"], median(here)),
    ]


def _writes(batch: Batch, num_layers: int) -> list[Fact]:
    calls, at = batch.profile.calls["append"], f"write_decode_kv, batch {batch.size}"
    why = f"one index_put_ for K and one for V in each of {num_layers} layers, whatever the batch, and no copy"
    return judged(
        "001",
        {
            f"copy_ in {at}": Ruled(calls["aten::copy_"], 0, why),
            f"index_put_ in {at}": Ruled(calls["aten::index_put_"], 2 * num_layers, why),
        },
    )


def gather(m: Measurements) -> Values:
    """Count the scalar reads of the Python gather before, and the indexing calls of the gather now."""
    facts = post_facts("001")
    example, theirs, ours = facts["python_gather"], facts["num_layers"], m.sizes.shape.num_layers
    size, tokens = example["batch_size"], example["cached_tokens"]
    reads = f"scalar reads of the Python gather: {theirs} layers x {size} sequences x {tokens} tokens"
    why = f"two a layer: {ours} layers here, {theirs} in the post"
    calls = {batch.size: batch.profile.calls["gather"]["aten::index"] for batch in m.batches}
    return {
        "prompt_len": m.prompt_len,
        "facts": [
            judge(reads, example["scalar_reads"], theirs * size * tokens),
            *judged(
                "001",
                {
                    f"calls that index the cache in gather_batch_kv, batch {n}": Ruled(called, 2 * ours, why)
                    for n, called in calls.items()
                },
            ),
        ],
        "rows": [[n, ours * n * m.prompt_len, called] for n, called in calls.items()],
    }
