"""Lesson 13: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from functools import partial

import numpy as np
import torch
from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers

from roseinfer.contract import PROMISES
from roseinfer.generate import begin
from roseinfer.graphs import capture
from roseinfer.sequence import SamplingParams
from roseinfer.teach.exercises.lesson13 import TOUCHED
from stages import Graphs, PackedWeights


def bucket_of(size, buckets):
    return min((bucket for bucket in buckets if bucket >= size), default=None)


def cost(sizes, buckets, choose=bucket_of):
    pairs = [(size, choose(size, buckets)) for size in sizes]
    used = [(size, bucket) for size, bucket in pairs if bucket is not None]
    return sum(bucket - size for size, bucket in used), len({bucket for _, bucket in used})


def rows_by(rows):
    return lambda sizes, buckets: (rows(sizes, buckets), cost(sizes, buckets)[1])


def captures_by(captures):
    return lambda sizes, buckets: (cost(sizes, buckets)[0], captures(sizes, buckets))


@wrong_answers(
    "13.1",
    {
        "larger": (
            rows_by(lambda s, b: cost(s, b, lambda n, b: min((x for x in b if x > n), default=None))[0]),
            "a batch as large as a bucket fits into it",
        ),
        "all rows": (
            rows_by(lambda s, b: sum(bucket_of(n, b) or 0 for n in s)),
            "the sequences' own are not for nobody",
        ),
        "the largest bucket": (
            rows_by(lambda s, b: sum(max(b) - n for n in s if max(b) >= n)),
            "the smallest bucket that is large enough, not the largest",
        ),
        "the first bucket": (
            rows_by(lambda s, b: cost(s, b, lambda n, b: next((x for x in b if x >= n), None))[0]),
            "buckets come in no order",
        ),
        "less than none": (
            rows_by(lambda s, b: sum((bucket_of(n, b) or max(b)) - n for n in s)),
            "has no rows too many, and none too few",
        ),
        "every size once": (rows_by(lambda s, b: cost(list(dict.fromkeys(s)), b)[0]), "every step counts"),
        "the nearest bucket": (
            rows_by(lambda s, b: sum(min(abs(x - n) for x in b) for n in s)),
            "the nearest bucket may be too small",
        ),
        "a capture a step": (
            captures_by(lambda s, b: sum(bucket_of(n, b) is not None for n in s)),
            "a graph is captured once",
        ),
        "a capture a bucket": (captures_by(lambda s, b: len(b)), "a bucket that no batch needs is never captured"),
        "a capture a size": (
            captures_by(lambda s, b: len({n for n in s if bucket_of(n, b)})),
            "not just one size",
        ),
        "no bucket counted as one": (
            captures_by(lambda s, b: len({bucket_of(n, b) for n in s})),
            "a batch that no bucket is large enough for is not captured",
        ),
        "one number": (lambda s, b: cost(s, b)[0], "expected (rows_for_nobody, captures)"),
        "the other way round": (lambda s, b: cost(s, b)[::-1], "expected"),
        "printed": (lambda s, b: print(cost(s, b)), "got None"),
    },
)
def test_wrong_costs(answer, message):
    assert_refused("13.1", answer, message)


def by_bisection(sizes, buckets):
    buckets = sorted(buckets)
    used = Counter(bisect_left(buckets, size) for size in sizes)
    rows = sum(buckets[i] * n for i, n in used.items() if i < len(buckets))
    return [rows - sum(size for size in sizes if size <= buckets[-1]), len([i for i in used if i < len(buckets)])]


def in_numpy(sizes, buckets):
    grid = np.array(sorted(buckets))[None, :] - np.array(sizes)[:, None]
    fits = (grid >= 0).any(axis=1)
    first = (grid >= 0).argmax(axis=1)
    return np.array([grid[np.arange(len(sizes)), first][fits].sum(), len(np.unique(first[fits]))])


@right_answers(
    "13.1",
    {
        "by bisection, a list": by_bisection,
        "numpy": in_numpy,
        "tensors": lambda s, b: tuple(map(torch.tensor, cost(s, b))),
    },
)
def test_right_costs(answer):
    assert_accepted("13.1", answer)


# 13.2


def fill(inputs, num_seqs, num_tokens, bucket, dummy, size, **instead):
    """Right, but for what `instead` writes: by the name of the array, a value or a list of them."""
    missing = bucket - num_tokens
    values = {
        "slot_mapping": dummy * size,
        "query_start": list(range(num_tokens + 1, bucket + 1)),
        "context_lens": 1,
        "block_tables": dummy,
    } | instead
    seqs = slice(num_seqs, num_seqs + missing)
    parts = {
        "slot_mapping": inputs["slot_mapping"][num_tokens:bucket],
        "query_start": inputs["query_start"][num_seqs + 1 : num_seqs + missing + 1],
        "context_lens": inputs["context_lens"][seqs],
        "block_tables": inputs["block_tables"][seqs, 0],
    }
    for name, value in values.items():
        if value is not None and missing:
            parts[name][:] = value


def filled_with(**instead):
    """instead: a function of (num_seqs, num_tokens, bucket, dummy, size), or None for what is left as it was."""
    return lambda inputs, *sizes: fill(inputs, *sizes, **{k: v and v(*sizes) for k, v in instead.items()})


def as_for_a_decode_step(inputs, num_seqs, num_tokens, bucket, dummy, size):
    """The stage's own, which knows one row a sequence."""
    rows = slice(num_seqs, bucket)
    inputs["slot_mapping"][rows] = dummy * size
    inputs["query_start"][num_seqs + 1 : bucket + 1] = np.arange(num_seqs + 1, bucket + 1)[
        : len(inputs["query_start"][num_seqs + 1 : bucket + 1])
    ]
    inputs["context_lens"][rows] = 1
    inputs["block_tables"][rows, 0] = dummy


