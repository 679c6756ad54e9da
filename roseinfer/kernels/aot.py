"""Compile a kernel ahead of time, for GPUs that need not be here, and read what it takes there.

Registers, stack (what did not fit the registers: spills) and shared memory come from cuobjdump, which Triton ships.
A program that spills still runs, only slowly; a kernel that does not compile is found here and not on the GPU.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roseinfer.paths import DATA

ARCHITECTURES = (80, 90)  # A100 and H100, H200
KEPT = DATA / "kernels" / "s07_triton_paged.json"
# Triton's dtype, KV heads, query heads on each, head size, block size. First GPT-2 small, Qwen2.5 0.5B and 7B.
SHAPES = (
    ("fp16", 12, 1, 64, 64), ("bf16", 2, 7, 64, 64), ("bf16", 4, 7, 128, 64), ("bf16", 8, 4, 128, 128),
    ("bf16", 8, 8, 128, 16), ("fp32", 12, 1, 64, 64), ("fp32", 8, 2, 32, 16), ("fp16", 8, 1, 80, 32),
    ("fp32", 8, 1, 96, 16),
)  # fmt: skip


@dataclass(frozen=True)
class Resources:
    """What one compiled program takes: registers and bytes of stack a thread, bytes of shared memory a program."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def compile_for(
    kernel: Any, types: Mapping[str, str], aligned: Container[str], constexprs: Mapping[str, int], arch: int, warps: int
) -> Resources:
    """Compile a @triton.jit kernel for compute capability arch / 10, without a GPU.

    types: Triton's type of each argument that is no constexpr, such as "*fp16", "i32". aligned: those that are
    multiples of 16, which a launch would find out by itself and use for wide loads.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constexprs else types[name] for name in kernel.arg_names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if name in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constexprs), attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [found] = re.findall(r"REG:(\d+) STACK:(\d+)", usage)
    return Resources(int(found[0]), int(found[1]), compiled.metadata.shared)


def rows(stage_module: Any) -> Iterator[dict[str, Any]]:
    """One row for each of ARCHITECTURES and SHAPES: the shape, the tile, and what a program takes.

    stage_module: with paged_decode_kernel and the program_shape that it is launched with. Needs the mode "compile".
    """
    kernel = stage_module.paged_decode_kernel
    for arch in ARCHITECTURES:
        for dtype, num_kv_heads, group, head_dim, block_size in SHAPES:
            shape = dict(stage_module.program_shape(num_kv_heads, group, head_dim, block_size, interpreted=False))
            warps = shape.pop("num_warps")
            types = dict.fromkeys(kernel.arg_names, "i32")
            types |= dict.fromkeys(("out", "q", "k", "v", "k_cache", "v_cache"), f"*{dtype}")
            types |= {"block_table": "*i32", "context_lens": "*i32", "scale": "fp32"}
            aligned = types.keys() - {"scale", "num_kv_heads", "table_row", "table_column", *shape}
            yield {
                "arch": f"sm_{arch}", "dtype": dtype, "num_kv_heads": num_kv_heads, "group": group,
                "head_dim": head_dim, "block_size": block_size, "tile": shape["TILE"], "warps": warps,
                **asdict(compile_for(kernel, types, aligned, shape, arch, warps)),
            }  # fmt: skip
