"""What the posts print of a run, to the letter, and what each figure means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from .serve import MODE, ServerRun

# Printed by --help, and kept in every recorded run.
FIGURES = {
    "Elapsed (prefill/add)": "tokenizing (none with --pretok), and the steps that compute prompts. The posts prefill "
    "each request as it is added, and so does a stage; the engine computes prompts together, as many as a step takes",
    "Elapsed (decode/run)": "the other steps, scheduling and sampling included; also printed as `Decode time`. The "
    "posts' figure also holds turning all tokens into text at the end; here nothing is turned into text. On a GPU the "
    "engine launches a step before it reads the tokens of the last one: such a step counts from the last one's end, so "
    "no time counts twice",
    "Elapsed (total)": "both together; also printed as `Total time`",
    "Prompt tokens": "tokens of all prompts",
    "Completion tokens": "tokens that were generated, counted as they were made. The posts turn them into text and "
    "count the tokens of that, which may be more or fewer",
    "Total tokens": "prompt and completion tokens",
    "Throughput (completion)": "completion tokens over the total time",
    "Throughput (total)": "prompt and completion tokens over the total time",
    "Throughput(completion,decode)": "completion tokens over the decode time, although the prefill made the first "
    "token of each request; as in the posts",
    "Throughput(completion,total)": "completion tokens over the total time",
    "TTFT": "from the beginning of a request's first step to its first token, and its tokenizing. The queue is left "
    "out, so this is no time to first token under load; as in the posts, where no request queues. On a GPU the engine "
    "launches that step while another one still runs, and the rest of that one counts, too",
    "TPOT": "from a request's first token to its last, over the tokens after the first. It holds the prefills of the "
    "requests that join later; as in the posts, where with more requests than --max-batch-size it holds the steps of "
    "the others as well: there all take turns, and here a request keeps its place",
    "Latency": "from the beginning of a request's first step to its last token, and its tokenizing",
    "p50/mean": "over the measured runs; of TTFT, TPOT and latency each run gives its median over the requests",
}

DIGITS = {"s": 6}  # of each unit's figures; others have two
MS = 1e3


def run_figures(run: ServerRun) -> dict[str, int | float]:
    """Return what is printed of one run, in its order: counts, then seconds, and tokens a second."""
    total_tokens = run.prompt_tokens + run.completion_tokens
    return {
        "Requests": len(run.seqs),
        "Elapsed (prefill/add)": run.total_seconds - run.decode_seconds,
        "Elapsed (decode/run)": run.decode_seconds,
        "Elapsed (total)": run.total_seconds,
        "Prompt tokens": run.prompt_tokens,
        "Completion tokens": run.completion_tokens,
        "Total tokens": total_tokens,
        "Throughput (completion)": run.completion_tokens / run.total_seconds,
        "Throughput (total)": total_tokens / run.total_seconds,
    }


def run_lines(run: ServerRun) -> list[str]:
    """Return the lines of one run, as in post 000; the last one is empty."""
    return [f"=== {MODE} ===", *(f"{name}: {_figure(name, value)}" for name, value in run_figures(run).items()), ""]


def _figure(name: str, value: int | float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.6f} seconds" if name.startswith("Elapsed") else f"{value:.2f} tokens/s"


@dataclass(frozen=True)
class Stat:
    """A figure of several runs, in its unit. values: one a run."""

    metric: str
    unit: str
    values: tuple[float, ...]

    @property
    def p50(self) -> float:
        return median(self.values)

    @property
    def mean(self) -> float:
        return mean(self.values)


SUMMARY: list[tuple[str, str, Callable[[ServerRun], float]]] = [
    ("Decode time", "s", lambda run: run.decode_seconds),
    ("Total time", "s", lambda run: run.total_seconds),
    ("Throughput(completion,decode)", "tokens/s", lambda run: run.completion_tokens / run.decode_seconds),
    ("Throughput(completion,total)", "tokens/s", lambda run: run.completion_tokens / run.total_seconds),
    ("TTFT", "ms", lambda run: MS * median(run.ttft)),
    ("TPOT", "ms/token", lambda run: MS * median(run.tpot)),
    ("Latency", "ms", lambda run: MS * median(run.latency)),
]
NEED_DECODING = ("Throughput(completion,decode)", "TPOT")


def summarize(runs: Sequence[ServerRun]) -> list[Stat]:
    """Compute the posts' summary, in their order, without NEED_DECODING where a run has no decode step."""
    decoded = all(run.decode_steps for run in runs)
    shown = [stat for stat in SUMMARY if decoded or stat[0] not in NEED_DECODING]
    return [Stat(metric, unit, tuple(value(run) for run in runs)) for metric, unit, value in shown]


def summary_lines(warmup_runs: int, runs: Sequence[ServerRun]) -> list[str]:
    """Return the lines of several runs, as in post 004; the last one is empty."""
    lines = [f"=== {MODE} summary ===", f"Warmup runs: {warmup_runs}", f"Measured runs: {len(runs)}"]
    for stat in summarize(runs):
        digits = DIGITS.get(stat.unit, 2)
        lines.append(f"{stat.metric} p50/mean: {stat.p50:.{digits}f}/{stat.mean:.{digits}f} {stat.unit}")
    return [*lines, ""]
