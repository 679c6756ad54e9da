"""Fills the sections of post 000's report: each table of the post beside ours."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from roseinfer.bench.scheduler import ServerRun
from roseinfer.bench.scheduler.figures import run_figures
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.models.load import shape_of
from roseinfer.profiling import Trace
from roseinfer.profiling.slice_rule import COLON_IS_FREE_FROM, torch_version

from ..data import COMPUTED, POSTS, Source, post_facts, post_table, source_of
from ..report.content import Fact, Grid, Time, change, change_verdict, judge, times_beside
from ..report.template import Values
from .counts import MEMSET_BELOW, DecodeBatch
from .run import AFTER, BEFORE, Measured

POST, POST_MODEL = "000", "random:gpt2"
CAT = "aten::cat"
FIRST_RECORDED = 3  # decode steps before the trace: one not profiled, two to warm up
COLON_COSTS = (COLON_IS_FREE_FROM[0], COLON_IS_FREE_FROM[1] - 1)  # a torch whose bare `:` starts a slice
NOT_LISTED = Source(COMPUTED, "not among the rows of its table, which has room for 25 ops")
GATHER, APPEND = "roseinfer.decode_step_sessions.build_batched_past", "roseinfer.kv.append_token"
SPANS = {  # of a table of the post's, and its query
    "gather_after": (GATHER, "gather_ops"),
    "append_before": (APPEND, "append_ops"),
    "append_after": (APPEND, "append_ops"),
}


def command(m: Measured) -> Values:
    """Compare what the command printed, before and after the change, in the post and here."""
    theirs = post_table(POST, "throughput").set_index("metric")
    ours = {"before": run_figures(m.profiled[BEFORE][0]), "after": run_figures(m.profiled[AFTER][0])}
    prompt_len, tokens, repeats = m.work.prompt_lens[0], m.args.max_new_tokens, len(m.raced[BEFORE])
    rules = {
        "Requests": (m.args.num_requests, "the number of requests"),
        "Prompt tokens": (m.args.num_requests * prompt_len, f"this model's tokenizer makes {prompt_len} of the prompt"),
        "Completion tokens": (m.args.num_requests * tokens, f"{tokens} tokens each were asked for"),
        "Total tokens": (m.args.num_requests * (prompt_len + tokens), "both together"),
    }
    facts = [
        judge(metric, int(theirs.loc[metric, "before"]), ours["before"][metric], rule=rule, why=why)
        for metric, (rule, why) in rules.items()
    ]
    floors = {"Elapsed (decode/run)": m.floor_seconds(m.profiled[BEFORE][0])}
    return {
        "repeats": repeats,
        "command": m.lines(BEFORE, AFTER),
        "facts": facts,
        "times": times_beside(theirs.drop(index=list(rules)), ours, floors),
        **race(m),
        "samples": {stage: [run_figures(run) for run in runs] for stage, runs in m.raced.items()},
    }


def race(m: Measured) -> Values:
    rates = {stage: [run.completion_tokens / run.decode_seconds for run in runs] for stage, runs in m.raced.items()}
    gain, verdict = change(rates[BEFORE], rates[AFTER]), change_verdict(rates[BEFORE], rates[AFTER])
    post = post_table(POST, "throughput").set_index("metric").loc["Throughput (completion)"]
    return {
        "change": verdict if gain is None else f"the median changes by {gain}; {verdict}",
        "posted": f"{post['after'] / post['before'] - 1:+.1%}",
        "race": Grid.of_runs("stage", rates, decimals=2),
    }


def recorded_batch(m: Measured, run: ServerRun) -> DecodeBatch:
    """Return the first step in the trace."""
    cached = [length - 1 for length in list(run.decode_steps.values())[FIRST_RECORDED]]
    c = m.model.config
    return DecodeBatch(
        c.num_layers, c.num_kv_heads, c.head_dim, BLOCK_SIZE, cached, on_cpu=m.model.device.type == "cpu"
    )


def ops_table(m: Measured, table: str, stage: str) -> Values:
    """Judge the counts of aten ops in the first span, op by op, and compare the mean time of each."""
    span, query = SPANS[table]
    run, trace = m.profiled[stage]
    batch = recorded_batch(m, run)
    rule = batch.gather_ops() if span == GATHER else batch.append_ops(select_first=stage == AFTER)
    theirs = post_table(POST, table).set_index("name")
    ours = trace.ops(span).df.set_index("name")
    counts = ours["n"].to_dict()
    why = differences(batch, span)
    facts: list[Fact] = []
    for op in [*theirs.index, *sorted(set(counts) - set(theirs.index) - {CAT})]:
        posted, source = int(theirs["n"].get(op, 0)), None if op in theirs.index else NOT_LISTED
        facts.append(judge(op, posted, int(counts.get(op, 0)), rule=rule.get(op, 0), why=why[op], source=source))
    if span == GATHER:
        about = post_facts(POST)
        source = source_of(about, "cats_in_gather")
        facts.append(judge(CAT, about["cats_in_gather"], int(counts.get(CAT, 0)), source=source))
    times = [time for op in theirs.index for time in _op_times(op, theirs.loc[op], ours)]
    own = shipped(trace, query)
    return {"batch": batch, "span": span, "query": query, "facts": facts, "times": times, "own": own}


def _op_times(op: str, theirs: pd.Series, ours: pd.DataFrame) -> list[Time]:
    """Compare the time of all calls in the span, and of one call; None here for an op that is not called."""
    here = ours.loc[op] if op in ours.index else None
    return [
        Time(f"{op}, {what}", unit, float(theirs[column]), None if here is None else float(here[column]))
        for what, unit, column in (("all calls", "ms", "total_ms"), ("a call", "us", "avg_us"))
    ]


def differences(batch: DecodeBatch, span: str) -> Mapping[str, str]:
    """Say for each op, in words, why its count in that span may differ from the post's."""
    facts, version = post_facts(POST), torch_version()
    sizes = []
    if batch.layers != facts["num_layers"]:
        sizes.append(f"{batch.layers} layers, not {facts['num_layers']}")
    if len(batch.lengths) != facts["max_batch_size_default"]:
        sizes.append(f"{len(batch.lengths)} sequences in the step, not {facts['max_batch_size_default']}")
    if batch.longest > BLOCK_SIZE:
        sizes.append("sequences of more than one block")
    slices = list(sizes)
    if version >= COLON_IS_FREE_FROM:
        since = ".".join(map(str, COLON_IS_FREE_FROM))
        slices.append(f"torch {'.'.join(map(str, version))}: a bare `:` starts no slice (since {since})")
    if span == GATHER:  # the append slices as often whatever the lengths
        equal = len(set(batch.lengths)) == 1
        slices.append("equal lengths here; the post's count needs one longest" if equal else "other lengths")
    fills = [*sizes, f"a CPU zeroes fewer than {MEMSET_BELOW:,} values without fill_"] if batch.on_cpu else sizes
    special = {
        "aten::slice": slices,
        "aten::as_strided": ["one for each slice and select", *slices],
        "aten::fill_": fills,
    }
    ops = {*batch.gather_ops(), *batch.append_ops(select_first=True), "aten::alias"}
    return {op: "; ".join(special.get(op, sizes)) or "the same sizes as in the post" for op in ops}


