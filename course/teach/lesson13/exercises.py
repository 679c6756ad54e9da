"""Checkers of lesson 13: buckets, padding rows, a step that can be captured, graphs from the start."""

from __future__ import annotations

import math
from collections.abc import Callable
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

# 13.1


def _draw_run(rng: Random) -> tuple[list[int], list[int]]:
    sizes = rng.choice(((1, 2, 3, 4, 6, 8, 12, 16), (1, 8, 16, 100, 255, 256, 257, 4000)))
    buckets = rng.sample(sizes, rng.randint(1, 5))
    top = max(buckets) + rng.choice((0, 0, 3))
    return [rng.randint(1, top) for _ in range(rng.randint(1, 8))], buckets


LARGE_ENOUGH, NUM_CAPTURES = "if bucket >= size]", "len({bucket for _, bucket in used})"
COST_MISTAKES = {
    "padding_rows": {
        "a batch as large as a bucket fits into it": {">= size": "> size"},
        "buckets have no order: the first that is large enough need not be the smallest": {
            "min(large_enough)": "large_enough[0]"
        },
        "a batch that no bucket is large enough for has no padding rows": {
            LARGE_ENOUGH: f"{LARGE_ENOUGH} or [max(buckets)]"
        },
    },
    "captures": {
        "a bucket that no batch needs is never captured": {NUM_CAPTURES: "len(buckets)"},
        "a graph serves every batch that its bucket is the smallest for, not just one size": {
            "{bucket for _, bucket": "{size for size, bucket"
        },
    },
}
RUNS = [([3] * 400 + [10_000], [100_000, 7]), *draw(_draw_run)]
COSTS = as_solved_by_name("13.1", COST_MISTAKES)
register("13.1", Comparison(RUNS, COSTS, inputs("batch_sizes", "buckets")))

# 13.2


def _draw_mixed(rng: Random) -> tuple[list[int], int, int, int]:
    """Draw the new tokens of each sequence, the number of padding rows, the dummy block, and the block size."""
    # Not 2 tokens: a count of sequences would be right by chance.
    new = [rng.choice((1, 1, 3, 5)) for _ in range(rng.randint(1, 4))]
    dummy_block = rng.randint(10, rng.choice((40, 40, 10**6)))  # its slots may need more than 16 bits
    return new, rng.randint(0, 5), dummy_block, rng.choice((1, 4, 8, 16, 256))


def _fill_with(answer: Callable[..., object], new: list[int], missing: int, dummy: int, size: int) -> dict[str, Tensor]:
    """Return what padding rows write to and read. The inputs hold a batch, and after it what an older step has left."""
    num_seqs, num_tokens = len(new), sum(new)
    own = {"slot_mapping": num_tokens, "query_start": num_seqs + 1, "context_lens": num_seqs, "block_tables": num_seqs}
    given = {
        "slot_mapping": np.arange(size, size + num_tokens + missing),
        "query_start": np.append(np.cumsum([0, *new]), [9_999] * (missing + 1)),
        "context_lens": np.append(new, [999] * (missing + 1)),
        "block_tables": np.tile([1, 2, 3], (num_seqs + missing + 1, 1)),
    }
    arrays = {name: array.astype(np.int32) for name, array in given.items()}
    handed = dict(arrays)
    answer(handed, num_seqs, num_tokens, num_tokens + missing, dummy, size)
    padding: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if handed.get(name) is not array:
            raise Wrong(f"inputs[{name!r}] is another array now, but the graph reads the one that it was: write there")
        if (array[: own[name]] != given[name][: own[name]]).any():
            raise Wrong(f"{name} was handed in, and you have changed the batch's own part")
        padding[name] = torch.from_numpy(array[own[name] : own[name] + missing])
    contexts = padding["context_lens"]
    return {
        "blocks that slot_mapping writes to": padding["slot_mapping"] // size,
        "query_start": padding["query_start"],
        "context_lens": contexts.masked_fill((contexts >= 1) & (contexts <= size), 1),
        "block_tables, first column": padding["block_tables"][:, 0],
    }


SLOTS = 'inputs["slot_mapping"][num_tokens:bucket] = dummy_block * block_size'
STARTS = 'inputs["query_start"][num_seqs + 1 : num_seqs + missing + 1] = range(num_tokens + 1, bucket + 1)'
FILL_MISTAKES = {
    "blocks that slot_mapping writes to": {
        "block 0 is given to sequences like any other: only the dummy block belongs to none": {
            "dummy_block * block_size": "0"
        },
        "an older step left that slot there, and it may belong to a running sequence by now": {SLOTS: "pass"},
    },
    "query_start": {
        "it counts rows, and a sequence of the batch may have several": {
            "range(num_tokens + 1, bucket + 1)": "range(num_seqs + 1, num_seqs + missing + 1)"
        },
    },
    "context_lens": {
        "expected 1: its own token is written, then attended to": {"missing] = 1": "missing] = 0"},
    },
    "block_tables, first column": {
        "block 0 is given to sequences like any other; the sequence's token is in the dummy block": {
            "0] = dummy_block": "0] = 0"
        },
    },
}
FILLED = as_solved_by_name("13.2", FILL_MISTAKES, explain_tensor, _fill_with)
MIXED = [([1, 3, 5] * 10, 300, 40, 16), *draw(_draw_mixed)]
register(
    "13.2", Comparison(MIXED, FILLED, inputs("new tokens", "padding rows", "dummy_block", "block_size"), _fill_with)
)

# 13.3


