"""The lines that the posts print, to the letter."""

from __future__ import annotations

from collections.abc import Sequence

from .metrics import summarize
from .run import ServerRun

DIGITS = {"s": 6}  # of each unit's figures; others have two


def run_figures(run: ServerRun) -> dict[str, int | float]:
    """Return what is printed of one run, in its order: counts, then seconds, and tokens a second."""
    total_tokens = run.prompt_tokens + run.completion_tokens
    return {
        "Requests": len(run.requests),
        "Elapsed (prefill/add)": run.prefill_seconds,
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
    return [f"=== {run.mode} ===", *(f"{name}: {_figure(name, value)}" for name, value in run_figures(run).items()), ""]


def _figure(name: str, value: int | float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.6f} seconds" if name.startswith("Elapsed") else f"{value:.2f} tokens/s"


def summary_lines(mode: str, warmup_runs: int, runs: Sequence[ServerRun]) -> list[str]:
    """Return the lines of several runs, as in post 004; the last one is empty."""
    lines = [f"=== {mode} summary ===", f"Warmup runs: {warmup_runs}", f"Measured runs: {len(runs)}"]
    for stat in summarize(runs):
        digits = DIGITS.get(stat.unit, 2)
        lines.append(f"{stat.metric} p50/mean: {stat.p50:.{digits}f}/{stat.mean:.{digits}f} {stat.unit}")
    return [*lines, ""]
