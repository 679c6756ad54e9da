"""The engine's loop: tokens, books after every step, aborts, refusals, failed steps, a step that can be captured."""

from __future__ import annotations

import gc
import itertools
from functools import cache, partial
from itertools import product

import pytest
import torch
from oracles import assert_right, model_of, prompts_of
from small_engines import assert_empty, requests
from small_engines import engine_of as any_engine

from roseinfer.drive import drive
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.engine import Engine
from roseinfer.engine.runner import Runner
from roseinfer.models import Model
from roseinfer.reference import hf_generate, reference_generate
from roseinfer.sequence import SamplingParams, Sequence

LENGTHS = (3, 17, 1, 16, 33, 8, 15)


@pytest.fixture(params=["gpt2", "qwen3"])
def model(request) -> Model:
    return model_of(request.param)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


engine_for = partial(any_engine, num_blocks=24, max_num_seqs=3)


def check(engine: Engine) -> None:
    """What holds after every step: the books, and as many cached tokens as blocks are there for."""
    engine.blocks.check()
    for seq in engine.scheduler.running:
        assert engine.blocks.blocks_for(seq.num_cached_tokens) <= len(engine.blocks.of(seq.seq_id))
        assert all(engine.blocks.pool.ref_counts[block] == 1 for block in engine.blocks.of(seq.seq_id))
        assert seq.num_cached_tokens < len(seq)
    for seq in engine.scheduler.waiting:
        assert seq.num_cached_tokens == 0 and seq.seq_id not in engine.blocks


def run(engine: Engine) -> None:
    for done in drive(engine):
        for seq in done:
            assert seq.finish_reason or seq.num_cached_tokens == len(seq) - 1, "all but the new token is cached"
        check(engine)
    assert_empty(engine)


