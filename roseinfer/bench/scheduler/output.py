"""The lines that the posts print, to the letter."""

from __future__ import annotations

from collections.abc import Sequence

from .metrics import summarize
from .server import ServerRun

DIGITS = {"s": 6}  # of each unit's figures; others have two


def run_lines(run: ServerRun) -> list[str]:
    """One run, as in post 000; ends with an empty line."""
    total_tokens = run.prompt_tokens + run.completion_tokens
    return [
        f"=== {run.mode} ===",
        f"Requests: {len(run.requests)}",
        f"Elapsed (prefill/add): {run.prefill_seconds:.6f} seconds",
        f"Elapsed (decode/run): {run.decode_seconds:.6f} seconds",
        f"Elapsed (total): {run.total_seconds:.6f} seconds",
        f"Prompt tokens: {run.prompt_tokens}",
        f"Completion tokens: {run.completion_tokens}",
        f"Total tokens: {total_tokens}",
        f"Throughput (completion): {run.completion_tokens / run.total_seconds:.2f} tokens/s",
        f"Throughput (total): {total_tokens / run.total_seconds:.2f} tokens/s",
        "",
    ]


def summary_lines(mode: str, warmup_runs: int, runs: Sequence[ServerRun]) -> list[str]:
    """Several runs, as in post 004; ends with an empty line."""
    lines = [f"=== {mode} summary ===", f"Warmup runs: {warmup_runs}", f"Measured runs: {len(runs)}"]
    for stat in summarize(runs):
        digits = DIGITS.get(stat.unit, 2)
        lines.append(f"{stat.metric} p50/mean: {stat.p50:.{digits}f}/{stat.mean:.{digits}f} {stat.unit}")
    return [*lines, ""]
