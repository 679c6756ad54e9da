"""Checkers of lesson 13: buckets, padding rows, a step that can be captured, graphs from the start."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
from torch import Tensor

from roseinfer.generate import begin, decode_step
from roseinfer.graphs import Graph, capture
from roseinfer.profiling.replay import FROM_PYTHON, record_step
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor, explain_tokens
from ..exercises.stage_checks import drawn_model, require_sizes, require_stage
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong

CPU = torch.device("cpu")


# 13.1


def _draw_run(rng: Random) -> tuple[list[int], list[int]]:
    sizes = rng.choice(((1, 2, 3, 4, 6, 8, 12, 16), (1, 8, 16, 100, 255, 256, 257, 4000)))
    buckets = rng.sample(sizes, rng.randint(1, 5))
    top = max(buckets) + rng.choice((0, 0, 3))
    return [rng.randint(1, top) for _ in range(rng.randint(1, 8))], buckets


RUNS = [([4], [4]), ([3] * 400 + [10_000], [100_000, 7]), *draw(_draw_run)]
LARGE_ENOUGH, NUM_CAPTURES = "if bucket >= size]", "len({bucket for _, bucket in used})"
COST_MISTAKES = {
    "padding_rows": {
        "a batch as large as a bucket fits into it": {">= size": "> size"},
        "those are all rows computed; the sequences' own rows are not padding": {"bucket - size for": "bucket for"},
        "the smallest bucket that is large enough, not the largest": {"min(large_enough)": "max(large_enough)"},
        "buckets have no order: the first that is large enough need not be the smallest": {
            "min(large_enough)": "large_enough[0]"
        },
        "a batch that no bucket is large enough for has no padding rows": {
            LARGE_ENOUGH: f"{LARGE_ENOUGH} or [max(buckets)]"
        },
        "the nearest bucket may be too small": {
            LARGE_ENOUGH: "if abs(bucket - size) == min(abs(other - size) for other in buckets)]",
            "bucket - size for": "abs(bucket - size) for",
        },
    },
    "captures": {
        "a bucket that no batch needs is never captured": {NUM_CAPTURES: "len(buckets)"},
        "a graph serves every batch that its bucket is the smallest for, not just one size": {
            "{bucket for _, bucket": "{size for size, bucket"
        },
    },
}
COSTS = as_solved_by_name("13.1", COST_MISTAKES)
register("13.1", Comparison(RUNS, COSTS, inputs("batch_sizes", "buckets")))

# 13.2

Mixed = tuple[list[int], int, int, int]  # new tokens of each sequence, padding rows, dummy block, block size
READ = "slot_mapping", "query_start", "context_lens", "block_tables"


def _draw_mixed(rng: Random) -> Mixed:
    # Not 2 tokens: a count of sequences would be right by chance.
    new = [rng.choice((1, 1, 3, 5)) for _ in range(rng.randint(1, 4))]
    dummy_block = rng.randint(10, rng.choice((40, 40, 10**6)))  # its slots may need more than 16 bits
    return new, rng.randint(0, 5), dummy_block, rng.choice((1, 4, 8, 16, 256))


MIXED: list[Mixed] = [([1], 1, 10, 4), ([1, 3, 5] * 10, 300, 40, 16), *draw(_draw_mixed)]


def _describe_mixed(new: list[int], missing: int, dummy_block: int, block_size: int) -> str:
    return (
        f"{len(new)} sequences with {new} new tokens, bucket={sum(new) + missing}, dummy_block={dummy_block}, "
        f"block_size={block_size}"
    )


def _fill_with(answer: Callable[..., object], new: list[int], missing: int, dummy: int, size: int) -> dict[str, Tensor]:
    """Return what padding rows write to and read. The inputs hold a batch, and after it what an older step has left."""
    num_seqs, num_tokens = len(new), sum(new)
    slots, starts = np.arange(size, size + num_tokens + missing), np.full(num_seqs + missing + 2, 9_999)
    lengths, tables = np.full(num_seqs + missing + 1, 999), np.tile([1, 2, 3], (num_seqs + missing + 1, 1))
    starts[: num_seqs + 1], lengths[:num_seqs] = np.cumsum([0, *new]), new
    arrays = [array.astype(np.int32) for array in (slots, starts, lengths, tables)]
    own = [array[:n] for array, n in zip(arrays, (num_tokens, num_seqs + 1, num_seqs, num_seqs), strict=True)]
    before = [torch.tensor(array) for array in own]
    handed = dict(zip(READ, arrays, strict=True))
    answer(handed, num_seqs, num_tokens, num_tokens + missing, dummy, size)
    for name, array in zip(READ, arrays, strict=True):
        if handed.get(name) is not array:
            raise Wrong(f"inputs[{name!r}] is another array now, but the graph reads the one that it was: write there")
    require_unchanged(before, map(torch.tensor, own), READ, ": the batch's own part")
    written, ends, contexts, rows = (
        torch.from_numpy(array[len(part) : len(part) + missing]) for array, part in zip(arrays, own, strict=True)
    )
    in_block = (contexts >= 1) & (contexts <= size)
    return {
        "blocks that slot_mapping writes to": written // size,
        "query_start": ends,
        "context_lens": contexts.masked_fill(in_block, 1),
        "block_tables, first column": rows[:, 0],
    }


SLOTS, CONTEXTS = 'inputs["slot_mapping"][num_tokens:bucket] = dummy_block * block_size', "missing] = 1"
STARTS = 'inputs["query_start"][num_seqs + 1 : num_seqs + missing + 1] = range(num_tokens + 1, bucket + 1)'
FILL_MISTAKES = {
    "blocks that slot_mapping writes to": {
        "block 0 is given to sequences like any other: only the dummy block belongs to none": {
            "dummy_block * block_size": "0"
        },
        "an older step left that slot there, and it may belong to a running sequence by now": {SLOTS: "pass"},
        "that slot is the number of the dummy block: a slot is block * block_size + offset": {" * block_size": ""},
    },
    "query_start": {
        "it does not continue after the batch, so the last rows belong to no sequence": {STARTS: "pass"},
        "a sequence that begins and ends at the same row has none": {"range(num_tokens + 1, bucket + 1)": "num_tokens"},
        "it counts rows, and a sequence of the batch may have several": {
            "range(num_tokens + 1, bucket + 1)": "range(num_seqs + 1, num_seqs + missing + 1)"
        },
    },
    "context_lens": {
        "expected 1: its own token is written, then attended to": {CONTEXTS: "missing] = 0"},
        "those are the lengths of an older step; a padding sequence reads its own token": {CONTEXTS: "missing]"},
    },
    "block_tables, first column": {
        "block 0 is given to sequences like any other; the sequence's token is in the dummy block": {
            "0] = dummy_block": "0] = 0"
        },
    },
}
FILLED = as_solved_by_name("13.2", FILL_MISTAKES, explain_tensor, _fill_with)
register("13.2", Comparison(MIXED, FILLED, _describe_mixed, call=_fill_with))

# 13.3

END = 0
Steps = tuple[int, int, tuple[int, ...], int, int]  # size of the vocabulary, rows, banned ids, first position, seed
Replay = tuple[list[int], list[int], Any]  # token_ids, positions, and what the step returned


def _draw_step(rng: Random) -> Steps:
    vocab = rng.randint(5, 9)
    banned = tuple(rng.sample(range(1, vocab), rng.randint(1, 2)))
    return vocab, rng.randint(1, 4), banned, rng.choice((0, 0, 1000, 100_000)), rng.randrange(1000)


STEPS: list[Steps] = [(5, 1, (4,), 0, 0), (5, 2, (1,), 0, 1), (40, 20, (3, 7, 9, 20, 39), 0, 3), *draw(_draw_step)]


def _draw_scores(vocab: int, start: int, seed: int) -> Tensor:
    """Draw scores, exact in fp32 and all different; token 0 is sometimes the best at positions `start` to start + 20.

    Far from 0 they are negative, and a shorter dtype cannot tell them apart.
    """
    places = torch.randperm(vocab * vocab, generator=torch.Generator().manual_seed(seed)).view(vocab, vocab)
    step = 2.0 ** -math.ceil(math.log2(vocab**2 / 20))  # between two scores, which go from 0 to at most 20
    scores = step * places - start
    scores[:, END] -= start + step / 2
    return scores


@torch.inference_mode()
def _replay_with(
    answer: Callable[..., Any], vocab: int, num_rows: int, banned: tuple[int, ...], start: int, seed: int
) -> list[Replay]:
    """Capture the answer's step, and that of a second make_step; replay both six times."""
    draw_ints = partial(torch.randint, generator=torch.Generator().manual_seed(seed))
    scores = _draw_scores(vocab, start, seed)
    token_ids, positions = torch.ones(num_rows, dtype=torch.long), torch.zeros(num_rows, dtype=torch.long)
    handed, ids = scores.clone(), list(banned)
    step = answer(handed, token_ids, positions, ids)
    if not callable(step):
        raise Wrong(f"make_step returned {type(step).__name__}, expected the step, a function without arguments")
    others = torch.ones_like(token_ids), torch.full_like(positions, start), [b % (vocab - 1) + 1 for b in banned]
    other = answer(scores.flip(0), *others)
    graph, graph_of_other = _captured(step), _captured(other)
    replays: list[Replay] = []
    for _ in range(6):
        token_ids.copy_(draw_ints(vocab, (num_rows,)))
        positions.copy_(start + draw_ints(20, (num_rows,)))
        before = token_ids.clone(), positions.clone()
        got = graph.replay()
        graph_of_other.replay()  # which must not write to what the first one returned
        require_unchanged(before, (token_ids, positions), ("token_ids", "positions"), ": a step only reads it")
        replays.append((token_ids.tolist(), positions.tolist(), deepcopy(got)))
    require_unchanged([scores, torch.tensor(banned)], [handed, torch.tensor(ids)], ("scores", "banned"))
    return replays