@pytest.mark.parametrize(("places", "block_size"), [(1, 8), (3, 8), (7, 8), (7, 1), (3, 64)])
def test_tokens_are_the_references_and_transformers(model, places, block_size):
    seqs = requests(model, LENGTHS)
    run(engine_for(model, seqs, max_num_seqs=places, block_size=block_size, num_blocks=-(-300 // block_size)))
    assert_right(model, seqs, reference_generate, hf_generate)
    assert [seq.finish_reason for seq in seqs] == ["length"] * len(seqs)


@pytest.mark.slow
@pytest.mark.parametrize(("num_blocks", "budget"), [(24, 100), (6, 100), (24, 5), (24, 20)])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_chunks_and_preemption_change_no_token(model, num_blocks, budget, steps):
    """Greedy and seeded sequences, in a pool of any size, preempted now and then."""
    seqs = greedy_and_seeded(model)
    engine = engine_for(model, seqs, num_blocks=num_blocks, max_num_batched_tokens=budget)
    for step in itertools.count(1):
        engine.step()
        if step % steps == 0 and engine.scheduler.running:
            engine.scheduler.preempt(engine.scheduler.running[step % len(engine.scheduler.running)])
        if not engine.has_work or step == 60:
            break
    run(engine)
    assert [seq.output_ids for seq in seqs] == outputs_alone(model)
    assert_right(model, seqs[::2])


def greedy_and_seeded(model: Model) -> list[Sequence]:
    params = [greedy(9), SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=3)]
    prompts = prompts_of(LENGTHS, model.config.vocab_size)
    return [Sequence(prompt, params[i % 2]) for i, prompt in enumerate(prompts)]


@cache
def outputs_alone(model: Model) -> list[list[int]]:
    """What each of greedy_and_seeded says in an engine of its own."""
    seqs = greedy_and_seeded(model)
    for seq in seqs:
        run(engine_for(model, [seq]))
    return [seq.output_ids for seq in seqs]


class FailsAt(torch.overrides.TorchFunctionMode):
    """Raises at one call of torch's."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left == 0:
            raise MemoryError("out of memory, made up")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", [1, 7, 20, 40, 60])
def test_a_failed_step_is_made_again(small, call):
    seqs = requests(small, (3, 17, 8))
    engine = engine_for(small, seqs)
    failed = 0
    while engine.has_work:
        try:
            with FailsAt(call):
                engine.step()
        except MemoryError:
            failed += 1
            engine.blocks.check()
            engine.step()
        check(engine)
    assert failed
    assert_right(small, seqs)


def test_what_can_never_run_is_refused_when_it_is_added(small):
    engine = engine_for(small, num_blocks=3, max_model_len=30)
    short, done, twice = requests(small, (3, 4, 5))
    done.finish_reason = "length"
    engine.add(twice)
    for seq, message in (
        (requests(small, (22,))[0], "prompt of 22 \\+ max_tokens=9 is 31 tokens, allowed: max_model_len=30"),
        (requests(small, (18,))[0], "needs 4 blocks of 8 tokens, allowed: num_blocks=3"),
        (Sequence([10**6], greedy(2)), "token id 1000000 is out of range"),
        (done, "has ended"),
        (twice, "was added already"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.add(seq)
    with pytest.raises(ValueError, match="has to know how many tokens come"):
        engine_for(small, [Sequence([1])], scheduling_policy="longest_output")
    engine.add(short)
    run(engine)
    assert short.finish_reason == twice.finish_reason == "length"


def test_the_last_token_that_fits(small):
    """16 cached tokens in two blocks of 8: the 17th is returned and never cached."""
    [seq] = requests(small, (8,))
    run(engine_for(small, [seq], num_blocks=2, max_model_len=17))
    assert len(seq) == 17


@pytest.mark.slow
def test_a_step_leaves_nothing_behind(small):
    engine = engine_for(small, requests(small, (5, 8, 13)))
    engine.step()

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    engine.step()
    before = alive()
    for _ in range(5):
        engine.step()
    assert alive() <= before


# What attention may see


@pytest.mark.parametrize("filled", [float("nan"), 1e30])
def test_what_no_sequence_wrote_is_never_read(small, filled):
    """Growing and shrinking batches over a pool that is poisoned wherever no token was written."""
    lengths, outputs = (3, 17, 8, 5, 30), (3, 9, 5, 8, 2)
    prompts = prompts_of(lengths, small.config.vocab_size)
    seqs = [Sequence(prompt, greedy(n)) for prompt, n in zip(prompts, outputs, strict=True)]
    engine = engine_for(small, seqs)
    engine.pool.memory.fill_(filled)
    run(engine)
    assert_right(small, seqs)


def test_positions_are_the_numbers_of_cached_tokens(small):
    engine = engine_for(small, requests(small, (5, 8)))
    engine.step()
    late = requests(small, (6,))[0]
    engine.add(late)
    step = engine.scheduler.schedule()
    batch = engine.runner.prepare(step)
    assert batch.positions.tolist() == [5, 8, *range(6)]
    assert batch.context_lens.tolist() == [6, 9, 6] and batch.query_start.tolist() == [0, 1, 2, 8]
    assert batch.sample_rows.tolist() == [0, 1, 7] and not batch.is_decode


def test_seeds_do_not_know_their_neighbours(small):
    """A row with a seed gets the same tokens alone, beside others, and from `generate` on a stage."""
    from roseinfer.generate import generate
    from stages import NaiveCat

    wishes = [
        {"temperature": t, "seed": seed, "top_k": k, "top_p": p}
        for (t, seed), (k, p) in zip(product((0.0, 0.8, 2.0), (1, 2)), [(0, 1.0), (5, 0.9), (0, 0.5)] * 2, strict=True)
    ]
    prompts = prompts_of([4] * len(wishes), small.config.vocab_size)
    params = [SamplingParams(max_tokens=8, ignore_eos=True, **wish) for wish in wishes]
    together = list(map(Sequence, prompts, params))
    run(engine_for(small, together, max_num_seqs=6, num_blocks=60))
    alone = list(map(Sequence, prompts, params))
    for seq in alone:
        run(engine_for(small, [seq]))
    wanted = [seq.output_ids for seq in generate(NaiveCat(small, num_blocks=60), prompts, params)]
    assert [seq.output_ids for seq in together] == [seq.output_ids for seq in alone] == wanted


# The engine behind the first seam


def test_as_a_stage_it_cuts_prompts_into_batches_that_a_step_has_room_for(small, monkeypatch):
    monkeypatch.setattr("roseinfer.engine.as_stage.STEP_TOKENS", 1)
    stage = EngineStage(small, num_blocks=64, block_size=8)
    room = stage.runner.max_num_tokens
    assert room == max(small.config.max_model_len, 64)
    seqs = requests(small, (room // 2, room // 2, 3, room - 1, 1), max_tokens=1)
    ran = []
    monkeypatch.setattr(stage.runner, "run", lambda step: ran.append(step.num_new) or Runner.run(stage.runner, step))
    tokens = stage.first_tokens(seqs)
    assert [sum(new) <= room for new in ran] == [True] * 3 and sum(ran, []) == [len(seq) for seq in seqs]
    assert [[token] for token in tokens] == reference_generate(small, [seq.token_ids for seq in seqs], 1)