def in_new_arrays(inputs, *sizes):
    for name, array in inputs.items():
        inputs[name] = array.copy()
    fill(inputs, *sizes)


def over_the_last(inputs, num_seqs, num_tokens, bucket, dummy, size):
    fill(inputs, num_seqs, num_tokens, bucket, dummy, size)
    inputs["context_lens"][num_seqs - 1 : num_seqs + bucket - num_tokens] = 1
    inputs["slot_mapping"][num_tokens - 1 : bucket] = dummy * size


@wrong_answers(
    "13.2",
    {
        "slot 0": (
            filled_with(slot_mapping=lambda *_: 0),
            "writes to slot 0, but block 0 is handed out like any other",
        ),
        "slots left": (filled_with(slot_mapping=None), "may be a living sequence's by now"),
        "the block as a slot": (
            filled_with(slot_mapping=lambda n, t, b, dummy, size: dummy),
            "that is the number of the dummy block",
        ),
        "slot -1": (filled_with(slot_mapping=lambda *_: -1), "a negative index writes at the end of the pool"),
        "the block behind": (
            filled_with(slot_mapping=lambda n, t, b, dummy, size: (dummy + 1) * size),
            "only the dummy block",
        ),
        "query_start left": (filled_with(query_start=None), "it does not go on behind the batch"),
        "sequences without rows": (filled_with(query_start=lambda n, t, *_: t), "it has no row"),
        "sequences counted": (
            filled_with(query_start=lambda n, t, bucket, *_: list(range(n + 1, n + 1 + bucket - t))),
            "it counts rows",
        ),
        "one too early": (
            filled_with(query_start=lambda n, t, bucket, *_: list(range(t, bucket))),
            "begins and ends at",
        ),
        "no context": (filled_with(context_lens=lambda *_: 0), "its own token is written, then attended to"),
        "context left": (filled_with(context_lens=None), "99 tokens of an older step"),
        "tables left": (filled_with(block_tables=None), "its token lies in"),
        "block 0": (filled_with(block_tables=lambda *_: 0), "reads block 0"),
        "as for a decode step": (as_for_a_decode_step, "slot_mapping: the batch's own part"),
        "new arrays": (in_new_arrays, "another array now, and the graph reads the one of before"),
        "over the batch's last": (over_the_last, "the batch's own part"),
        "nothing written": (lambda inputs, *sizes: dict(inputs), "nothing in inputs has changed"),
    },
)
def test_wrong_fillings(answer, message):
    assert_refused("13.2", answer, message)


def row_by_row(inputs, num_seqs, num_tokens, bucket, dummy, size):
    for seq, row in enumerate(range(num_tokens, bucket), start=num_seqs):
        inputs["slot_mapping"][row] = dummy * size + row % size
        inputs["query_start"][seq + 1] = inputs["query_start"][seq] + 1
        inputs["context_lens"][seq] = row % size + 1
        inputs["block_tables"][seq] = dummy


def to_the_end(inputs, num_seqs, num_tokens, bucket, dummy, size):
    """Also what lies behind the bucket."""
    inputs["slot_mapping"][num_tokens:] = dummy * size + size - 1
    inputs["query_start"][num_seqs:] = num_tokens + np.arange(len(inputs["query_start"]) - num_seqs)
    inputs["context_lens"][num_seqs:] = 1
    inputs["block_tables"][num_seqs:] = dummy


@right_answers(
    "13.2",
    {"row by row, each its own slot": row_by_row, "to the end of the arrays": to_the_end, "through views": fill},
)
def test_right_fillings(answer):
    assert_accepted("13.2", answer)