def _captured(step: Callable[[], Any]) -> Any:
    for name, (given, *_) in [op for op in record_step(step, []).ops if op[0] == FROM_PYTHON]:
        if len(given) > 2:  # its shape, dtype and address; a number is a kernel's argument
            raise Wrong(
                f"{name}: the step makes a tensor of a Python list, which a GPU would have to fetch from the host "
                "during the capture: make it once, outside of step"
            )
    try:
        return capture(step, CPU)
    except RuntimeError as error:
        raise Wrong(f"the capture is refused: {error}") from error


def _explain_replays(got: list[Replay], want: list[Replay]) -> str | None:
    for i, ((token_ids, positions, mine), (*_, right)) in enumerate(zip(got, want, strict=True), 1):
        if message := explain_tensor(mine, right):
            return f"replay {i}, token_ids={token_ids}, positions={positions}: {message}"
    return None


MADE_ONCE = "banned_ids = torch"
STEP_MISTAKES = {
    "in every replay each position counts as 0: does the step read `positions` itself, and not a copy?": {
        "+= positions": "+= 0"
    },
    "in every replay the position is that of the capture": {
        "def step():\n": "position = -1\n\n    def step():\n        nonlocal position\n        position += 1\n",
        "+= positions": "+= position",
    },
    "all are the tokens of the capture: the step reads a copy of its buffers": {
        MADE_ONCE: f"token_ids, positions = token_ids.clone(), positions.clone()\n    {MADE_ONCE}"
    },
    "after token 0 comes only token 0": {"torch.where(token_ids == 0, 0, tokens)": "tokens"},
    "a banned token is never chosen": {"allowed[:, banned_ids] = -torch.inf": "pass"},
}
register(
    "13.3",
    Comparison(
        STEPS,
        as_solved("13.3", STEP_MISTAKES, _explain_replays, _replay_with, torch=torch),
        lambda vocab, num_rows, banned, *_: f"{vocab} tokens, {num_rows} rows, banned={list(banned)}",
        call=_replay_with,
    ),
)

