"""Lesson 13, steps and stages that are captured: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach import check
from roseinfer.generate import begin
from roseinfer.graphs import capture
from roseinfer.sequence import SamplingParams
from stages import Graphs, PackedWeights

pytestmark = pytest.mark.slow


# 13.3


def step_maker(make_tokens):
    """A make_step from tokens(scores, token_ids, positions, banned) with `banned` as a tensor that is made once."""

    def make_step(scores, token_ids, positions, banned):
        return partial(make_tokens, scores, token_ids, positions, torch.tensor(banned))

    return make_step


def tokens_of(scores, token_ids, positions, banned, score=-torch.inf, ends=True):
    """score: of the banned ones. ends: token 0 comes after every token 0."""
    allowed = scores[token_ids]
    allowed[:, banned] = score
    allowed[:, 0] += positions
    tokens = allowed.argmax(-1)
    return torch.where(token_ids == 0, 0, tokens) if ends else tokens


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


def changes_the_table(scores, token_ids, positions, banned):
    scores[:, banned] = -torch.inf
    return partial(tokens_of, scores, token_ids, positions, torch.tensor(banned))


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


def remembers_ends(scores, token_ids, positions, banned):
    banned_ids, ended = torch.tensor(banned), torch.zeros_like(token_ids, dtype=torch.bool)

    def step():
        ended.logical_or_(token_ids == 0)
        return torch.where(ended, 0, tokens_of(scores, token_ids, positions, banned_ids))

    return step


def test_what_no_mistake_explains_is_not_explained():
    """A step that counts positions on the device neither reads a copy nor has a position that stays."""

    def counts_on_the_device(scores, token_ids, positions, banned):
        position, banned_ids = torch.zeros_like(positions), torch.tensor(banned)

        def step():
            tokens = tokens_of(scores, token_ids, position, banned_ids)
            position.add_(1)
            return tokens

        return step

    verdict = check("13.3", counts_on_the_device)
    assert verdict.mistake.endswith("expected 4"), verdict


test_wrong_steps = wrong_answers(
    "13.3",
    {
        "position in Python": (counts_itself, "the position is that of the capture"),
        "a list each time": (makes_the_list, "the step makes a tensor of a Python list"),
        "copies of the buffers": (copies_its_buffers, "the step reads a copy of its buffers"),
        "the table changed": (changes_the_table, "scores was handed in, and you have changed it"),
        "item": (step_maker(waits), "the capture is refused: a step that is recorded must not wait"),
        "an if": (step_maker(asks), "the host waits for a value"),
        "a mask": (step_maker(puts_under_a_mask), "an index by a mask"),
        "a list of tokens": (step_maker(lambda *a: tokens_of(*a).tolist()), "expected a tensor, got list"),
        "row 0's position": (
            step_maker(lambda s, t, p, b: tokens_of(s, t, p[:1].expand_as(p), b)),
            "have the position of row 0",
        ),
        "counts positions on": (step_maker(changes_its_buffers), "positions was handed in, and you have changed it"),
        "goes on after the end": (step_maker(lambda *a: tokens_of(*a, ends=False)), "values differ"),
        "banned ones chosen": (step_maker(lambda s, t, p, b: tokens_of(s, t, p, b[:0])), "values differ"),
        "a table of 16 positions": (
            step_maker(lambda s, t, p, b: tokens_of(s, t, p.clamp(max=15), b)),
            "1 of 3 values differ",
        ),
        "positions in 16 bits": (step_maker(lambda s, t, p, b: tokens_of(s, t, p.short(), b)), "positions=[100"),
        "scores in bf16": (step_maker(lambda s, t, p, b: tokens_of(s.bfloat16(), t, p, b)), "values differ"),
        "no position": (
            step_maker(lambda s, t, p, b: tokens_of(s, t, torch.zeros_like(p), b)),
            "in every replay each position counts as 0",
        ),
        "the largest position": (
            step_maker(lambda s, t, p, b: tokens_of(s, t, p.max().expand_as(p), b)),
            "1 of 2 values differ",
        ),
        "banned ones at -100": (step_maker(lambda *a: tokens_of(*a, score=-100.0)), "values differ"),
        "the first banned one": (step_maker(lambda s, t, p, b: tokens_of(s, t, p, b[:1])), "values differ"),
        "tokens in int32": (step_maker(lambda *given: tokens_of(*given).int()), "dtype int32, expected int64"),
        "an end remembered": (remembers_ends, "got 0, expected"),
        "the tokens themselves": (lambda s, t, p, b: tokens_of(s, t, p, b), "expected the step"),
    },
)


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


def as_an_object(scores, token_ids, positions, banned):
    class Step:
        banned_ids = torch.tensor(banned)

        def __call__(self):
            allowed = scores[token_ids].double().index_fill(1, self.banned_ids, -torch.inf)
            best = torch.cat([allowed[:, :1] + positions[:, None], allowed[:, 1:]], dim=1).topk(1).indices[:, 0]
            return best * token_ids.ne(0)

    return Step()


def with_one_hots(scores, token_ids, positions, banned):
    is_banned = torch.isin(torch.arange(len(scores)), torch.tensor(banned))
    rows = torch.eye(len(scores))

    def step():
        allowed = (rows.index_select(0, token_ids) @ scores).masked_fill(is_banned, -torch.inf)
        allowed[:, 0] = allowed[:, 0] + positions
        return allowed.argmax(-1).masked_fill(token_ids == 0, 0)

    return step


test_right_steps = right_answers(
    "13.3",
    {
        "a table made before": with_a_table,
        "row after row": row_after_row,
        "its own buffers": in_buffers_of_its_own,
        "an object, in float64": as_an_object,
        "products with one-hots": with_one_hots,
    },
)


# 13.4


def warm(at_start, **methods):
    """A stage that runs at_start(stage) after its __init__."""

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


kept = {}


def share(stage):
    """The graphs of the first stage for all."""
    if not kept:
        capture_all(stage)
        kept.update(stage.graphs)
    stage.graphs = {bucket: kept.get(bucket, kept[max(kept)]) for bucket in stage.buckets}


def capture_again(self, bucket):
    self.graphs.pop(bucket, None)
    return Graphs.graph_of(self, bucket)


class Eager:
    def __init__(self, replay):
        self.replay = replay


def capture_in_vain(stage):
    capture_all(stage)
    stage.graph_of = lambda bucket: Eager(stage.static_step(bucket))


def capture_few(stage):
    stage.buckets = [1, 2]
    capture_all(stage)


def capture_at_the_first_replay(stage):
    """Graphs in name: each is captured when a batch first needs it."""

    def capture_and_replay(bucket):
        graph = stage.graphs[bucket] = capture(stage.static_step(bucket), stage.model.device)
        return graph.replay()

    stage.graphs = {bucket: Eager(partial(capture_and_replay, bucket)) for bucket in stage.buckets}


def move_the_dummy_block(stage):
    capture_all(stage)
    stage.dummy_block = 0


class LosesSizes(Graphs):
    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, max_num_seqs=max_num_seqs)
        with torch.inference_mode():
            capture_all(self)


class TooEarly(Graphs):
    def __init__(self, model, **sizes):
        self.graphs = {}
        capture_all(self)
        super().__init__(model, **sizes)


test_wrong_warm_graphs = wrong_answers(
    "13.4",
    {
        "nothing": (warm(lambda stage: None), "the stage has no graph for [1, 2, 4, 8, 9]"),
        "all but the smallest": (warm(lambda s: capture_all(s, s.buckets[1:])), "the stage has no graph for [1]"),
        "one graph for all": (warm(capture_the_largest_for_all), "the graph for 1 computes 9 rows"),
        "requests kept": (warm(keep_a_request), "free what the captures took"),
        "captured again": (warm(capture_all, graph_of=capture_again), "graphs were captured again"),
        "not used": (warm(capture_in_vain), "0 of 6 steps replayed a graph"),
        "sizes that are lost": (LosesSizes, "made with block_size=4, the stage has 64: pass all sizes on"),
        "too early": (TooEarly, "object has no attribute 'buckets'"),
        "too few buckets": (warm(capture_few), "the largest batch fits none"),
        "shared by all stages": (warm(share), "sequence 0: token"),
        "the stage before": (PackedWeights, "expected a subclass of Graphs, got PackedWeights"),
        "a function": (lambda model: None, "expected a subclass of Graphs, got <lambda>"),
        "up to 16": (warm(lambda s: capture_all(s, [b for b in s.buckets if b <= 16])), "has no graph for [32, 40]"),
        "at the first replay": (
            warm(capture_at_the_first_replay),
            "self.graphs[1] is of type Eager, expected a graph made by capture",
        ),
        "a running block as the dummy": (warm(move_the_dummy_block), "sequence 0: token"),
    },
)


def capture_two(stage):
    """The largest first."""
    stage.buckets = [1, stage.max_num_seqs][stage.max_num_seqs == 1 :]
    capture_all(stage, stage.buckets[::-1])


class ByHand(Graphs):
    """Without graph_of; on a GPU each would share the memory of the one before."""

    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.write_padding(0, max_num_seqs)
        graph = None
        with torch.inference_mode():
            for bucket in reversed(self.buckets):
                graph = self.graphs[bucket] = capture(self.static_step(bucket), model.device, memory=graph)


def decode_and_free(stage):
    for bucket in stage.buckets:
        seqs = begin(stage, [[1]] * min(bucket, stage.tables.num_blocks), SamplingParams(max_tokens=2))
        stage.decode(seqs)
        for seq in seqs:
            stage.free(seq)


def capture_idle(stage):
    """With the inputs as they were made, zeros: each row writes to block 0, which no sequence holds yet."""
    for bucket in stage.buckets:
        stage.graph_of(bucket)


test_right_warm_graphs = right_answers(
    "13.4",
    {
        "two buckets": warm(capture_two),
        "by hand": ByHand,
        "with inputs of zeros": warm(capture_idle),
        "by decoding": warm(decode_and_free),
    },
)
