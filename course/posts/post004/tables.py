"""Fills the sections of post 004's report: its summary beside ours, and the rows that each step builds."""

from __future__ import annotations

from collections import Counter

from roseinfer.bench.scheduler import Stat, summarize
from roseinfer.bench.scheduler.figures import FIGURES
from roseinfer.bench.table_steps import AWAY, EDGE, compare_builds
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.models.load import shape_of

from ..data import COMPUTED, Source, post_facts, post_table
from ..report.content import Exact, Grid, Ruled, Time, change, change_verdict, judged, times_beside
from ..report.setting import Setting
from ..report.template import Values
from .run import AFTER, BEFORE, POST_MODEL, Measured, flat_model

POST = "004"
COUNTED = ["step", "stage", "rows built", "copies", "stacks", "table bytes"]


def summary(m: Measured) -> Values:
    """Compare the post's two summaries with ours: p50 and mean, before and after, with the floor."""
    theirs = post_table(POST, "summary").set_index("metric")
    stats = {when: {stat.metric: stat for stat in summarize(runs)} for when, runs in m.runs.items()}
    ours = {
        f"{when}_{kind}": {metric: getattr(stat, kind) for metric, stat in stats[when].items()}
        for kind in ("p50", "mean")
        for when in (BEFORE, AFTER)
    }
    args = m.args
    run, why = m.runs[AFTER][0], f"{args.max_new_tokens} tokens each were asked for"
    facts = judged(
        POST,
        {
            "Warmup runs": Ruled(args.warmup_runs, args.warmup_runs),
            "Measured runs": Ruled(args.repeat_runs, args.repeat_runs),
            "requests": Ruled(len(run.seqs), args.num_requests),
            "sequences in a step, at most": Ruled(max(map(len, run.decode_steps.values())), args.max_batch_size),
            "completion tokens": Ruled(run.completion_tokens, args.num_requests * args.max_new_tokens, why),
        },
    )
    return {
        "command": m.lines(*(stage.name.split("_")[0] for stage in m.stages.values())),
        "facts": facts,
        "times": times_beside(theirs, ours, summary_floors(m)),
        "changes": changes(stats),
        "samples": {when: [run.decode_step_seconds for run in runs] for when, runs in m.runs.items()},
    }


def summary_floors(m: Measured) -> dict[str, float]:
    """Compute the floors of the figures that decoding alone decides, in the post's units."""
    run = m.runs[AFTER][0]
    seconds = m.floor_seconds(run)
    return {
        "Decode time": seconds,
        "Throughput(completion,decode)": run.completion_tokens / seconds,
        "TPOT": 1e3 * seconds / (m.args.max_new_tokens - 1),
    }


def changes(stats: dict[str, dict[str, Stat]]) -> list[list[Exact | None]]:
    """Show how the change affected each figure, there and here."""
    rows: list[list[Exact | None]] = []
    for metric, row in post_table(POST, "summary").set_index("metric").iterrows():
        before, after = stats[BEFORE][metric], stats[AFTER][metric]
        post, here = row["after_p50"] / row["before_p50"] - 1, change(before.values, after.values)
        spread = max(max(s.values) / min(s.values) for s in (before, after)) - 1
        verdict = change_verdict(before.values, after.values)
        rows.append([metric, f"{post:+.1%}", here, None if here is None else f"{spread:.1%}", verdict])
    return rows


def rebuilds(m: Measured) -> Values:
    """Count how many steps build how many rows: at the post's sizes without a model, and in the run that was timed."""
    after, before = m.post_rows[AFTER], m.post_rows[BEFORE]
    ours = m.args.num_requests * m.model.config.num_layers
    own_edges = (m.work.prompt_lens[0] + len(m.rows) - 1) // BLOCK_SIZE
    rows: dict[str, Exact | Ruled] = {
        "rows built, before, all steps": sum(before),
        "rows built, after, all steps": sum(after),
        "steps that build no row, after": after.count(0),
        "rows on the step where all sequences cross an edge, after": max(after[1:]),
        "rows built in the run that was timed, after": Ruled(sum(m.rows), (1 + own_edges) * ours, sizes(m, own_edges)),
    }
    return {
        "layers": shape_of(POST_MODEL).num_layers,
        "facts": judged(POST, rows),
        "posted": histogram(m.post_rows),
        "timed": histogram({BEFORE: [ours] * len(m.rows), AFTER: m.rows}),
        "samples": {"post_rows": m.post_rows, "rows": m.rows},
    }


def sizes(m: Measured, edges: int) -> str:
    c = m.model.config
    each = f"{c.num_layers} layers x {m.args.num_requests} sequences"
    return f"{each}, edges crossed in {m.args.max_new_tokens} tokens: {edges}"


def histogram(rows: dict[str, list[int]]) -> list[tuple[int, int, int]]:
    """Return (rows built in a step, number of such steps before the change, and after it), sorted by the rows."""
    counted = {when: Counter(of_steps) for when, of_steps in rows.items()}
    values = sorted({value for of_steps in counted.values() for value in of_steps})
    return [(value, counted[BEFORE][value], counted[AFTER][value]) for value in values]


def price(setting: Setting) -> Values:
    """Measure what building tables costs on the host alone, beside what the post gained a token."""
    theirs = post_table(POST, "summary").set_index("metric").loc["TPOT"]
    facts = post_facts(POST)
    stages = [setting.stages["s05"], setting.stages["s06"]]
    table = compare_builds(stages, flat_model(), [facts["num_requests"]], block_size=facts["block_size"]).df
    us = table.set_index(["step", "stage"])["build us"]
    names = dict(zip((BEFORE, AFTER), (stage.name for stage in stages), strict=True))
    times = [
        Time(f"building all tables, {when}, {kind}", "us", None, float(us[kind, names[when]]))
        for kind in (AWAY, EDGE)
        for when in (BEFORE, AFTER)
    ]
    saved = float(us[AWAY, names[BEFORE]] - us[AWAY, names[AFTER]]) / 1e3
    difference = Source(COMPUTED, "its two TPOT, one less the other; that is the mean of all steps, edges included")
    posted = theirs["before_p50"] - theirs["after_p50"]
    times.append(Time("saved a step away from an edge", "ms", posted, saved, source=difference))
    return {"layers": shape_of(POST_MODEL).num_layers, "times": times, "counted": Grid.of(table[COUNTED])}


def definitions(m: Measured) -> Values:
    """Explain what the figures mean, and check that the post's printed ones agree with it."""
    theirs = post_table(POST, "summary").set_index("metric")
    counted = {
        f"tokens in the post's {name} throughput, {when}": round(
            theirs.loc[f"Throughput(completion,{name})", f"{when}_p50"] * theirs.loc[time, f"{when}_p50"]
        )
        for name, time in (("decode", "Decode time"), ("total", "Total time"))
        for when in (BEFORE, AFTER)
    }
    ours = m.runs[AFTER][0]
    printed = {name: text for name, text in FIGURES.items() if name in {*theirs.index, "p50/mean"}}
    printed = {"Decode time": FIGURES["Elapsed (decode/run)"], **printed}
    late = ours.times[-1].first_scheduled - ours.times[0].first_scheduled
    return {
        "num_requests": len(ours.seqs),
        "last_began_ms": f"{1e3 * late:.1f}",
        "facts": judged(POST, counted),
        "definitions": printed.items(),
    }


def signature() -> Values:
    """Show the post's test for an unchanged row, and two lists that it takes for one."""
    old, new = [3, 7, 9], [3, 8, 9]
    rows = [(str(ids), str((len(ids), ids[-1]))) for ids in (old, new)]
    return {"signatures": rows}
