"""The sections of post 004's report: its summary beside ours, and the rows that each step builds."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from roseinfer.bench.contenders import BLOCK_SIZE
from roseinfer.bench.scheduler import Stat, summarize
from roseinfer.bench.scheduler.definitions import METRICS
from roseinfer.bench.table_steps import AWAY, EDGE, compare_builds
from roseinfer.models.load import shape_of

from ..data import COMPUTED, Source, post_facts, post_table
from ..report.content import Grid, Image, Section, Time, change, change_verdict, judge
from ..report.setting import Setting
from .run import AFTER, BEFORE, POST_MODEL, Measured, flat_model

POST = "004"
COUNTED = ["step", "stage", "rows built", "copies", "stacks", "table bytes"]
COLOURS = {BEFORE: "#D55E00", AFTER: "#0072B2"}  # told apart by colour-blind readers too


def summary(m: Measured) -> Section:
    """The post's two summaries beside ours: p50 and mean, before and after, with the floor."""
    facts, theirs = post_facts(POST), post_table(POST, "summary").set_index("metric")
    stats = {when: {stat.metric: stat for stat in summarize(runs)} for when, runs in m.runs.items()}
    floors = summary_floors(m)
    times = [
        Time(f"{metric}, {when}, {kind}", row["unit"], row[f"{when}_{kind}"], figure(stats[when][metric], kind),
             floors.get(metric))
        for metric, row in theirs.iterrows() for kind in ("p50", "mean") for when in (BEFORE, AFTER)
    ]  # fmt: skip
    args = m.args
    judged = [
        judge("Warmup runs", facts["warmup_runs"], args.warmup_runs, rule=args.warmup_runs, why="as asked for"),
        judge("Measured runs", facts["measured_runs"], args.repeat_runs, rule=args.repeat_runs, why="--quick"),
        judge("requests", facts["num_requests"], len(m.runs[AFTER][0].requests), rule=args.num_requests, why="asked"),
        judge("sequences in a step, at most", facts["max_batch_size"],
              max(step.batch_size for step in m.runs[AFTER][0].decode_steps), rule=args.max_batch_size, why="asked for",
              source=Source(COMPUTED, "as many requests as its --max-batch-size")),
        judge("completion tokens", facts["num_requests"] * facts["max_new_tokens"],
              m.runs[AFTER][0].completion_tokens, rule=args.num_requests * args.max_new_tokens,
              why=f"{args.max_new_tokens} tokens each were asked for", source=all_tokens(facts)),
    ]  # fmt: skip
    return Section(
        "The summary",
        text=(
            "The post ran its command before and after the change, one after the other. Here both run in turn in one "
            "process, so that a slow minute of the machine hits both alike.",
            "The floor reads every step's weights and cached tokens once and does nothing else.",
        ),
        code=m.lines(*(stage.name.split("_")[0] for stage in m.stages.values())),
        facts=judged,
        times=times,
        grids=[changes(m, stats)],
        samples={when: [[step.seconds for step in run.decode_steps] for run in runs] for when, runs in m.runs.items()},
    )


def figure(stat: Stat, kind: str) -> float:
    return stat.p50 if kind == "p50" else stat.mean


def summary_floors(m: Measured) -> dict[str, float]:
    """Of the figures that decoding alone decides, in the post's units."""
    run = m.runs[AFTER][0]
    seconds = m.floor_seconds(run)
    return {
        "Decode time": seconds,
        "Throughput(completion,decode)": run.completion_tokens / seconds,
        "TPOT": 1e3 * seconds / (m.args.max_new_tokens - 1),
    }


def changes(m: Measured, stats: dict[str, dict[str, Stat]]) -> Grid:
    """What the change did to each figure, there and here."""
    rows = []
    for metric, row in post_table(POST, "summary").set_index("metric").iterrows():
        before, after = stats[BEFORE][metric], stats[AFTER][metric]
        post, here = row["after_p50"] / row["before_p50"] - 1, change(before.values, after.values)
        spread = max(max(s.values) / min(s.values) for s in (before, after)) - 1
        verdict = change_verdict(before.values, after.values)
        rows.append((metric, f"{post:+.1%}", here, None if here is None else f"{spread:.1%}", verdict))
    return Grid(
        "p50 after the change against before it; the post's is computed from its two figures",
        ("metric", "post", "here", "spread here", "here it is"),
        rows,
    )