# 13.3


def step_maker(make_tokens):
    """A make_step from tokens(scores, token_ids, positions, banned) with `banned` as a tensor that is made once."""

    def make_step(scores, token_ids, positions, banned):
        return partial(make_tokens, scores, token_ids, positions, torch.tensor(banned))

    return make_step


def tokens_of(scores, token_ids, positions, banned):
    allowed = scores[token_ids]
    allowed[:, banned] = -torch.inf
    allowed[:, 0] += positions
    return torch.where(token_ids == 0, 0, allowed.argmax(-1))


def counts_itself(scores, token_ids, positions, banned):
    position, banned_ids = 0, torch.tensor(banned)

    def step():
        nonlocal position
        tokens = tokens_of(scores, token_ids, torch.full_like(positions, position), banned_ids)
        position += 1
        return tokens

    return step


def makes_the_list(scores, token_ids, positions, banned):
    return lambda: tokens_of(scores, token_ids, positions, torch.tensor(banned))


def copies_its_buffers(scores, token_ids, positions, banned):
    return partial(tokens_of, scores, token_ids.clone(), positions.clone(), torch.tensor(banned))


def waits(scores, token_ids, positions, banned):
    position = positions[0].item()
    return tokens_of(scores, token_ids, torch.full_like(positions, position), banned)


def asks(scores, token_ids, positions, banned):
    tokens = tokens_of(scores, torch.where(token_ids == 0, 1, token_ids), positions, banned)
    if (token_ids == 0).any():
        tokens = torch.where(token_ids == 0, 0, tokens)
    return tokens


def puts_under_a_mask(scores, token_ids, positions, banned):
    tokens = tokens_of(scores, token_ids, positions, banned)
    tokens[token_ids == 0] = torch.zeros_like(tokens[token_ids == 0])
    return tokens


def changes_its_buffers(scores, token_ids, positions, banned):
    tokens = tokens_of(scores, token_ids, positions, banned)
    positions.add_(1)
    return tokens


def forgets_the_end(scores, token_ids, positions, banned):
    allowed = scores[token_ids]
    allowed[:, banned] = -torch.inf
    allowed[:, 0] += positions
    return allowed.argmax(-1)


def forgets_the_banned(scores, token_ids, positions, banned):
    allowed = scores[token_ids]
    allowed[:, 0] += positions
    return torch.where(token_ids == 0, 0, allowed.argmax(-1))


@wrong_answers(
    "13.3",
    {
        "position in Python": (counts_itself, "a position that has stayed what it was at the capture"),
        "a list each time": (makes_the_list, "the step makes a tensor of a Python list"),
        "copies of the buffers": (copies_its_buffers, "the step reads a copy of its buffers"),
        "item": (step_maker(waits), "the capture is refused: a step that is recorded must not wait"),
        "an if": (step_maker(asks), "the host waits for a value"),
        "a mask": (step_maker(puts_under_a_mask), "an index by a mask"),
        "a list of tokens": (step_maker(lambda *a: tokens_of(*a).tolist()), "expected a tensor, got list"),
        "row 0's position": (
            step_maker(lambda s, t, p, b: tokens_of(s, t, p[:1].expand_as(p), b)),
            "the position of row 0, whatever the row",
        ),
        "counts positions on": (step_maker(changes_its_buffers), "positions was handed in, and you have changed it"),
        "goes on after the end": (step_maker(forgets_the_end), "values differ"),
        "banned ones chosen": (step_maker(forgets_the_banned), "values differ"),
        "the tokens themselves": (lambda s, t, p, b: tokens_of(s, t, p, b), "must return the step"),
    },
)
def test_wrong_steps(answer, message):
    assert_refused("13.3", answer, message)


def with_a_table(scores, token_ids, positions, banned):
    """All that does not depend on the position is made before."""
    table = scores.clone()
    table[:, banned] = -torch.inf
    table[0, 1:] = -torch.inf
    at_the_end = torch.zeros(scores.shape[0])
    at_the_end[0] = 1
    return lambda: (table.index_select(0, token_ids) + at_the_end * positions[:, None]).max(dim=1).indices


def row_after_row(scores, token_ids, positions, banned):
    allowed = [token for token in range(len(scores)) if token not in banned]
    columns = torch.tensor(allowed)

    def step():
        rows = []
        for row in range(len(token_ids)):
            best = scores.index_select(0, token_ids[row : row + 1])[0, columns]
            best = torch.cat([best[:1] + positions[row], best[1:]])
            rows.append(columns.index_select(0, best.argmax().view(1)) * (token_ids[row] != 0))
        return torch.cat(rows)

    return step


