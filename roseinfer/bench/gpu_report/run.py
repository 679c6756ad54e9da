"""Run the parts of a report one after another, and write the file after each, so that nothing is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from roseinfer.profiling import measure_machine

from ..provenance import describe_host, short_commit
from .context import Context, Course, PartFailed, one_line
from .graph_checks import graph_checks
from .kernels import flat_checks, kernel_checks, kernel_times
from .ladders import ladders
from .launches import launches
from .overlap import overlap
from .plan import Plan
from .tokens import tokens
from .traces import traces
from .worker import Parts, Worker

KIND, FORMAT = "gpu-report", 1
MOST_BYTES = 2_000_000  # of a report and its traces: they are kept in the repository


@dataclass
class GpuReport:
    """data: what the file holds. Its `failures` are everything that went wrong, a line each."""

    path: Path
    data: dict[str, Any]

    @property
    def failures(self) -> list[str]:
        return self.data["failures"]

    def write(self) -> int:
        """Bytes written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.write_text(
            json.dumps(self.data, separators=(",", ":"), allow_nan=False) + "\n", encoding="ascii"
        )


def machine(context: Context) -> Iterator[dict[str, Any]]:
    """Floors of this device, one row for each dtype."""
    for dtype in context.plan.dtypes:
        measured = measure_machine(context.device, getattr(torch, dtype))
        yield {
            "dtype": dtype, "read_bytes_per_s": measured.read_bytes_per_s, "flops_per_s": measured.flops_per_s,
            "samples": measured.samples,
        }  # fmt: skip


# Last the ladders: they take the time that the others leave.
PARTS: Parts = {
    "machine": machine,
    "kernel_checks": kernel_checks,
    "flat_checks": flat_checks,
    "kernel_times": kernel_times,
    "tokens": tokens,
    "graph_checks": graph_checks,
    "launches": launches,
    "overlap": overlap,
    "traces": traces,
    "ladders": ladders,
}


def run_report(
    course: Course,
    plan: Plan,
    *,
    device: torch.device,
    folder: Path,
    commit: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    isolated: bool = False,
) -> GpuReport:
    """Write `folder`/runs/<gpu>/<date>-<commit>.json and `folder`/traces/<gpu>/<stage>.json.gz.

    What fails is in the report's failures and does not end it. commit: of the code, where git cannot tell. say: is
    given lines of progress. isolated: in another process, which an error may cost, see Worker.
    """
    about = describe_host(device)
    about["commit"] = about["commit"] or commit
    now, slug = datetime.now(timezone.utc), re.sub(r"[^a-z0-9]+", "-", about["device"].lower()).strip("-")
    context = Context(course, plan, device, folder / "traces" / slug, about["commit"], say)
    data = {
        "kind": KIND, "format": FORMAT, "date": now.isoformat(timespec="seconds"), **about, "arguments": asdict(plan),
        **{part: [] for part in PARTS}, "seconds": {}, "failures": context.failures, "notes": context.notes,
    }  # fmt: skip
    report = GpuReport(folder / "runs" / slug / f"{now:%Y-%m-%d}-{short_commit(about['commit'])}.json", data)
    with Worker(context, PARTS) if isolated else nullcontext() as worker:
        for part, rows_of in PARTS.items():
            start = perf_counter()
            say(part.replace("_", " "))
            try:
                for row in worker.rows_of(part) if worker else rows_of(context):
                    data[part].append(row)
            except Exception as error:  # the other parts still have their say, and the report fails
                context.fail(f"{part}: {error if isinstance(error, PartFailed) else one_line(error)}")
            data["seconds"][part] = round(perf_counter() - start, 1)
            size = report.write()
    size += sum(row["bytes"] for row in data["traces"])
    if size > MOST_BYTES:
        context.fail(f"the report and its traces take {size:,} bytes, allowed: {MOST_BYTES:,}")
        report.write()
    return report
