"""Compile a kernel ahead of time, for GPUs that need not be here, and read what it takes there.

Registers, stack (what did not fit the registers: spills) and shared memory come from cuobjdump, which Triton ships.
A program that spills still runs, only slowly; a kernel that does not compile is found here and not on the GPU.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from roseinfer.paths import DATA

from . import fused_triton, paged_triton
from .attention_tilings import attend_launches

ARCHITECTURES = (80, 90)  # A100 and H100, H200
# What each module's kernels took when it was last recorded, by `roseinfer aot --out data/kernels`.
KEPT = {name: DATA / "kernels" / f"{name}.json" for name in ("s07_triton_paged", "paged_triton", "fused_triton")}
# Triton's dtype, KV heads, query heads on each, head size, block size. First GPT-2 small, Qwen2.5 0.5B and 7B.
SHAPES = (
    ("fp16", 12, 1, 64, 64),
    ("bf16", 2, 7, 64, 64),
    ("bf16", 4, 7, 128, 64),
    ("bf16", 8, 4, 128, 128),
    ("bf16", 8, 8, 128, 16),
    ("fp32", 12, 1, 64, 64),
    ("fp32", 8, 2, 32, 16),
    ("fp16", 8, 1, 80, 32),
    ("fp32", 8, 1, 96, 16),
)
# Columns and width of a product, the norm in front of it and what follows: of GPT-2 small and Qwen2.5 0.5B, 16 rows.
PRODUCTS = (
    (2304, 768, "layer", ""),
    (768, 768, "", ""),
    (3072, 768, "layer", "gelu"),
    (768, 3072, "", ""),
    (1152, 896, "rms", ""),
    (4864, 896, "rms", "silu"),
    (896, 4864, "", ""),
)
# Each of these in all BATCHES; the last one is where the fewest tokens fit a tile.
FLAT_SHAPES = (
    ("fp16", 12, 1, 64, 64),
    ("bf16", 2, 7, 64, 64),
    ("bf16", 4, 7, 128, 64),
    ("fp32", 12, 1, 64, 64),
    ("fp16", 8, 1, 80, 32),
    ("fp32", 8, 8, 128, 16),
)
BATCHES = {  # tokens, sequences, most tokens of one
    "one decode": (1, 1, 1),
    "decode": (8, 8, 1),
    "large decode": (64, 64, 1),
    "largest decode": (256, 256, 1),
    "short prefill": (40, 1, 40),
    "prefill": (512, 1, 512),
    "verify": (40, 8, 5),
    "large verify": (320, 64, 5),
    "mixed": (576, 65, 512),
}
CONTEXT = 4096  # tokens that the block tables have room for


@dataclass(frozen=True)
class Resources:
    """Resources of one compiled program: registers and bytes of stack a thread, bytes of shared memory a program."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def compile_for(
    kernel: Any, types: Mapping[str, str], aligned: Container[str], constexprs: Mapping[str, Any], arch: int, warps: int
) -> Resources:
    """Return what a @triton.jit kernel takes on compute capability arch / 10; the arguments are those of compiled."""
    return resources(compiled(kernel, types, aligned, constexprs, arch, warps))


def compiled(
    kernel: Any, types: Mapping[str, str], aligned: Container[str], constexprs: Mapping[str, Any], arch: int, warps: int
) -> Any:
    """Compile a @triton.jit kernel for compute capability arch / 10, without a GPU, to Triton's CompiledKernel.

    types: Triton's type of each argument that is no constexpr, such as "*fp16", "i32". aligned: those that are
    multiples of 16, which a launch would find out by itself and use for wide loads.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constexprs else types[name] for name in kernel.arg_names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if name in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constexprs), attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})


def resources(compiled: Any) -> Resources:
    """Read what a compiled kernel takes from its machine code."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [found] = re.findall(r"REG:(\d+) STACK:(\d+)", usage)
    return Resources(int(found[0]), int(found[1]), compiled.metadata.shared)


class Program(NamedTuple):
    """A kernel as it is launched on one shape. about: what a row says of it; the rest goes to compile_for."""

    about: dict[str, Any]
    kernel: Any
    types: dict[str, str]
    aligned: Container[str]
    constexprs: dict[str, Any]
    warps: int