def spans(m: Measured) -> Values:
    """Compare the labelled spans of three steps of stage BEFORE with the post's overview."""
    run, trace = m.profiled[BEFORE]
    theirs = post_table(POST, "spans")
    ours = run_shipped(trace, "spans").set_index(["side", "span"])
    sides = {"user_annotation": "host", "gpu_user_annotation": "device"}
    floor_ms = 1e3 * m.floor_seconds(run) / len(run.decode_steps)
    facts, times = [], []
    for row in theirs.itertuples():
        side, what = sides[row.cat], f"{row.name}, {sides[row.cat]}"
        here = ours.loc[(side, row.name)] if (side, row.name) in ours.index else None
        if here is not None and side == "host":
            facts.append(judge(f"{what}: spans", row.n, int(here["calls"]), rule=3, why="three recorded steps"))
        is_step = row.name.endswith(".forward") or (side == "host" and row.name.endswith(".total"))
        for kind, posted, steps in (("total_ms", row.total_ms, row.n), ("avg_ms", row.avg_ms, 1)):
            ours_ms = None if here is None else float(here[kind])
            label = f"{what}, {'each' if steps == 1 else 'all'}"
            times.append(Time(label, "ms", posted, ours_ms, steps * floor_ms if is_step else None))
    gaps = shipped(trace, "device_steps") if m.model.device.type == "cuda" else None
    return {"facts": facts, "times": times, "spans": shipped(trace, "spans"), "gaps": gaps}


def self_time(m: Measured) -> Values:
    """Show in which ops the step's time is, which the post does not ask."""
    return {"own": shipped(m.profiled[AFTER][1], "self_time")}


def arithmetic(m: Measured) -> Values:
    """Compare the post's explanation of its counts with the one that gives them all."""
    about = post_facts(POST)
    layers, batch_size = about["num_layers"], about["max_batch_size_default"]
    c = shape_of(POST_MODEL)
    posted = {table: post_table(POST, table).set_index("name")["n"] for table in SPANS}

    def batch(lengths: list[int]) -> DecodeBatch:
        return DecodeBatch(layers, c.num_kv_heads, c.head_dim, BLOCK_SIZE, lengths, on_cpu=False, version=COLON_COSTS)

    equal, one_longest = batch([2] * batch_size), batch([2] * (batch_size - 1) + [3])
    reckoned = {
        "append_before": equal.append_ops(select_first=False),
        "append_after": equal.append_ops(select_first=True),
        "gather_after": one_longest.gather_ops(),
    }
    return {
        "before": posted["append_before"],
        "after": posted["append_after"],
        "slices": posted["gather_after"]["aten::slice"],
        "slices_of_equal": equal.gather_ops()["aten::slice"],
        "facts": [
            judge(f"{op}, {table}", int(n), reckoned[table].get(op, 0))
            for table, counts in posted.items()
            for op, n in counts.items()
        ],
    }


def run_shipped(trace: Trace, query: str) -> pd.DataFrame:
    return trace.sql((POSTS / POST / f"{query}.sql").read_text(encoding="utf-8"))


def shipped(trace: Trace, query: str) -> Grid:
    """Run one of the queries that come with the post's tables; times are rounded to four decimals."""
    return Grid.of(run_shipped(trace, query).round(4))
