"""say_step_times: what the times of recorded steps say of their tokens, in sentences that follow from them."""

from __future__ import annotations

from statistics import median

import numpy as np

from ..measure.request_run import Run, RunStep
from ..views.run_charts import require_runs
from ..views.said import Said, say
from .time_charts import CAPTURED, MS, REPLAYED, WITH_PROMPT, kind_of

CLOSE = 1.25  # steps that differ by no more are called about as long


def say_step_times(*runs: Run) -> Said:
    """Say how long steps take by the wall clock: decode only, and with a prompt, where time grows with the tokens.

    Steps that captured a graph are left out, and counted.
    """
    require_runs(runs)
    steps = {
        kind: [s for run in runs for s in run.steps if kind_of(s) == kind] for kind in (WITH_PROMPT, REPLAYED, CAPTURED)
    }
    sentences = []
    if steps[REPLAYED]:
        fewest, most = (pick(s.num_tokens for s in steps[REPLAYED]) for pick in (min, max))
        few, many = (median_ms([s for s in steps[REPLAYED] if s.num_tokens == n]) for n in (fewest, most))
        as_long = "about as long" if many <= CLOSE * few else f"{many / few:.1f} times as long"
        why = ": a step reads all weights, for one token as for several" if many <= CLOSE * few else ""
        sentence = f"**Decode only**: {len(steps[REPLAYED])} steps, in the median {median_ms(steps[REPLAYED]):.1f} ms."
        if fewest < most:
            sentence += f" Steps of {most} tokens take {as_long} as those of {fewest}{why}."
        sentences.append(sentence)
    if len({s.num_tokens for s in steps[WITH_PROMPT]}) > 1:
        tokens = np.array([s.num_tokens for s in steps[WITH_PROMPT]])
        slope, fixed = np.polyfit(tokens, [ms_of(s) for s in steps[WITH_PROMPT]], 1)
        sentences.append(
            f"**With a prompt**: {len(tokens)} steps of {tokens.min()} to {tokens.max()} tokens. A line through them "
            f"begins at {max(fixed, 0):.0f} ms, and each token adds {slope:.2f} ms."
        )
    if steps[CAPTURED]:
        sentences.append(f"Left out: {len(steps[CAPTURED])} steps that captured a graph. Run the cell again.")
    return say("how the time of a step follows from its tokens", *sentences)


def ms_of(step: RunStep) -> float:
    return MS * (step.times.finish - step.times.scheduled)


def median_ms(steps: list[RunStep]) -> float:
    return median(map(ms_of, steps))
