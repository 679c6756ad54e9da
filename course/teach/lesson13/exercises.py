"""Checkers of lesson 13: buckets, padding rows, a step that can be captured, graphs from the start."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.generate import begin, decode_step
from roseinfer.graphs import Graph, capture
from roseinfer.profiling.replay import FROM_PYTHON, record_step
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved_by_name
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor, explain_tokens
from ..exercises.solutions import solution
from ..exercises.stage_checks import drawn_model, require_sizes, require_stage
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .padding_checks import require_filled

CPU = torch.device("cpu")


# 13.1


def _draw_run(rng: Random) -> tuple[list[int], list[int]]:
    sizes = rng.choice(((1, 2, 3, 4, 6, 8, 12, 16), (1, 8, 16, 100, 255, 256, 257, 4000)))
    buckets = rng.sample(sizes, rng.randint(1, 5))
    top = max(buckets) + rng.choice((0, 0, 3))
    return [rng.randint(1, top) for _ in range(rng.randint(1, 8))], buckets


RUNS = [
    ([4], [4]),
    ([3], [4]),
    ([3], [4, 8]),
    ([3, 3], [8, 4]),
    ([5], [4]),
    ([1, 2, 3], [1, 2, 4]),
    ([3] * 400 + [10_000], [100_000, 7]),
    *draw(_draw_run),
]
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
        "every step counts, also one of a size that came before": {"bucket in used)": "bucket in set(used))"},
        "the nearest bucket may be too small": {
            LARGE_ENOUGH: "if abs(bucket - size) == min(abs(other - size) for other in buckets)]",
            "bucket - size for": "abs(bucket - size) for",
        },
    },
    "captures": {
        "a graph is captured once, and used on every later step": {NUM_CAPTURES: "len(used)"},
        "a bucket that no batch needs is never captured": {NUM_CAPTURES: "len(buckets)"},
        "a graph serves every batch that its bucket is the smallest for, not just one size": {
            "{bucket for _, bucket": "{size for size, bucket"
        },
        "a batch that no bucket is large enough for is not captured": {LARGE_ENOUGH: f"{LARGE_ENOUGH} or [0]"},
    },
}
COSTS = as_solved_by_name("13.1", COST_MISTAKES)
register("13.1", Comparison(RUNS, COSTS, inputs("batch_sizes", "buckets")))

# 13.2

register("13.2", require_filled)

# 13.3

END = 0


def _next_tokens(scores: Tensor, token_ids: Tensor, positions: Tensor, banned: list[int]) -> Tensor:
    return solution("13.3", torch=torch)(scores, token_ids, positions, banned)()


@exercise("13.3")
def step_to_capture(answer: Callable[..., Any]) -> None:
    require_all(STEPS, partial(_judge_step, answer), _describe_step)


Steps = tuple[int, int, tuple[int, ...], int, int]  # size of the vocabulary, rows, banned ids, first position, seed
STARTS = (0, 0, 1000, 100_000)
WIDE: Steps = (40, 8, (3, 7), 0, 7)  # so much varies that no mistake looks like another


def _draw_step(rng: Random) -> Steps:
    vocab = rng.randint(5, 9)
    banned = tuple(rng.sample(range(1, vocab), rng.randint(1, 2)))
    return vocab, rng.randint(1, 4), banned, rng.choice(STARTS), rng.randrange(1000)


STEPS: list[Steps] = [
    (5, 1, (4,), 0, 0),
    (5, 2, (1,), 0, 1),
    (6, 3, (2, 3), 0, 2),
    (40, 20, (3, 7, 9, 20, 39), 0, 3),
    *draw(_draw_step),
]


def _describe_step(vocab: int, num_rows: int, banned: tuple[int, ...], start: int, seed: int) -> str:
    return f"{vocab} tokens, {num_rows} rows, banned={list(banned)}"


def _draw_scores(vocab: int, start: int, seed: int) -> Tensor:
    """Draw scores, exact in fp32 and all different; token 0 is sometimes the best at positions `start` to start + 20.

    Far from 0 they are negative, and a shorter dtype cannot tell them apart.
    """
    places = torch.randperm(vocab * vocab, generator=torch.Generator().manual_seed(seed)).view(vocab, vocab)
    step = 2.0 ** -math.ceil(math.log2(vocab**2 / 20))  # between two scores, which go from 0 to at most 20
    scores = step * places - start
    scores[:, END] -= start + step / 2
    return scores


def _judge_step(answer: Callable[..., Any], *case: Any) -> None:
    scores, banned, replays = _replayed(answer, *case)
    for i, (ids, at, got) in enumerate(replays, 1):
        if message := explain_tensor(got, _next_tokens(scores, ids, at, banned)):
            where = f"replay {i}, token_ids={ids.tolist()}, positions={at.tolist()}"
            raise Wrong(f"{where}: {message}{_why_stale(answer)}")


@torch.inference_mode()
def _replayed(
    answer: Callable[..., Any], vocab: int, num_rows: int, banned: tuple[int, ...], start: int, seed: int
) -> tuple[Tensor, list[int], list[tuple[Tensor, Tensor, Tensor]]]:
    """Capture the answer's step; return the scores, the banned tokens, six replays: (token_ids, positions, result)."""
    draw_ints = partial(torch.randint, generator=torch.Generator().manual_seed(seed))
    scores = _draw_scores(vocab, start, seed)
    token_ids, positions = torch.ones(num_rows, dtype=torch.long), torch.zeros(num_rows, dtype=torch.long)
    handed, ids = scores.clone(), list(banned)
    step = answer(handed, token_ids, positions, ids)
    if not callable(step):
        raise Wrong(f"make_step returned {type(step).__name__}, expected the step, a function without arguments")
    _require_eager(step, scores, token_ids, positions, banned, "called once")
    others = torch.ones_like(token_ids), torch.full_like(positions, start), [b % (vocab - 1) + 1 for b in banned]
    other = answer(scores.flip(0), *others)
    _require_eager(step, scores, token_ids, positions, banned, "called after a second make_step, for other buffers")
    graph, graph_of_other = _captured(step), _captured(other)
    replays: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(6):
        token_ids.copy_(draw_ints(vocab, (num_rows,)))
        positions.copy_(start + draw_ints(20, (num_rows,)))
        before = token_ids.clone(), positions.clone()
        got = graph.replay()
        graph_of_other.replay()  # which must not write to what the first one returned
        require_unchanged(before, (token_ids, positions), ("token_ids", "positions"), ": a step only reads it")
        replays.append((*before, got.clone()))
    require_unchanged([scores, torch.tensor(banned)], [handed, torch.tensor(ids)], ("scores", "banned"))
    return scores, list(banned), replays


