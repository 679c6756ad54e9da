"""python -m tools.dashboard_overhead: what the dashboard costs the decoding that it shows. One line of JSON.

The same batch is decoded alone and under a dashboard in turn, A B B A, in a kernel, so that every redraw is also sent.
No browser draws it: on a machine that runs both, the browser's own work comes on top.

--cpu-time counts (and redraws by) the kernel's CPU seconds. On a machine that others use too, that says more; give it
one thread (OMP_NUM_THREADS=1), since threads that wait for each other count as well.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter, process_time
from typing import Any

import nbformat
import torch

from course.teach.lesson04.dashboard import Dashboard
from course.teach.lesson04.live_run import DTYPE_NAMES, LiveRun, RunSettings
from course.teach.notebook_setup import device
from roseinfer.bench.contenders import StageContender
from roseinfer.bench.interleave import turns
from roseinfer.bench.ladder import random_prompts
from roseinfer.bench.provenance import describe_host
from roseinfer.cli.repository import chosen_stages
from roseinfer.models import load_model
from roseinfer.profiling.clock import Clock
from tools.notebooks import kernel_env, notebook_client

CELL = "from tools.dashboard_overhead import overhead\nimport json\nprint(json.dumps(overhead(**{})))"


class TimedDashboard(Dashboard):
    """Keeps the seconds that each redraw between two decode steps took."""

    redraws: list[float]

    def _on_report(self, run: LiveRun) -> None:
        started = self._clock()
        super()._on_report(run)
        if run.status == "decoding":
            self.redraws.append(self._clock() - started)


def overhead(
    stage: str, model: str, batch_size: int, prompt_len: int, max_new_tokens: int, repeats: int, cpu_time: bool
) -> dict[str, Any]:
    """Decode the batch alone and under a dashboard `repeats` times each; return raw samples and their medians.

    seconds: from the end of a batch's first decode step to the end of its last one, with the time between steps.
    """
    from IPython.display import display

    settings = RunSettings(tuple(chosen_stages(stage)), model, batch_size, prompt_len, max_new_tokens, "float32")
    clock = process_time if cpu_time else perf_counter
    panel = TimedDashboard(settings, clock)
    display(panel)
    runs = {"alone": lambda: _alone(settings, clock), "dashboard": lambda: _watched(panel)}
    samples = [{"name": name, "repeat": repeat, **runs[name]()} for repeat, _, name in turns(list(runs), repeats, 1)]
    samples = [sample for sample in samples if sample["repeat"] >= 0]  # without the warm-up
    return {
        "settings": str(settings),
        "stage": settings.stages[0].name,
        "clock": clock.__name__,
        **describe_host(torch.device(device())),
        "summary": summary(samples),
        "samples": samples,
    }


def summary(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Compute medians over the repeats. slowdown: 0.01 is 1% longer under the dashboard."""
    alone, watched = ([s for s in samples if s["name"] == name] for name in ("alone", "dashboard"))
    seconds = [median(s["seconds"] for s in group) for group in (alone, watched)]
    return {
        "alone_seconds": seconds[0],
        "dashboard_seconds": seconds[1],
        "slowdown": seconds[1] / seconds[0] - 1,
        "redraw_share": median(sum(s["redraws"]) / s["seconds"] for s in watched),
        "redraws_per_second": median(len(s["redraws"]) / s["seconds"] for s in watched),
    }


def _alone(settings: RunSettings, clock: Clock) -> dict[str, Any]:
    """Decode in a thread on new weights, as under the dashboard: their place in memory is worth a few percent."""
    ends: list[float] = []

    def decode() -> None:
        model = load_model(settings.model, device(), DTYPE_NAMES[settings.dtype])
        prompts = random_prompts(model, settings.batch_size, settings.prompt_len)
        contender = StageContender(settings.stages[0], model, prompts, settings.max_new_tokens, clock)
        contender.run(lambda tokens, seconds: ends.append(clock()))

    thread = Thread(target=decode)
    thread.start()
    thread.join()
    return {"seconds": ends[-1] - ends[0], "steps": len(ends) - 1}


def _watched(panel: TimedDashboard) -> dict[str, Any]:
    panel.redraws = []
    panel.start()
    panel.wait()
    if panel.run.error:
        raise panel.run.error
    lane = panel.run.current
    return {
        "seconds": lane.wall_seconds - lane.steps[0].seconds,
        "steps": len(lane.steps) - 1,
        "redraws": panel.redraws,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.dashboard_overhead", description=__doc__)
    parser.add_argument("--stage", default="s03")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    arguments = vars(parser.parse_args(argv))
    cell = nbformat.v4.new_code_cell(CELL.format(arguments))
    client = notebook_client(nbformat.v4.new_notebook(cells=[cell]), Path.cwd(), timeout=3600)
    client.execute(env=kernel_env())
    print(next(o.text for o in client.nb.cells[0].outputs if o.output_type == "stream").strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