def all_tokens(facts: Mapping[str, Any]) -> Source:
    return Source(COMPUTED, f"its {facts['num_requests']} requests x {facts['max_new_tokens']} tokens")


def rebuilds(m: Measured) -> Section:
    """How many steps build how many rows: the post's own sizes, counted without a model, and the run that was timed."""
    facts, layers = post_facts(POST), shape_of(POST_MODEL).num_layers
    requests, steps = facts["num_requests"], facts["max_new_tokens"] - 1
    all_rows = layers * requests
    # A row changes when it is new, and whenever the cached tokens fill up a block: at 64, 128, ... of 1 to `steps`.
    edges = steps // facts["block_size"]
    after, before = m.post_rows[AFTER], m.post_rows[BEFORE]
    reckoned = Source(
        COMPUTED,
        f"{layers} layers (those of its checkpoint) x {requests} sequences, {steps} steps, "
        f"blocks of {facts['block_size']} tokens",
    )
    judged = [
        judge("rows built, before, all steps", steps * all_rows, sum(before), source=reckoned),
        judge("rows built, after, all steps", (1 + edges) * all_rows, sum(after), source=reckoned),
        judge("steps that build no row, after", steps - 1 - edges, after.count(0), source=reckoned),
        judge("rows on the step where all sequences cross an edge, after", all_rows, max(after[1:]), source=reckoned),
    ]
    ours = m.args.num_requests * m.model.config.num_layers
    own_edges = (m.work.prompt_lens[0] + len(m.rows) - 1) // BLOCK_SIZE
    judged.append(
        judge("rows built in the run that was timed, after", (1 + edges) * all_rows, sum(m.rows),
              rule=(1 + own_edges) * ours, why=sizes(m, own_edges), source=reckoned)
    )  # fmt: skip
    return Section(
        "Rows built by each step",
        text=(
            "The post says that a row is built again only when a sequence takes a new block, every "
            f"{facts['block_size']} tokens, or no longer shares its last one, which cannot happen in its command, "
            "without a prefix cache. It prints no count. What that means for its run can be reckoned: "
            f"{layers} layers x {requests} sequences are {all_rows} rows, and all sequences cross their edges on the "
            "same step, for they started together. Counted here with the post's sizes and no model, for tables depend "
            "on block ids alone; and again in the run that was timed.",
        ),
        facts=judged,
        grids=[
            histogram("The post's sizes", m.post_rows),
            histogram("The run that was timed", {BEFORE: [ours] * len(m.rows), AFTER: m.rows}),
        ],
        images=[draw_rows(m.post_rows)],
        samples={"post_rows": m.post_rows, "rows": m.rows},
    )


def sizes(m: Measured, edges: int) -> str:
    c = m.model.config
    each = f"{c.num_layers} layers x {m.args.num_requests} sequences"
    return f"{each}, edges crossed in {m.args.max_new_tokens} tokens: {edges}"


def histogram(title: str, rows: dict[str, list[int]]) -> Grid:
    """Rows built in a step -> how many steps built so many."""
    counted = {when: Counter(of_steps) for when, of_steps in rows.items()}
    values = sorted({value for of_steps in counted.values() for value in of_steps})
    return Grid(
        f"{title}: steps by the rows that they build",
        ("rows built in the step", "steps, before", "steps, after"),
        [(value, counted[BEFORE][value], counted[AFTER][value]) for value in values],
    )