def rows(programs: Iterable[Program]) -> Iterator[dict[str, Any]]:
    """Yield a row for each of ARCHITECTURES and each program: what it is and takes. Needs the mode "compile"."""
    programs = list(programs)
    for arch in ARCHITECTURES:
        for p in programs:
            # Programmatic dependent launch: see triton_mode.pdl_options.
            pdl = {"PDL": arch >= 90} if "PDL" in p.kernel.arg_names else {}
            resources = compile_for(p.kernel, p.types, p.aligned, {**p.constexprs, **pdl}, arch, p.warps)
            yield {"arch": f"sm_{arch}", **p.about, "warps": p.warps, **asdict(resources)}


def stage07_programs(stage_module: Any) -> Iterator[Program]:
    """Yield the paged_decode_kernel of stage 07's module in all SHAPES."""
    kernel = stage_module.paged_decode_kernel
    for dtype, num_kv_heads, group, head_dim, block_size in SHAPES:
        shape = dict(stage_module.program_shape(num_kv_heads, group, head_dim, block_size, interpreted=False))
        warps = shape.pop("num_warps")
        types = dict.fromkeys(kernel.arg_names, "i32")
        types |= dict.fromkeys(("out", "q", "k", "v", "k_cache", "v_cache"), f"*{dtype}")
        types |= {"block_table": "*i32", "context_lens": "*i32", "scale": "fp32"}
        aligned = types.keys() - {"scale", "num_kv_heads", "table_row", "table_column", *shape}
        about = {
            "dtype": dtype,
            "num_kv_heads": num_kv_heads,
            "group": group,
            "head_dim": head_dim,
            "block_size": block_size,
            "tile": shape["TILE"],
        }
        yield Program(about, kernel, types, aligned, shape, warps)


def flat_programs() -> Iterator[Program]:
    """Yield paged_triton's kernel in all FLAT_SHAPES and BATCHES."""
    for dtype, num_kv_heads, group, head_dim, block_size in FLAT_SHAPES:
        about = {
            "dtype": dtype,
            "num_kv_heads": num_kv_heads,
            "group": group,
            "head_dim": head_dim,
            "block_size": block_size,
        }
        for batch, (num_tokens, num_seqs, max_query_len) in BATCHES.items():
            launches = attend_launches(
                num_tokens, num_seqs, max_query_len, num_kv_heads, group, head_dim, block_size, CONTEXT // block_size,
                itemsize=4 if dtype == "fp32" else 2,
            )  # fmt: skip
            for launch in launches:
                part = "decodes" if launch.options["TILE_TOKENS"] == 1 else "chunks"
                name = f"attend, {batch}, {part}" if len(launches) > 1 else f"attend, {batch}"
                yield flat_program(name, about, paged_triton.attend_kernel, dtype, launch.options)


def fused_programs(module: Any = fused_triton) -> Iterator[Program]:
    """Yield fused_triton's product for few rows in all PRODUCTS, in both types of 16 bits. module: another version."""
    kernel = module.linear_kernel
    pointers = ("out", "x", "weight", "bias", "norm_weight", "residual")
    for dtype in ("fp16", "bf16"):
        for num_out, width, norm, then in PRODUCTS:
            shape: dict[str, Any] = dict(module.linear_shape(1, num_out, width))
            warps = shape.pop("num_warps")
            shape |= {"NUM_OUT": num_out, "WIDTH": width, "NORM": norm, "THEN": then, "UPCAST": 0}
            types = {"num_rows": "i32", "eps": "fp32", "norm_sums": "*fp32"} | dict.fromkeys(pointers, f"*{dtype}")
            about = {"dtype": dtype, "num_out": num_out, "width": width, "norm": norm, "then": then}
            yield Program(about, kernel, types, {*pointers, "norm_sums"}, shape, warps)


def flat_program(name: str, about: dict[str, Any], kernel: Any, dtype: str, shape: dict[str, int]) -> Program:
    shape = dict(shape)
    warps = shape.pop("num_warps", 4)  # 4 is what a launch takes that names none
    types = dict.fromkeys(kernel.arg_names, "i32") | {"scale": "fp32"}
    types |= dict.fromkeys(("out", "q", "k", "v", "k_cache", "v_cache"), f"*{dtype}")
    types |= dict.fromkeys(("partial", "tops", "totals"), "*fp32")
    types |= dict.fromkeys(("counters", "slot_mapping", "query_start", "context_lens", "block_tables"), "*i32")
    aligned = types.keys() - {"scale", "num_seqs", "table_row", "PDL", *shape}
    tiles = {"rows": shape["ROWS"], "tile": shape.get("TILE"), "split": shape.get("SPLIT_TOKENS", 0) > 0}
    return Program({"kernel": name, **about, **tiles}, kernel, types, aligned, shape, warps)