def _draw_step(rng: Random) -> tuple[int, list[int], list[int], list[int], int, int]:
    """Draw the size of the vocabulary, banned ids, token_ids, positions, the least position of all, and a seed."""
    vocab, least = rng.choice((*range(5, 10), 40)), rng.choice((0, 0, 1000, 100_000))
    token_ids = [rng.randrange(vocab) for _ in range(rng.randint(1, 4))]
    positions = [least + rng.choice((0, rng.randrange(20))) for _ in token_ids]
    return vocab, rng.sample(range(1, vocab), rng.randint(1, 3)), token_ids, positions, least, rng.randrange(20)


def _draw_scores(vocab: int, least: int, seed: int) -> Tensor:
    """Draw scores, exact in fp32 and all different; token 0 is sometimes the best at positions `least` to least + 20.

    Far from 0 they are negative, and a shorter dtype cannot tell them apart.
    """
    places = torch.randperm(vocab * vocab, generator=torch.Generator().manual_seed(seed)).view(vocab, vocab)
    step = 2.0 ** -math.ceil(math.log2(vocab**2 / 20))  # between two scores, which go from 0 to at most 20
    scores = step * places - least
    scores[:, 0] -= least + step / 2
    return scores


@torch.inference_mode()
def _replay_with(
    answer: Callable[..., Any], vocab: int, banned: list[int], ids: list[int], at: list[int], least: int, seed: int
) -> Any:
    """Capture the answer's step with other values in the buffers, replay it where all texts have ended, and again.

    Before the capture another step is made, and the texts that have ended are longer than those after them.
    """
    scores, handed = (_draw_scores(vocab, least, seed) for _ in range(2))
    token_ids, positions = torch.ones(len(ids)).long(), torch.zeros(len(ids)).long()
    step = answer(handed, token_ids, positions, banned)
    answer(scores.flip(0), token_ids.clone(), positions.clone(), [id % (vocab - 1) + 1 for id in banned])
    if not callable(step):
        raise Wrong(f"make_step returned {type(step).__name__}, expected the step, a function without arguments")
    graph = _captured(step)
    token_ids.zero_()
    positions.fill_(least + 19)
    graph.replay()
    values = torch.tensor(ids), torch.tensor(at)
    token_ids.copy_(values[0])
    positions.copy_(values[1])
    got = graph.replay()
    after = handed, token_ids, positions
    require_unchanged((scores, *values), after, ("scores", "token_ids", "positions"), ": a step only reads it")
    return got


def _captured(step: Callable[[], Any]) -> Any:
    # What is given has a shape, a dtype and an address; a number, which has no shape, is a kernel's argument.
    if any(name in FROM_PYTHON and len(given) > 2 for name, (given, *_) in record_step(step, []).ops):
        raise Wrong(
            "the step makes a tensor of a Python list, which a GPU would have to fetch from the host during the "
            "capture: make it once, outside of step"
        )
    try:
        return capture(step, torch.device("cpu"))
    except RuntimeError as error:
        raise Wrong(f"the capture is refused: {error}") from error


MADE_ONCE = "banned_ids = torch"
STEP_MISTAKES = {
    "in every replay each position counts as 0: does the step read `positions` itself, and not a copy?": {
        "+= positions": "+= 0"
    },
    "in every replay the position is that of the capture": {
        "def step():\n": "position = -1\n\n    def step():\n        nonlocal position\n        position += 1\n",
        "+= positions": "+= position",
    },
    "after token 0 comes only token 0": {"torch.where(token_ids == 0, 0, tokens)": "tokens"},
    "a banned token is never chosen": {"allowed[:, banned_ids] = -torch.inf": "pass"},
}
STEPS = as_solved("13.3", STEP_MISTAKES, explain_tensor, _replay_with, torch=torch)
REPLAYED = inputs("V", "banned", "token_ids", "positions", "least position", "seed")
register("13.3", Comparison(draw(_draw_step, 150), STEPS, REPLAYED, _replay_with))

# 13.4


@exercise("13.4")
def graphs_from_the_start(answer: type[Stage]) -> None:
    require_stage(answer, "Graphs", "graph_of")
    for num_layers, max_num_seqs in ((1, 9), (1, 9), (2, 9), (1, 40)):  # no stage may use another's graphs
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
    model, sizes = drawn_model(num_layers), {"num_blocks": 40, "block_size": 4, "max_num_seqs": max_num_seqs}
    stage = answer(model, **sizes)
    require_sizes(stage, **sizes)
    if missing := sorted({*stage.buckets, max_num_seqs} - set(stage.graphs)):
        raise Wrong(f"made with max_num_seqs={max_num_seqs}, the stage has no graph for {missing}")
    if stage.num_free_blocks != 40:
        raise Wrong(f"made with num_blocks=40, {stage.num_free_blocks} are free: free what the captures took")
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
    if stage.graphs != graphs:
        raise Wrong(f"batches of {list(GROWING)} were decoded, and graphs were captured again, expected none")
    if (replayed := sum(graph.replay.call_count for graph in graphs.values())) != len(GROWING):
        raise Wrong(f"{replayed} of {len(GROWING)} steps replayed a graph of self.graphs, expected all")
    reference = reference_generate(model, prompts, len(GROWING) + 1)
    for i, (seq, want) in enumerate(zip(seqs, reference, strict=True)):
        if message := explain_tokens(seq.output_ids, want[: len(seq.output_ids)]):
            raise Wrong(f"batches of {list(GROWING)}, sequence {i}: {message}")