def _require_eager(
    step: Callable[[], Any], scores: Tensor, token_ids: Tensor, positions: Tensor, banned: Any, when: str
) -> None:
    """Check a call without a graph, on rows that all begin at position 0, as in the broken step."""
    got, want = step(), _next_tokens(scores, token_ids, positions, list(banned))
    if message := explain_tensor(got, want):
        raise Wrong(f"{when}, with token_ids={token_ids.tolist()} and positions of 0: {message}")


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


def _why_stale(answer: Callable[..., Any]) -> str:
    """Name the mistake that explains every token of a wide case; an empty string if none of the known ones does."""
    try:
        scores, banned, replays = _replayed(answer, *WIDE)
    except Exception:
        return ""

    def all_from(inputs: Callable[..., tuple[Tensor, Tensor]]) -> bool:
        return all(torch.equal(got, _next_tokens(scores, *inputs(ids, at), banned)) for ids, at, got in replays)

    if all_from(lambda ids, at: (ids, torch.zeros_like(at))):
        return "; in every replay each position counts as 0: does the step read `positions` itself, and not a copy?"
    if any(
        all_from(lambda ids, at, n=n: (ids, torch.full_like(at, n))) for n in range(1, 5)
    ):  # the check and the capture call it
        return "; in every replay the position is that of the capture"
    if all_from(lambda ids, at: (torch.ones_like(ids), torch.zeros_like(at))):
        return "; all are the tokens of the capture: the step reads a copy of its buffers"
    if all_from(lambda ids, at: (ids, at[:1].expand_as(at))):
        return "; all rows have the position of row 0"
    return ""


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
    require_sizes(stage, block_size=4, max_num_seqs=max_num_seqs)
    if not stage.buckets or max(stage.buckets) < max_num_seqs:
        raise Wrong(f"buckets={stage.buckets} for max_num_seqs={max_num_seqs}: the largest batch fits none")
    if missing := sorted(set(stage.buckets) - set(stage.graphs)):
        raise Wrong(f"made with buckets={stage.buckets}, the stage has no graph for {missing}")
    if stage.num_free_blocks != 40:
        raise Wrong(
            f"made with num_blocks=40, {stage.num_free_blocks} are free: expected all, so free what the captures took"
        )
    graphs: dict[int, Any] = dict(stage.graphs)
    replayed: list[Any] = []
    stage.write_padding(0, max_num_seqs)
    for bucket, graph in graphs.items():
        if not isinstance(graph, Graph):
            raise Wrong(f"self.graphs[{bucket}] is of type {type(graph).__name__}, expected a graph made by capture")
        if (rows := len(graph.replay()[0])) != bucket:
            raise Wrong(f"the graph for {bucket} computes {rows} rows, expected {bucket}")
        graphs[bucket].replay = partial(_noted, replayed, graph.replay)
    prompts = [[3 + i] * (1 + i % 3) for i in range(max(GROWING))]
    seqs = begin(stage, prompts, SamplingParams(max_tokens=len(GROWING) + 2, ignore_eos=True))
    for size in GROWING:
        decode_step(stage, seqs[:size])
    if again := sorted(bucket for bucket, graph in stage.graphs.items() if graphs.get(bucket) is not graph):
        raise Wrong(
            f"batches of {list(GROWING)} were decoded, and graphs were captured again for {again}, expected none"
        )
    if len(replayed) != len(GROWING):
        raise Wrong(f"{len(replayed)} of {len(GROWING)} steps replayed a graph of self.graphs, expected all")
    reference = reference_generate(model, prompts, len(GROWING) + 1)
    for i, (seq, want) in enumerate(zip(seqs, reference, strict=True)):
        if message := explain_tokens(seq.output_ids, want[: len(seq.output_ids)]):
            raise Wrong(f"batches of {list(GROWING)}, sequence {i}: {message}")


def _noted(replayed: list[bool], replay: Callable[[], Any]) -> Any:
    replayed.append(True)
    return replay()
