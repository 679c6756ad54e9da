"""The memory that the engine takes: the peak of its resident bytes, in a process that does nothing else."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch

from roseinfer.arguments import counted
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.models import ModelLoadError, model_config
from roseinfer.planning.sizes import PlannedEngine

from ..contenders import ContenderFailed, require_fit
from ..provenance import describe_host
from ..settings import ENGINE, Memory, Offline
from ..workload import batch_of
from .contenders import engine

STATUS = Path("/proc/self/status")
NO_MODEL = 2  # exit status of the fresh process when the model cannot be loaded: the caller's mistake
CHILD = "import sys; from roseinfer.bench.offline.memory import answer; answer(sys.argv[1])"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f}"


@dataclass(frozen=True, kw_only=True)
class PeakMemory(MachineResult):
    """Memory of one run. rows: bytes of libraries, weights, pool, beyond and peak.

    libraries: what is resident before the model is loaded. weights: those that are loaded, which are in fp32 where they
    are quantised afterwards. pool: K and V. peak: the most from the start of the process to the last token. beyond:
    what the peak has on top of these: packed copies, activations, what loading needed. It is below 0 where loading
    needs the most, or where blocks without a written token take no memory yet.
    """

    SHORT: ClassVar = ("memory", "bytes")
    COLUMNS: ClassVar = (Column("memory", of="memory"), Column("MB", _mb, of="bytes"))

    def notes(self) -> list[str]:
        a = self.arguments
        prompts = f"{counted(a['batch_size'], 'prompt')} of {counted(a['prompt_len'], 'token')}"
        precision = a["quantization"] or a["dtype"]
        return [f"{ENGINE}, {a['model']}, {precision}, {prompts}, {counted(a['max_tokens'], 'new token')} each"]


def peak_memory(run: Memory) -> PeakMemory:
    """Measure the peak memory of a run in a fresh process.

    Raises ValueError for a text that is too long for the model, ModelLoadError for a model that cannot be loaded, and
    ContenderFailed, with the last line of that process, when it fails otherwise.
    """
    require_fit(model_config(run.model), prompt_len=run.prompt_len, max_tokens=run.max_tokens)
    sizes = PlannedEngine(
        model=run.model,
        num_blocks=_setting(run).num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=run.batch_size,
        dtype="float32" if run.quantization else run.dtype,
    ).sizes()
    child = subprocess.run([sys.executable, "-c", CHILD, json.dumps(asdict(run))], capture_output=True, text=True)
    if child.returncode:
        who = f"{ENGINE} {run.precision}"
        said = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        if child.returncode == NO_MODEL:
            raise ModelLoadError(said)
        raise ContenderFailed(said if said.startswith(who) else f"{who}: {said}")
    libraries, peak = json.loads(child.stdout.splitlines()[-1])
    parts = {"libraries": libraries, "weights": sizes.loaded_bytes, "pool": sizes.pool_bytes}
    parts |= {"beyond": peak - sum(parts.values()), "peak": peak}
    rows = [{"memory": name, "bytes": nbytes} for name, nbytes in parts.items()]
    return PeakMemory(arguments=run.record(), **describe_host(torch.device("cpu")), rows=rows)


def _setting(run: Memory) -> Offline:
    return Offline(
        model=run.model,
        batch_sizes=[run.batch_size],
        prompt_lens=[run.prompt_len],
        max_tokens=run.max_tokens,
        device="cpu",
    )


def answer(asked: str) -> None:
    """Print, in the fresh process, the bytes that are resident before the model is loaded and at the peak."""
    run = Memory(**json.loads(asked))
    libraries = resident("VmRSS")
    try:
        work = batch_of([[1] * run.prompt_len] * run.batch_size, run.max_tokens)
        engine(_setting(run), run.precision).run(work, lambda: False)
    except ContenderFailed as error:
        if isinstance(error.__cause__, ModelLoadError):
            print(error.__cause__, file=sys.stderr)
            sys.exit(NO_MODEL)
        sys.exit(str(error))  # and not a traceback, whose last line has the error's class as well
    print(json.dumps([libraries, resident("VmHWM")]))


def resident(key: str) -> int:
    """Return the resident bytes now (VmRSS) or at the peak (VmHWM). Without /proc it is always the peak.

    getrusage alone will not do where /proc is there: Linux lets a child begin with its parent's peak.
    """
    if STATUS.is_file():
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return 1024 * int(lines[key].split()[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