# 13.4


@exercise("13.4")
def graphs_from_the_start(answer: type[Stage]) -> None:
    require_stage(answer, "Graphs", "graph_of")
    for num_layers, max_num_seqs in ((1, 9), (2, 9), (1, 40)):  # no stage may use another's graphs
        _judge_warm(answer, num_layers, max_num_seqs)
    require_contract(answer, TOUCHED)


# The promises that captures at the start can break. The others make stages of many shapes, each with all its graphs.
TOUCHED = (
    "Every block comes back",
    "Batches that grow and shrink",
    "Tokens of its own choice",
    "Two at once",
    "Memory comes back",
)
GROWING = (1, 2, 3, 9, 5, 1)  # sequences of a step


def _judge_warm(answer: Any, num_layers: int, max_num_seqs: int) -> None:
    model = drawn_model(num_layers)
    stage = answer(model, num_blocks=40, block_size=4, max_num_seqs=max_num_seqs)
    require_sizes(stage, num_blocks=40, block_size=4, max_num_seqs=max_num_seqs)
    if not stage.buckets or max(stage.buckets) < max_num_seqs:
        raise Wrong(f"buckets={stage.buckets} for max_num_seqs={max_num_seqs}: the largest batch fits none")
    if missing := sorted(set(stage.buckets) - set(stage.graphs)):
        raise Wrong(f"made with buckets={stage.buckets}, the stage has no graph for {missing}")
    if stage.num_free_blocks != 40:
        raise Wrong(
            f"made with num_blocks=40, {stage.num_free_blocks} are free: expected all, so free what the captures took"
        )
    graphs: dict[int, Any] = dict(stage.graphs)
    stage.write_padding(0, max_num_seqs)
    for bucket, graph in graphs.items():
        if not isinstance(graph, Graph):
            raise Wrong(f"self.graphs[{bucket}] is of type {type(graph).__name__}, expected a graph made by capture")
        if (rows := len(graph.replay()[0])) != bucket:
            raise Wrong(f"the graph for {bucket} computes {rows} rows, expected {bucket}")
        graphs[bucket].replay = Mock(wraps=graph.replay)
    prompts = [[3 + i] * (1 + i % 3) for i in range(max(GROWING))]
    seqs = begin(stage, prompts, SamplingParams(max_tokens=len(GROWING) + 2, ignore_eos=True))
    for size in GROWING:
        decode_step(stage, seqs[:size])
    if again := sorted(bucket for bucket, graph in stage.graphs.items() if graphs.get(bucket) is not graph):
        raise Wrong(
            f"batches of {list(GROWING)} were decoded, and graphs were captured again for {again}, expected none"
        )
    if (replayed := sum(graph.replay.call_count for graph in graphs.values())) != len(GROWING):
        raise Wrong(f"{replayed} of {len(GROWING)} steps replayed a graph of self.graphs, expected all")
    reference = reference_generate(model, prompts, len(GROWING) + 1)
    for i, (seq, want) in enumerate(zip(seqs, reference, strict=True)):
        if message := explain_tokens(seq.output_ids, want[: len(seq.output_ids)]):
            raise Wrong(f"batches of {list(GROWING)}, sequence {i}: {message}")