def in_buffers_of_its_own(scores, token_ids, positions, banned):
    allowed, tokens = torch.empty(len(token_ids), len(scores)), torch.empty_like(token_ids)
    penalty = torch.zeros(len(scores))
    penalty[banned] = -torch.inf

    def step():
        torch.index_select(scores, 0, token_ids, out=allowed)
        allowed.add_(penalty)[:, 0].add_(positions)
        torch.argmax(allowed, dim=-1, out=tokens)
        return tokens.masked_fill_(token_ids == 0, 0)

    return step


@right_answers(
    "13.3",
    {"a table made before": with_a_table, "row after row": row_after_row, "its own buffers": in_buffers_of_its_own},
)
def test_right_steps(answer):
    assert_accepted("13.3", answer)


# 13.4


def warm(at_start, **methods):
    """A stage that runs at_start(stage) behind its __init__."""

    def __init__(self, model, **sizes):
        Graphs.__init__(self, model, **sizes)
        with torch.inference_mode():
            at_start(self)

    return type("WarmGraphs", (Graphs,), {"__init__": __init__, **methods})


def capture_all(stage, buckets=None):
    for bucket in buckets or stage.buckets:
        stage.write_padding(0, bucket)
        stage.graph_of(bucket)


def capture_the_largest_for_all(stage):
    stage.write_padding(0, stage.buckets[-1])
    graph = stage.graph_of(stage.buckets[-1])
    stage.graphs = dict.fromkeys(stage.buckets, graph)


def keep_a_request(stage):
    capture_all(stage)
    begin(stage, [[1]], SamplingParams(max_tokens=3))


class Shared(Graphs):
    """The graphs of the first stage for all."""

    kept: dict = {}

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        if not self.kept:
            capture_all(self)
            self.kept.update(self.graphs)
        self.graphs = {bucket: self.kept.get(bucket, self.kept[max(self.kept)]) for bucket in self.buckets}


class Again(Graphs):
    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        capture_all(self)

    def graph_of(self, bucket):
        self.graphs.pop(bucket, None)
        return super().graph_of(bucket)


class Eager:
    def __init__(self, replay):
        self.replay = replay


class Unused(Graphs):
    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        capture_all(self)
        self.made = True

    def graph_of(self, bucket):
        return Eager(self.static_step(bucket)) if hasattr(self, "made") else super().graph_of(bucket)


class TooEarly(Graphs):
    def __init__(self, model, **sizes):
        self.graphs = {}
        capture_all(self)
        super().__init__(model, **sizes)


class FewBuckets(Graphs):
    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.buckets = [1, 2]
        capture_all(self)


@wrong_answers(
    "13.4",
    {
        "nothing": (warm(lambda stage: None), "the stage has no graph for [1, 2, 4, 8, 9]"),
        "all but the smallest": (warm(lambda s: capture_all(s, s.buckets[1:])), "the stage has no graph for [1]"),
        "one graph for all": (warm(capture_the_largest_for_all), "the graph for 1 computes 9 rows"),
        "requests kept": (warm(keep_a_request), "what was begun has to be freed"),
        "captured again": (Again, "graphs were captured again"),
        "not used": (Unused, "and 0 of them replayed a graph"),
        "too early": (TooEarly, "object has no attribute 'buckets'"),
        "too few buckets": (FewBuckets, "the largest batch fits into none"),
        "shared by all stages": (Shared, "sequence 0: token"),
        "the stage before": (PackedWeights, "expected a subclass of Graphs, got PackedWeights"),
        "a function": (lambda model: None, "expected a subclass of a stage"),
    },
)
def test_wrong_warm_graphs(answer, message):
    Shared.kept.clear()
    assert_refused("13.4", answer, message)


class LargestFirst(Graphs):
    """Two buckets only."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.buckets = [1, self.max_num_seqs][self.max_num_seqs == 1 :]
        capture_all(self, self.buckets[::-1])


class ByHand(Graphs):
    """Without graph_of; on a GPU each would share the memory of the one before."""

    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.write_padding(0, max_num_seqs)
        graph = None
        with torch.inference_mode():
            for bucket in reversed(self.buckets):
                graph = self.graphs[bucket] = capture(self.static_step(bucket), model.device, memory=graph)


def capture_idle(stage):
    """With the inputs as they were made: no sequence has a row, so no row reads or writes."""
    for bucket in stage.buckets:
        stage.graph_of(bucket)


@right_answers(
    "13.4",
    {"two buckets": LargestFirst, "by hand": ByHand, "with inputs of zeros": warm(capture_idle)},
)
def test_right_warm_graphs(answer):
    assert_accepted("13.4", answer)


def test_every_promise_that_captures_touch_is_one():
    assert {promise.title for promise in PROMISES} >= TOUCHED
