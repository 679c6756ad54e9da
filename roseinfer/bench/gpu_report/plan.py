"""What a report runs, and how long it may take. A report's `arguments` are a Plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roseinfer.kernels.flat_cases import CASES

HEAD_DIMS = (32, 64, 80, 96, 128)
GROUPS = (1, 2, 4, 7, 8)
BLOCK_SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class KernelShape:
    """A batch of ragged lengths for a kernel to be checked on. group: query heads on each KV head."""

    head_dim: int
    group: int
    block_size: int
    num_kv_heads: int = 2


@dataclass(frozen=True)
class TimedShape:
    """A batch of equal lengths for a kernel to be timed on. context_len: cached tokens of each sequence."""

    batch_size: int
    context_len: int
    num_kv_heads: int
    group: int
    head_dim: int
    block_size: int = 64
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class LadderShape:
    model: str
    dtype: str
    batch_size: int


@dataclass(frozen=True)
class Size:
    """How much of a ladder is run, the same for all contenders."""

    max_new_tokens: int
    repeats: int


@dataclass(frozen=True)
class Plan:
    """seconds: of the whole report; the ladders take what the other parts leave. flat_cases: names in flat_cases.CASES.
    ladder_sizes: the first that fits is taken, else the last. static_cache_seconds: what a ladder must have for
    transformers to compile a model. trace_bytes: all traces together, gzipped. silence_seconds: after which a part that
    says nothing is ended. dtypes: of the checks, float32 first."""

    seconds: float
    kernel_check_seconds: float
    kernel_shapes: tuple[KernelShape, ...]
    flat_check_seconds: float
    flat_cases: tuple[str, ...]
    timed_shapes: tuple[TimedShape, ...]
    token_check_seconds: float
    checked_models: tuple[str, ...]
    checked_prompt_lens: tuple[int, ...]
    checked_new_tokens: int
    graph_check_models: tuple[str, ...]
    graph_check_seqs: int
    launch_batch_sizes: tuple[int, ...]
    launch_steps: int
    trace_model: str
    trace_dtype: str
    trace_batch_size: int
    trace_steps: int
    trace_bytes: int
    ladders: tuple[LadderShape, ...]
    prompt_len: int
    ladder_sizes: tuple[Size, ...]
    static_cache_seconds: float
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    silence_seconds: float = 150


def grid() -> tuple[KernelShape, ...]:
    """Every pair of head size and group; block sizes in turn, so that each meets every head size and every group.

    All triples would be four times as many kernels to compile.
    """
    return tuple(
        KernelShape(head_dim, group, BLOCK_SIZES[(i + j) % len(BLOCK_SIZES)])
        for i, head_dim in enumerate(HEAD_DIMS)
        for j, group in enumerate(GROUPS)
    )


def diagonal() -> tuple[KernelShape, ...]:
    """Every head size, every group and every block size at least once."""
    return tuple(
        KernelShape(head_dim, group, BLOCK_SIZES[i % len(BLOCK_SIZES)])
        for i, (head_dim, group) in enumerate(zip(HEAD_DIMS, GROUPS, strict=True))
    )


FULL = Plan(
    seconds=440,  # of the 480 that it promises: the last ladder may take longer than it was given
    kernel_check_seconds=90,
    kernel_shapes=grid(),
    flat_check_seconds=50,
    flat_cases=tuple(CASES),
    timed_shapes=(
        TimedShape(64, 1024, 12, 1, 64),  # GPT-2 small
        TimedShape(64, 1024, 12, 1, 64, dtype="float32"),
        TimedShape(64, 4096, 2, 7, 64),  # Qwen2.5-0.5B
        TimedShape(32, 4096, 4, 7, 128),  # Qwen2.5-7B
        TimedShape(1, 32768, 4, 7, 128),  # one program a KV head: most of the GPU idle
    ),
    token_check_seconds=40,
    checked_models=("tiny", "random:tiny-llama", "random:tiny-qwen2", "random:tiny-qwen3"),
    checked_prompt_lens=(1, 15, 16, 17, 40, 64),
    checked_new_tokens=20,
    graph_check_models=("tiny", "random:tiny-qwen2"),
    graph_check_seqs=40,  # graphs of 1, 2, 4, 8, 16, 32 and 40 rows
    launch_batch_sizes=(1, 8, 64),
    launch_steps=32,
    trace_model="random:gpt2",
    trace_dtype="bfloat16",
    trace_batch_size=8,
    trace_steps=3,
    trace_bytes=1_350_000,
    # The fp32 one first: tokens are asserted there. Large batches last: they are the ones that time may cut short.
    ladders=(
        LadderShape("random:gpt2", "float32", 8),
        LadderShape("random:gpt2", "float16", 8),
        LadderShape("random:gpt2", "bfloat16", 1),
        LadderShape("random:gpt2", "bfloat16", 8),
        LadderShape("random:gpt2", "bfloat16", 64),
        LadderShape("random:qwen2.5-0.5b", "bfloat16", 1),
        LadderShape("random:qwen2.5-0.5b", "bfloat16", 8),
        LadderShape("random:qwen2.5-0.5b", "bfloat16", 64),
    ),
    prompt_len=64,
    ladder_sizes=(Size(64, 5), Size(64, 3), Size(32, 3), Size(16, 3), Size(8, 3), Size(8, 2)),
    static_cache_seconds=25,
)
QUICK = replace(
    FULL,
    seconds=75,
    kernel_check_seconds=20,
    kernel_shapes=diagonal(),
    flat_check_seconds=20,
    token_check_seconds=15,
    graph_check_seqs=10,
    launch_batch_sizes=(8,),
    flat_cases=tuple(name for name in CASES if name.startswith(("decode", "mixed")))[:4],
    timed_shapes=(FULL.timed_shapes[0], FULL.timed_shapes[2]),
    checked_models=("tiny", "random:tiny-qwen2"),
    ladders=(LadderShape("random:gpt2", "bfloat16", 8), LadderShape("random:qwen2.5-0.5b", "bfloat16", 8)),
)