def draw_rows(rows: dict[str, list[int]]) -> Image:
    """A bar a step, as high as the rows that it builds; before the change above, after it below."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots(len(rows), 1, sharex=True, sharey=True)
    for ax, (when, of_steps) in zip(axes, rows.items(), strict=True):
        ax.bar(range(1, len(of_steps) + 1), of_steps, width=1.0, color=COLOURS[when])
        ax.set_title(f"{when}: {sum(of_steps):,} rows in {len(of_steps)} steps", fontsize=9, loc="left")
        ax.set_ylabel("rows built", fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("decode step", fontsize=8)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110, metadata={"Software": None})
    said = [f"{when} {sum(n > 0 for n in of_steps)} of {len(of_steps)} steps build rows, {max(of_steps)} at most"
            for when, of_steps in rows.items()]  # fmt: skip
    return Image(png.getvalue(), f"Rows built by each decode step of the post's run: {'; '.join(said)}.")


def price(setting: Setting, m: Measured) -> Section:
    """What building costs the host alone, beside what the post gained a token."""
    theirs = post_table(POST, "summary").set_index("metric").loc["TPOT"]
    facts = post_facts(POST)
    stages = [setting.stages["s05"], setting.stages["s06"]]
    table = compare_builds(stages, flat_model(), [facts["num_requests"]], block_size=facts["block_size"]).df
    us = table.set_index(["step", "stage"])["build us"]
    names = dict(zip((BEFORE, AFTER), (stage.name for stage in stages), strict=True))
    times = [Time(f"building all tables, {when}, {kind}", "us", None, float(us[kind, names[when]]))
             for kind in (AWAY, EDGE) for when in (BEFORE, AFTER)]  # fmt: skip
    saved = float(us[AWAY, names[BEFORE]] - us[AWAY, names[AFTER]]) / 1e3
    difference = Source(COMPUTED, "its two TPOT, one less the other; that is the mean of all steps, edges included")
    posted = theirs["before_p50"] - theirs["after_p50"]
    times.append(Time("saved a step away from an edge", "ms", posted, saved, source=difference))
    return Section(
        "What a row costs",
        text=(
            f"Building the tables of one step, alone: {shape_of(POST_MODEL).num_layers} layers, the post's batch, no "
            "model. The post's saving is the difference of its two TPOT, for a step makes one token of each sequence.",
            "Where it loses: at an edge every row is built as before and kept as well. And one table for all layers "
            "would need neither the rows of the other layers nor the cache; lesson 06 measures that.",
        ),
        times=times,
        grids=[Grid.of("Counted", table[COUNTED])],
    )  # fmt: skip


def definitions(m: Measured) -> Section:
    """What the figures mean, and that the post's printed ones agree with it."""
    facts, theirs = post_facts(POST), post_table(POST, "summary").set_index("metric")
    tokens = facts["num_requests"] * facts["max_new_tokens"]
    judged = []
    for throughput, time in (("decode", "Decode time"), ("total", "Total time")):
        rate = theirs.loc[f"Throughput(completion,{throughput})"]
        for when in (BEFORE, AFTER):
            counted = round(rate[f"{when}_p50"] * theirs.loc[time, f"{when}_p50"])
            what = f"tokens in the post's {throughput} throughput, {when}"
            judged.append(judge(what, tokens, counted, source=all_tokens(facts)))
    ours = m.runs[AFTER][0]
    printed = {name: text for name, text in METRICS.items() if name in {*theirs.index, "p50/mean"}}
    printed = {"Decode time": METRICS["Elapsed (decode/run)"], **printed}
    return Section(
        "What the figures mean",
        text=(
            "The definitions are the benchmark's own (--help prints them). The post's printed throughput times its "
            "printed time is exactly its requests times its tokens, so its text, tokenized again, had as many tokens "
            "as were generated.",
            f"TTFT knows no queue: requests are prefilled one by one, and the {len(ours.requests)}th here began "
            f"{1e3 * (ours.requests[-1].first_scheduled - ours.requests[0].first_scheduled):.1f} ms after the first, "
            "which its TTFT does not show.",
        ),
        facts=judged,
        grids=[Grid("Definitions", ("figure", "meaning"), list(printed.items()))],
    )


def signature() -> Section:
    """The post's test for an unchanged row, and two lists that it takes for one."""
    old, new = [3, 7, 9], [3, 8, 9]
    rows = [(str(ids), str((len(ids), ids[-1]))) for ids in (old, new)]
    return Section(
        "When is a row unchanged?",
        text=(
            "The post keeps a row while its number of blocks and its last block id stay the same. That holds as long "
            "as lists only grow at their end. A block swapped further in front, by copy-on-write or preemption, leaves "
            "both as they were, and attention would read the old block. Stage 06 keeps a version number of the list.",
        ),
        grids=[Grid("Two lists, one signature", ("block ids", "(count, last id)"), rows)],
    )
