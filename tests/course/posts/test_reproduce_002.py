"""Post 002 reproduced on the engine: the order of requests, aborts with and without their half, and single steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import facts_of, grid, require_whole
from small_posts import FEWER_SLOTS, setting
from torch import nn

from course.posts import planned, post002
from course.posts.data import post_facts, post_table
from course.posts.post002 import aborts, arrays, order, qkv, steps
from course.posts.post002.arrays import write_each, write_overlapping
from course.posts.report import PostReport
from roseinfer.engine.engine import Engine
from roseinfer.models import GPT2
from roseinfer.models.weights import prepared_copy
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.reference import reference_generate, reference_logits

pytestmark = pytest.mark.slow

POST = "002"

ABOUT = post_facts("002") | FEWER_SLOTS


@pytest.fixture(scope="module")
def runs(reproduced) -> order.Runs:
    return reproduced.parts["simulated"]


@pytest.fixture
def config() -> PlannedEngine:
    return post002.engine(setting())


# The order of requests


def test_the_report_is_whole(report):
    explained = {
        "the same in the post's pool",
        "slots for the tokens of the warm-up's prompts",
        "rows that a prefill of 8 prompts of 8 tokens computes",
        "what output_logprob_shm holds",
        "blocks that are never freed, if a request is only marked",
        "requests of a prefill batch of 8 that find their token in their slot",
    }
    require_whole(report, explained)


def test_every_request_gets_all_of_its_tokens_in_each_order(runs: order.Runs):
    for (lengths, pool, _), row in runs.items():
        assert row["ended"] == ABOUT["num_requests"]
        assert row["output_tokens"] == sum(a.output_len for a in order.drawn_arrivals(ABOUT, lengths))
        assert (row["preemptions"] > 0) == (pool == order.POST_POOL)


def test_where_there_is_room_longest_first_takes_fewer_steps_and_a_longer_wait(runs: order.Runs):
    for lengths in order.LENGTHS:
        first, longest = (runs[lengths, order.LARGE_POOL, policy] for policy in order.NAMES)
        if lengths == order.EQUAL:
            assert longest["steps"] == first["steps"] and longest["seconds"] == first["seconds"]
            continue
        assert longest["steps"] < first["steps"] and longest["tail_seconds"] < first["tail_seconds"]
        assert longest["times"]["e2e_latency"]["mean"] > first["times"]["e2e_latency"]["mean"]


def test_equal_lengths_save_nothing(report: PostReport):
    (equal,) = [row for row in grid(report, "What would have to hold") if row[0] == order.EQUAL]
    assert equal[1:] == [0, 0.0, None, None]


def test_drawn_lengths_stay_the_same():
    about = post_facts("002")
    uniform = order.drawn_arrivals(about, "uniform, 1 to 511")
    assert [a.output_len for a in uniform[:6]] == [432, 388, 215, 133, 262, 207]  # of random.Random(0)
    assert (uniform[150].seconds, len(uniform)) == (1.0, 1500)
    for lengths in order.LENGTHS:
        assert 240 < sum(a.output_len for a in order.drawn_arrivals(about, lengths)) / 1500 < 270


def test_an_order_that_depends_on_the_lengths_has_no_winner():
    def made_up(*steps: tuple[int, int]) -> order.Runs:
        """Steps of first come and longest first, for each of the lengths that differ."""
        differing = [name for name in order.LENGTHS if name != order.EQUAL]
        return {
            (lengths, order.LARGE_POOL, policy): {"steps": n}
            for lengths, pair in zip(differing, steps, strict=True)
            for policy, n in zip(order.NAMES, pair, strict=True)
        }

    assert order.fewest_steps(made_up((3, 2), (5, 4)), order.LARGE_POOL) == "longest first"
    assert order.fewest_steps(made_up((3, 2), (4, 5)), order.LARGE_POOL) == "it depends"
    assert order.fewest_steps(made_up((3, 3), (4, 4)), order.LARGE_POOL) == "neither"


# Aborts


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_request_that_nobody_aborts_runs_one_step_more(small: GPT2, wanted: list[int]):
    size, prompts = 4, [[1 + i, 2, 3] for i in range(len(wanted))]
    for abort, extra in ((aborts.abort_the_set, 1), (aborts.abort_each, 0), (aborts.stop_each, 0)):
        engine = Engine(small, num_blocks=40, block_size=size, max_num_seqs=4, enable_prefix_caching=False)
        assert aborts.run_out(engine, prompts, wanted, abort) == [n + extra for n in wanted]
        engine.blocks.check()
        held = sum(-(-(3 + n - 1) // size) for n in wanted) if abort is aborts.stop_each else 0
        assert engine.blocks.num_blocks - engine.blocks.num_free == held


@pytest.mark.parametrize("abort", [aborts.abort_each, aborts.stop_each])
def test_blocks_that_are_not_given_back_are_lost_to_later_requests(small: GPT2, abort: aborts.Abort):
    engine = Engine(small, num_blocks=4, block_size=4, max_num_seqs=1, enable_prefix_caching=False)
    aborts.run_out(engine, [[1, 2, 3]], [9], abort)
    engine.scheduler.add(seq := steps.Sequence([5, 6, 7, 8, 9]))
    step = engine.scheduler.schedule()
    assert (step.seqs if step else []) == ([seq] if abort is aborts.abort_each else [])


def test_an_abort_of_a_set_is_refused(tiny: GPT2):
    assert aborts.refusal(prepared_copy(tiny)) == "KeyError: {'0'}"


# Arrays on the host


@given(st.integers(1, 9))
def test_only_the_first_of_a_batch_finds_its_own_token(batch: int):
    counts = arrays.prefill_counts(write_overlapping, list(range(batch)), places=20)
    assert counts == {"right": 1, "wrong": batch - 1, "lost": batch - 1, "repeated": max(0, 2 * batch - 3)}
    assert arrays.prefill_counts(write_each, list(range(batch)), places=20) == {
        "right": batch,
        "wrong": 0,
        "lost": 0,
        "repeated": 0,
    }


def test_what_a_buffer_holds_is_told_apart():
    logits = torch.randn(4, 11, generator=torch.Generator().manual_seed(0)) * 5
    largest = logits.amax(dim=-1)
    holds = steps.what_it_holds
    assert holds(largest, logits) == "largest logit"
    assert holds(largest - logits.logsumexp(dim=-1), logits) == "log-probability"
    assert holds(largest + 1, logits) == "neither"


# Steps of the engine


def test_the_logits_are_those_of_real_steps(tiny: GPT2, config: PlannedEngine):
    prompts = steps.prompts_of(config, tiny)
    logits, tokens = steps.real_steps(planned.engine_of(config, prepared_copy(tiny)), prompts)
    logits, tokens = (each.view(steps.STEPS, config.max_num_seqs, -1) for each in (logits, tokens))
    text = prompts[3] + tokens[:-1, 3, 0].tolist()
    assert torch.allclose(logits[:, 3], reference_logits(tiny, text)[len(prompts[3]) - 1 :], atol=1e-3)
    outputs = tokens[..., 0].T.tolist()
    assert outputs == reference_generate(tiny, prompts, max_tokens=steps.STEPS)


def test_a_request_that_has_to_wait_would_be_counted(tiny: GPT2, config: PlannedEngine):
    prompts = steps.prompts_of(config, tiny)
    assert steps.steps_waited(planned.engine_of(config, tiny), prompts) == 0
    full = replace(config, max_num_seqs=len(prompts) - 1)  # no place until the others are done
    assert steps.steps_waited(planned.engine_of(full, tiny), prompts) == steps.STEPS - 1


# q, k and v


def test_separate_products_would_be_counted():
    class Apart(nn.Module):
        config, device = type("Config", (), {"num_layers": 2}), torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.products = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Any) -> None:
            for layer in range(2):
                q, k, v = (product(torch.ones(1, 4)).view(1, 1, 4) for product in self.products[:3])
                self.products[3](attend(layer, q, k, v).flatten(1))

    assert qkv.engine_products(Apart()) == (3, 4)


def test_joined_products_give_what_separate_ones_give():
    weight, x = torch.randn(12, 4), torch.randn(2, 4)
    joined, apart = qkv.product(weight)(x), [qkv.product(part)(x) for part in weight.chunk(3)]
    assert torch.allclose(joined, torch.cat(apart, dim=1), atol=1e-5)
    assert torch.allclose(joined, F.linear(x, weight), atol=1e-5)


# The report


def test_facts_are_the_posts(report: PostReport):
    facts = facts_of(report)
    assert "requests in all" not in facts  # rate x seconds: the post against itself
    for row in post_table("002", "dtypes").itertuples():
        assert facts[f"type of {row.array}, before"].here == row.dtype_before
        assert facts[f"type of {row.array}, corrected"].here == row.dtype_after
    for spec in qkv.MODELS:
        assert facts[f"products for q, k and v in a layer, the engine, {spec}"].here == 1
    assert facts[f"products for q, k and v in a layer, transformers, {qkv.APART}"].here == 3


def test_the_figures_beside_the_facts(report: PostReport):
    assert [row[1] for row in grid(report, "The pool")] == [16384, 128, 4, 128 * 4096, 128 * 15]
    assert [row[2] for row in grid(report, "Arrays of")] == [128 * 4096 * width for width in (8, 4, 8, 4)]
    assert [row[3:] for row in grid(report, "8 requests that ask")] == [[8, 0], [0, 0], [0, 25]]
    rows = dict(grid(report, "Greedy choice"))
    assert rows["in all"] == rows["largest logit above 0"] == 8 * steps.STEPS
    assert rows["log-probability of the chosen token above 0"] == 0
    assert grid(report, "Rows computed for 8")[-1] == ["flat", 64, 0]


def test_what_the_simulation_assumes_is_printed(report: PostReport):
    (section,) = [s for s in report.sections if s.title == "Longest output first"]
    (assumed,) = [text for text in section.markdown.split("\n\n") if text.startswith("Assumed: ")]
    assert "FLOOR" in assumed and "engine's own; only the model is missing" in assumed
    assert [(time.post, time.here) for time in section.times] == [(40, None), (65, None)]
