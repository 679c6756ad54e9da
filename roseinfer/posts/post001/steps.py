"""Post 001 beside what was measured here: the phases of a decode step, what its labels leave out, and its calls."""

from __future__ import annotations

from statistics import mean, median

import pandas as pd

from roseinfer.profiling.phases import PHASES, STEP

from ..data import COMPUTED, Source, fact_text, post_facts, post_table, source_of
from ..report.content import Fact, Grid, Section, Time, judge
from .measure import Batch, Measurements, by_batch, labels_ms, unlabelled_ms

LABELS = {"gather": "gather_batch_kv", "forward": "model_forward", "append": "write_decode_kv"}
COLUMNS = {"gather": "gather_ms", "forward": "forward_ms", "append": "write_ms"}
FROM_ITS_TABLES = Source(COMPUTED, "the batch over its tokens a second, and its three labels added up")


def phases(m: Measurements) -> Section:
    """The post's table of three labelled phases."""
    facts, shares = post_facts("001"), by_batch("phases")["forward_share"]
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
            "tokens, as many as the post's example of a gather has cached. With which lengths it measured, the post "
            f"does not say; its prompts are {fact_text(facts, 'prompts')}. Times are medians of "
            f"{len(m.batches[0].labelled[STEP])} steps, and the share is of the three labels. The rows of all "
            f"steps are sums, slow steps included. {side}",
            "The floor of `model_forward` is that of a whole step: the weights it needs and all cached keys and values "
            f"read once, or its arithmetic where that takes longer. What bounds it here: {bounds}. The machine's rates "
            "are measured for about a second in this run: had it other work just then, they come out low, and the "
            "floor too high.",
        ],
        times=[time for batch in m.batches for time in _phase_times(batch)],
        grids=[
            Grid("The labels", ["post", "here"], [[LABELS[phase], name] for phase, name in PHASES.items()]),
            Grid("Kernels that the post's profiler names", ["batch", "kernels"], list(facts["kernels"].items())),
            *_kernels(m),
        ],
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


def _kernels(m: Measurements) -> list[Grid]:
    """None without a GPU."""
    rows = [(b.size, kernel, f"{share:.1%}") for b in m.batches for kernel, share in b.profile.kernels.items()]
    title = "Kernels with the largest shares of the device's time here"
    return [Grid(title, ["batch", "kernel", "share"], rows)] if rows else []


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
            "Nor may its second: the post takes `aten::cat` for the filling of its cache. Its public repository reads "
            "`key_cache`, which a DynamicCache has in versions of transformers where filling an empty one starts no "
            "cat. From this we infer that its cats are the model's own, inside `model_forward`. Here they are; their "
            "times are from the profiled capture.",
        ],
        facts=[fact for batch in m.batches for fact in _writes(batch, m.sizes.shape.num_layers)],
        times=[*(time for batch in m.batches for time in _residual_times(batch)), *_cat_times(m.batches[-1])],
        grids=[Grid.of("The post's estimate, ms a step", estimate)],
        samples={f"batch {batch.size}": {"step_seconds": batch.step_seconds} for batch in m.batches},
    )


def _what_the_post_subtracts() -> list[str]:
    facts, left = post_facts("001"), _post_step_ms() - _post_labelled_ms()
    layers, printed = facts["num_layers"], _post_printed()[-1]
    few, many = left.index.min(), left.index.max()
    copies = 2 * layers * many
    write_us = 1e3 * by_batch("phases").loc[many, "write_ms"] / copies
    growth_us = 1e3 * (left[many] - left[few]) / (2 * layers * (many - few))
    return [
        f"By its tokens a second, a step of the post at batch {many} takes {printed} ms longer than its three "
        "labels. The post calls that the price of a paged cache behind an interface for dense ones.",
        f"But a label there is {fact_text(facts, 'label_time')}, and the step is wall time. The write of {many} "
        f"sequences starts {layers} layers x {many} x 2 = {copies} small copies, as its repository shows. Its label is "
        f"{write_us:.2f} us for each, and no Python program starts a copy in so short a time. What the host spends to "
        "start them is part of the step and of no label. "
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


def _post_printed() -> tuple[float, float, float]:
    """A step at the largest batch, its labels, and the difference, in ms as the post prints them."""
    step = post_table("001", "step_time").set_index("engine").loc["mini-infer"]
    return (
        step["ms_per_step"],
        step["labelled_ms"],
        post_table("001", "residual").set_index("source").loc["total", "ms_low"],
    )


def _residual_times(batch: Batch) -> list[Time]:
    at, step, labelled = f"batch {batch.size}", _post_step_ms(), _post_labelled_ms()[batch.size]
    posted, source = (step[batch.size], labelled, step[batch.size] - labelled), FROM_ITS_TABLES
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
    facts = post_facts("001")
    each, layers, seen = facts["write"]["copies_per_layer_and_sequence"], facts["num_layers"], source_of(facts, "write")
    copies, puts = each * layers * batch.size, 2 * num_layers
    counted = Source(COMPUTED, f"{layers} layers x sequences x {each}, as {seen}")
    why = f"one index_put_ for K and one for V in each of {num_layers} layers, whatever the batch, and no copy"
    return [
        judge(f"copy_ in {at}", copies, calls["aten::copy_"], rule=0, why=why, source=counted),
        judge(
            f"index_put_ in {at}",
            facts["write"]["index_put_per_layer"] * layers,
            calls["aten::index_put_"],
            rule=puts,
            why=why,
            source=seen,
        ),
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
            "indexing, a call for K (which the post shows) and one for V in each layer, and its time hardly grows with "
            "the batch.",
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
                [[b.size, ours * b.size * m.prompt_len, b.profile.calls["gather"]["aten::index"]] for b in m.batches],
            )
        ],
    )


def _indexing_calls(batch: Batch, theirs: int, ours: int) -> Fact:
    what = f"calls that index the cache in gather_batch_kv, batch {batch.size}"
    calls, why = batch.profile.calls["gather"]["aten::index"], f"two a layer: {ours} layers here, {theirs} in the post"
    source = Source(COMPUTED, f"{theirs} layers, K and V; the post shows the call for K, its public repository both")
    return judge(what, 2 * theirs, calls, rule=2 * ours, why=why, source=source)
