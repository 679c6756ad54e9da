"""compile_product: the matrix product of a3.9, compiled for GPUs that need not be here, and what its loop became."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from typing import Any, NamedTuple

from roseinfer.display.table import Table
from roseinfer.kernels import aot, triton_mode

from ..views.rows_table import table
from .rungs import solved

ROWS, COLUMNS, INNER, WARPS = 64, 64, 32, 4
GPUS = {80: "A100", 90: "H100, H200"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
INSTRUCTION = re.compile(r"^\s*(?:@\S+ )?(fma\.rn\.f32|mma\.sync\.\S+|wgmma\.mma_async\.\S+)", re.MULTILINE)


class Instruction(NamedTuple):
    """An instruction of PTX that multiplies. threads: how many execute it together. products: what it multiplies."""

    name: str
    threads: int
    products: int


def compile_product() -> Table:
    """Compile a3.9's kernel for an A100 and an H100, in float32 and in bfloat16, and table what a program consists of.

    A row has the instructions that multiply in the loop's body, as PTX names them, how many threads execute one of them
    together, how many of them each thread executes, and registers a thread and bytes of shared memory a program. It
    takes some seconds, in a process of its own: a kernel is either compiled or interpreted.
    """
    triton_mode.require_triton()
    environment = os.environ | {triton_mode.VARIABLE: "compile"}
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    live = ["instruction", "threads together", "times a thread", "registers", "shared bytes"]
    title = f"One tile of {ROWS} x {COLUMNS}, {INNER} of the inner dimension: {ROWS * COLUMNS * INNER:,} products"
    formats = {"products": "{:,}", "shared bytes": "{:,}", "times a thread": "{:,}"}
    return table(json.loads(done.stdout), live, title, formats=formats)


def instruction_of(ptx: str) -> Instruction:
    """Return what an instruction of PTX multiplies, which its name says: m16n8k16 is a product [16, 16] @ [16, 8]."""
    name, *_ = ptx.split(".")
    if name == "fma":
        return Instruction(name, 1, 1)
    m, n, k = map(int, re.findall(r"m(\d+)n(\d+)k(\d+)", ptx)[0])
    return Instruction(f"{name} m{m}n{n}k{k}", 128 if name == "wgmma" else 32, m * n * k)


def _row(dtype: str, arch: int) -> dict[str, Any]:
    kernel = solved("a3.9")
    constexprs = {"ROWS": ROWS, "COLUMNS": COLUMNS, "INNER": INNER}
    types = dict.fromkeys(kernel.arg_names, "i32") | {"x": f"*{dtype}", "w": f"*{dtype}", "out": "*fp32"}
    aligned = types.keys() - constexprs.keys()
    compiled = aot.compiled(kernel, types, aligned, constexprs, arch, WARPS)
    [(found, times)] = Counter(INSTRUCTION.findall(compiled.asm["ptx"])).items()
    one = instruction_of(found)
    takes = asdict(aot.resources(compiled))
    return {
        "numbers": DTYPES[dtype],
        "GPU": GPUS[arch],
        "instruction": one.name,
        "threads together": one.threads,
        "times a thread": times,
        "products": times * one.products * 32 * WARPS // one.threads,
        "registers": takes["registers"],
        "shared bytes": takes["shared_bytes"],
    }


def main() -> None:
    """Print the rows as JSON, as the child process."""
    print(json.dumps([_row(dtype, arch) for dtype in DTYPES for arch in GPUS]))
