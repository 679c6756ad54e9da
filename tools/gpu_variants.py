"""python -m tools.gpu_variants: time the decode step on a GPU with other versions of the fused kernels, in turn.

A version is the kernels' source with a line or two replaced, so the engine needs no flag for what is not decided yet.
Once a GPU has decided, write the fastest into roseinfer/kernels/fused_triton.py and take it out here. `make gpu-report`
runs the comparison.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import torch

from roseinfer.bench.decode_step import engine_of, model_of, prepared
from roseinfer.bench.interleave import interleaved
from roseinfer.bench.provenance import describe_host
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.engine import fused_step
from roseinfer.engine.batch import FEW_ROWS
from roseinfer.kernels import fused_triton
from roseinfer.models import Model
from roseinfer.profiling.clock import seconds_of_calls


class Version(NamedTuple):
    """A version of the kernels.

    edits: new texts by the ones that they replace. few_rows: the most that are fused. for_wide: whether it is only for
    models that are wider than NARROW, whose products are the library's today.
    """

    edits: dict[str, str]
    few_rows: int = FEW_ROWS
    for_wide: bool = False


WAIT, LAUNCH = "tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()"
VERSIONS = {
    "fused": Version({}),
    "nothing asked for early": Version({"in tl.static_range(0, LINES, THREADS)": "in tl.static_range(0, 0, THREADS)"}),
    "next launch begins earlier": Version({f"{WAIT}\n        {LAUNCH}": f"{LAUNCH}\n        {WAIT}"}),
    "128 KB asked for early": Version({"constexpr(384)": "constexpr(1024)"}),
    "16 columns a program": Version({"stages = 32, 4, 256, 3": "stages = 16, 4, 256, 4"}),
    "64 rows fused, 16 a program": Version(
        {"max(16, power_of_two(num_rows))": "16", "if num_rows > 16:": "if num_rows > 64:"}, few_rows=64
    ),
    "64 rows fused, 32 a program": Version(
        {"max(16, power_of_two(num_rows))": "min(32, max(16, power_of_two(num_rows)))"}, few_rows=64
    ),
    "16 columns, 512 values at a time": Version({"stages = 32, 4, 256, 3": "stages = 16, 8, 512, 3"}, for_wide=True),
    "32 columns, 512 values at a time": Version({"stages = 32, 4, 256, 3": "stages = 32, 8, 512, 2"}, for_wide=True),
    "8 columns where there are few": Version({"if num_out <= 1024:": "if num_out <= 4096:"}, for_wide=True),
    "products of a library": Version({}, few_rows=0),
}
CASES = {"random:gpt2": (1, 8, 64), "random:qwen2.5-7b": (1, 8)}
NUM_TOKENS = 301  # of each sequence, the new one included, as in `roseinfer bench step`
ROUNDS, REPLAYS = 6, 30


@dataclass(frozen=True, kw_only=True)
class VersionTimes(MachineResult):
    """Times of a decode step. rows: one for each model, batch size and version; seconds: the median of its rounds.

    samples: for each row the median of each round's replays.
    """

    SHORT: ClassVar = ("model", "batch_size", "version", "seconds")
    COLUMNS: ClassVar = (
        Column("model", of="model"),
        Column("batch", of="batch_size"),
        Column("version", of="version"),
        Column("step us", "{:,.1f}".format, of=lambda row: 1e6 * row["seconds"]),
        Column("fastest round", "{:,.1f}".format, of=lambda row: 1e6 * row["seconds_min"]),
    )


def version_of(edits: dict[str, str], folder: Path) -> ModuleType:
    """Import fused_triton's source with some texts replaced. folder: where the source lies as long as it is used.

    Raises ValueError for a text that the source lacks.
    """
    source = Path(fused_triton.__file__).read_text(encoding="utf-8")
    for old, new in edits.items():
        if old not in source:
            raise ValueError(f"edits must replace what is in {fused_triton.__name__}, got {old!r}")
        source = source.replace(old, new)
    number = len(list(folder.iterdir()))
    path = folder / f"version_{number}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"roseinfer.kernels.{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replay_of(model: Model, kernels: ModuleType, few_rows: int, size: int) -> Callable[[], object]:
    """Return a call that computes a decode step with a version's kernels, however wide the model.

    It was called once: on a GPU that captured them in a graph, which later calls replay. few_rows: with more, the
    products are a library's.
    """
    of_kernels = [name for name, value in vars(fused_step).items() if is_of(fused_triton, value)]
    versions = {name: getattr(kernels, name) for name in of_kernels}
    with patch.multiple(fused_step, **versions, NARROW=sys.maxsize, FEW_ROWS=few_rows):
        _, replay = prepared(engine_of(model, size, NUM_TOKENS), size, NUM_TOKENS)
        replay()
    return replay


def is_of(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", None) == module.__name__


@torch.inference_mode()
def compared(
    cases: Mapping[str, Sequence[int]], device: str, rounds: int = ROUNDS, replays: int = REPLAYS
) -> Iterator[VersionTimes]:
    """Time the versions in turn, and yield what is measured so far after each model and batch size.

    cases: the batch sizes of each model. replays: of each version in each of the rounds.
    """
    where = torch.device(device)
    arguments = {"num_tokens": NUM_TOKENS, "rounds": rounds, "replays": replays, "device": device}
    result = VersionTimes(arguments=arguments, **describe_host(where), rows=[], samples=[])
    with tempfile.TemporaryDirectory() as folder:
        kernels = {name: version_of(version.edits, Path(folder)) for name, version in VERSIONS.items()}
        for spec, sizes in cases.items():
            model = model_of(spec, device, "bfloat16")
            for size in sizes:
                for name, medians in times_of(model, kernels, size, rounds, replays).items():
                    row = {"model": spec, "batch_size": size, "version": name}
                    result.rows.append(row | {"seconds": median(medians), "seconds_min": min(medians)})
                    result.samples.append(medians)
                yield result


def times_of(
    model: Model, kernels: dict[str, ModuleType], size: int, rounds: int, replays: int
) -> dict[str, list[float]]:
    """Return the median seconds of each round by version. One that fuses more rows than usual is tried with more."""
    is_wide = model.config.hidden_size > fused_step.NARROW
    calls = {
        name: replay_of(model, kernels[name], version.few_rows, size)
        for name, version in VERSIONS.items()
        if (version.few_rows <= FEW_ROWS or size > FEW_ROWS) and (is_wide or not version.for_wide)
    }

    def timed(call: Callable[[], object]) -> Callable[[], float]:
        return lambda: median(seconds_of_calls(call, model.device, replays))

    return interleaved({name: timed(call) for name, call in calls.items()}, rounds, warmup=1)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_variants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=CASES, help="the only model to time; all of them when not given")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="where to write the times, as JSON")
    return parser


def main(words: Sequence[str] | None = None) -> None:
    """Compare the versions, write each model and batch size as soon as it is timed, and show a table of all."""
    args: Any = parser().parse_args(words)
    cases = {args.model: CASES[args.model]} if args.model else CASES
    for result in compared(cases, args.device):
        args.output.write_text(result.to_json() + "\n", encoding="utf-8")
    print(result.text())


if __name__ == "__main__":
    main()
