"""Post 002 reproduced: its simulations against slower ones that are plainly right, and its facts in the report."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.blocks import BlockTables, OutOfBlocks
from roseinfer.engine.config import EngineConfig
from roseinfer.models import GPT2
from roseinfer.posts import post002
from roseinfer.posts.data import post_facts, post_table
from roseinfer.posts.post002 import arrays, scheduling
from roseinfer.posts.post002.abort_loop import Scheduler, abort_each, abort_the_set, run_out
from roseinfer.posts.post002.output_order import ORDERS, decode_all, least_steps
from roseinfer.posts.post002.token_arrays import ids_of, write_each, write_overlapping
from roseinfer.posts.report import PostReport, Setting
from roseinfer.reference import reference_logits
from stages import VectorizedGather

SETTING = Setting(torch.device("cpu"), {"s04": VectorizedGather}, quick=True)

few_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=12)
few_slots = st.integers(1, 5)


@pytest.fixture(scope="module")
def report() -> PostReport:
    return post002.reproduce(SETTING)


def facts_of(report: PostReport) -> dict[str, object]:
    return {fact.what: fact for section in report.sections for fact in section.facts}


def grid(report: PostReport, title_start: str) -> list[list[object]]:
    (rows,) = [g.rows for s in report.sections for g in s.grids if g.title.startswith(title_start)]
    return rows


# The order of requests


def step_by_step(lengths: list[int], slots: int, order: str) -> list[int]:
    """When each request finishes, by doing every step."""
    waiting = sorted(range(len(lengths)), key=lambda i: ORDERS[order](lengths[i]))
    left, running, finishes, step = list(lengths), [], [0] * len(lengths), 0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        assert 0 < len(running) <= slots
        step += 1
        for i in list(running):
            left[i] -= 1
            if left[i] == 0:
                running.remove(i)
                finishes[i] = step
    assert not any(left)
    return finishes


@given(few_lengths, few_slots, st.sampled_from(sorted(ORDERS)))
def test_a_schedule_is_what_doing_every_step_gives(lengths: list[int], slots: int, order: str):
    schedule = decode_all(lengths, slots, order)
    assert list(schedule.finishes) == step_by_step(lengths, slots, order)
    assert least_steps(lengths, slots) <= schedule.steps
    assert sum(lengths) == pytest.approx(schedule.mean_batch * schedule.steps)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_no_order_breaks_grahams_bounds(lengths: list[int], slots: int):
    """The best of all assignments of requests to slots, tried one by one, against each order."""
    best = min(
        max(sum(n for n, slot in zip(lengths, choice, strict=True) if slot == s) for s in range(slots))
        for choice in product(range(slots), repeat=len(lengths))
    )
    assert least_steps(lengths, slots) <= best
    for order in ORDERS:
        assert best <= decode_all(lengths, slots, order).steps <= best * (2 - 1 / slots) + 1e-9
    assert decode_all(lengths, slots, "longest first").steps <= best * (4 / 3 - 1 / (3 * slots)) + 1e-9


def test_latencies_by_hand():
    lengths = [4, 1, 2, 3, 5, 1, 2, 3, 4, 5, 6]  # eleven: a tenth is two, rounded up
    one_slot = decode_all(lengths, 1, "shortest first")
    assert one_slot.steps == sum(lengths) and one_slot.mean_batch == 1
    assert one_slot.shortest_tenth_latency == (1 + 2) / 2
    everybody = decode_all(lengths, len(lengths), "first come")
    assert list(everybody.finishes) == lengths and everybody.mean_latency == sum(lengths) / len(lengths)
    assert decode_all([3] * 4, 2, "first come").shortest_tenth_latency is None


@pytest.mark.parametrize(
    ("lengths", "slots", "order", "message"),
    [
        ([], 2, "first come", "lengths must name at least one request"),
        ([1, 0], 2, "first come", "lengths must be an integer of at least 1, got 0"),
        ([1], 0, "first come", "slots must be an integer of at least 1, got 0"),
        ([1], 2, "last come", "order='last come' is unknown, allowed: first come, longest first, shortest first"),
    ],
    ids=["no request", "no token", "no slot", "order"],
)
def test_wrong_arguments_are_refused(lengths: list[int], slots: int, order: str, message: str):
    with pytest.raises(ValueError, match=message):
        decode_all(lengths, slots, order)


def test_the_report_shows_what_longest_first_gains_and_loses(report: PostReport):
    rows = {(row[0], row[1]): row[2:] for row in grid(report, "1,500 requests")}
    for lengths in scheduling.LENGTHS:
        first, longest = rows[lengths, "first come"], rows[lengths, "longest first"]
        steps, at_least, mean_batch, mean_latency, shortest = longest
        assert at_least <= steps < 1.02 * at_least or lengths == "all 256"
        if lengths == "all 256":
            assert longest == first
            continue
        assert steps < first[0] and mean_batch > first[2]  # fewer steps, fuller batches
        assert mean_latency > first[3] and shortest > 2 * first[4]  # and who pays for it


def test_drawn_lengths_stay_the_same():
    draw = scheduling.drawn_lengths
    assert draw(6, lambda u: int(1000 * u)) == [844, 757, 420, 258, 511, 404]  # random.Random(0), as Python promises
    for lengths in scheduling.order_schedules(1500, 128).values():
        assert 240 < sum(lengths.lengths) / 1500 < 270


def test_an_order_that_depends_on_the_lengths_has_no_winner():
    fewest = scheduling.fewest_steps
    better, worse = decode_all([1, 2, 3], 2, "longest first"), decode_all([1, 2, 3], 1, "first come")
    assert better.steps < worse.steps
    wins = {("a", "longest first"): better, ("a", "first come"): worse}
    assert fewest(wins) == "longest first"
    assert fewest(wins | {("b", "longest first"): worse, ("b", "first come"): better}) == "neither"
    assert fewest({("a", "longest first"): better, ("a", "first come"): better}) == "neither"


# Aborts


@given(few_lengths)
def test_a_request_that_nobody_aborts_runs_one_step_more(wanted: list[int]):
    block_size = 4
    for abort, frees, extra in ((abort_the_set, True, 1), (abort_each, True, 0), (abort_each, False, 0)):
        tables = BlockTables(1, num_blocks=100, block_size=block_size)
        assert run_out(Scheduler(wanted, tables, frees), abort) == [n + extra for n in wanted]
        tables.check()
        held = 0 if frees else sum(-(-n // block_size) for n in wanted)
        assert tables.num_blocks - tables.num_free == held


@pytest.mark.parametrize("frees", [True, False])
def test_blocks_that_are_not_freed_are_lost_to_later_requests(frees: bool):
    tables = BlockTables(1, num_blocks=4, block_size=2)
    run_out(Scheduler([8], tables, frees), abort_each)
    later = Scheduler([1, 1], tables)
    if frees:
        assert run_out(later, abort_each) == [1, 1]
    else:
        with pytest.raises(OutOfBlocks):
            run_out(later, abort_each)


# Arrays on the host


@pytest.mark.parametrize(
    ("made_by", "dtype", "expected"),
    [
        ("concatenate", None, "float64"),
        ("concatenate", np.int32, "int32"),
        ("full", None, "int64"),
        ("full", np.int32, "int32"),
    ],
    ids=["padded", "padded as int32", "filled", "filled as int32"],
)
def test_types_of_token_ids(made_by: str, dtype: type | None, expected: str):
    array = ids_of(made_by, 3, 5, dtype)()
    assert array.shape == (3, 5) and array.dtype == expected
    assert (array[:, 1:] == 0).all()


@given(st.integers(1, 9))
def test_only_the_first_of_a_batch_finds_its_own_token(batch: int):
    counts = arrays.prefill_counts(write_overlapping, list(range(batch)), places=20)
    assert counts == {"right": 1, "wrong": batch - 1, "lost": batch - 1, "repeated": max(0, 2 * batch - 3)}
    assert arrays.prefill_counts(write_each, list(range(batch)), places=20) == {
        "right": batch, "wrong": 0, "lost": 0, "repeated": 0
    }  # fmt: skip


def test_the_overlapping_write_by_hand():
    buffer = np.array([90, 91, 92, 93, 94, 95])
    writes = write_overlapping(np.array([1, 2, 3]), [0, 1, 2], buffer)
    assert buffer.tolist() == [1, 1, 1, 2, 3, 95]
    assert writes.tolist() == [1, 2, 3, 2, 1, 0]


def test_what_a_buffer_holds_is_told_apart():
    logits = torch.randn(4, 11, generator=torch.Generator().manual_seed(0)) * 5
    largest = logits.amax(dim=-1)
    holds = arrays.what_it_holds
    assert holds(largest, logits) == "largest logit"
    assert holds(largest - logits.logsumexp(dim=-1), logits) == "log-probability"
    assert holds(largest + 1, logits) == "neither"


def test_the_logits_are_those_of_real_steps(tiny: GPT2):
    (config,) = post002.engines(SETTING)
    logits = post002.real_logits(SETTING, config).view(post002.STEPS, config.max_num_seqs, -1)
    prompt = post002.random_prompts(tiny, config.max_num_seqs, prompt_len=8, seed=post002.SEED)[3]
    text = prompt + logits[:-1, 3].argmax(dim=-1).tolist()
    expected = reference_logits(tiny, text)[len(prompt) - 1 :]
    assert torch.allclose(logits[:, 3], expected, atol=1e-4)


# q, k and v


def test_separate_products_would_be_counted():
    weight = torch.eye(4)

    def model(token_ids: torch.Tensor, positions: torch.Tensor, attend: object) -> None:
        for layer in range(2):
            q, k, v = (F.linear(torch.ones(1, 4), weight).view(1, 1, 4) for _ in range(3))
            F.linear(attend(layer, q, k, v).flatten(1), weight)

    model.config, model.device = SimpleNamespace(num_layers=2), torch.device("cpu")
    assert post002.matrix_products(model) == (3, 4)


# The report


def test_every_fact_is_equal_or_explained(report: PostReport):
    assert report.verdicts == {"equal": 11, "explained": 2}
    explained = {what for what, fact in facts_of(report).items() if fact.verdict == "explained"}
    assert explained == {
        "what output_logprob_shm holds",
        "requests of a prefill batch of 8 that find their token in their slot",
    }


def test_facts_are_the_posts(report: PostReport):
    facts, about = facts_of(report), post_facts("002")
    assert facts["requests in all"].post == about["num_requests"]
    for row in post_table("002", "dtypes").itertuples():
        assert facts[f"type of {row.array}, before"].here == row.dtype_before
        assert facts[f"type of {row.array}, corrected"].here == row.dtype_after
    for spec in post002.QKV_MODELS:
        assert facts[f"products for q, k and v in a layer, {spec}"].here == about["claims"]["qkv_products_after"]


def test_the_figures_beside_the_facts(report: PostReport):
    assert grid(report, "The pool") == [["tokens", 16384], ["tokens a request, 128 running", 128],
                                        ["requests of 4,096 tokens", 4]]  # fmt: skip
    assert [row[2] for row in grid(report, "Arrays of")] == [128 * 4096 * width for width in (8, 4, 8, 4)]
    assert [row[2:] for row in grid(report, "8 requests that ask")] == [[8, 0], [0, 0], [0, 23]]
    rows = dict(grid(report, "Greedy choice"))
    assert rows["in all"] == rows["same token by logits and by log-probabilities"] == 8 * post002.STEPS
    assert rows["largest logit above 0"] > 0 == rows["log-probability of the chosen token above 0"]


def test_the_seconds_of_another_machine_are_shown_and_not_judged(report: PostReport):
    (section,) = [s for s in report.sections if s.title == "Longest output first"]
    assert [(time.post, time.here) for time in section.times] == [(40, None), (65, None)]


def test_a_wrong_figure_of_the_post_would_be_found(monkeypatch: pytest.MonkeyPatch):
    about = post_facts("002")
    claims = about["claims"] | {"extra_steps_with_the_bug": 2, "faster_order": "first come", "qkv_products_after": 3}
    wrong = about | {"num_requests": 1501, "claims": claims, "block_table_columns": 128}
    monkeypatch.setattr(post002, "post_facts", lambda post: wrong)
    found = {what for what, fact in facts_of(post002.reproduce(SETTING)).items() if fact.verdict == "different"}
    assert len(found) == 5 and "requests in all" in found


def test_the_engine_is_the_one_that_is_built(monkeypatch: pytest.MonkeyPatch):
    built = []

    class Noting(VectorizedGather):
        def __init__(self, model: GPT2, **sizes: int) -> None:
            built.append(sizes)
            super().__init__(model, **sizes)

    setting = Setting(torch.device("cpu"), {"s04": Noting}, model="random:tiny-qwen2")
    (config,) = post002.engines(setting)
    assert config == EngineConfig(model="random:tiny-qwen2", num_blocks=8, max_num_seqs=8)
    post002.real_logits(setting, config)
    assert built == [{"num_blocks": 8, "block_size": 64, "max_num_seqs": 8}]


def test_what_is_not_run_says_what_it_needs(report: PostReport):
    assert len(report.not_run) == 6
    assert all(part.what and part.needs for part in report.not_run)


def test_what_the_post_does_not_state_is_marked(report: PostReport):
    sources = {fact.what: fact.source for section in report.sections for fact in section.facts if fact.source}
    assert {what: source.kind for what, source in sources.items() if not source.is_stated} == {
        "steps a request runs too long, fixed": "inferred",
        "what output_logprob_shm holds": "inferred",
        "requests of a prefill batch of 8 that find their token in their slot": "inferred",
    }
