"""Stage 15: what is found and what is computed, who is evicted, who writes where, and that no token ever changes."""

from __future__ import annotations

import pytest
from checked_stages import MODEL, request
from oracles import assert_right, prompts_of, small_llama

from roseinfer.reference import hf_generate, reference_generate
from stages import PrefixCache, TokenBudget

pytestmark = pytest.mark.slow


TEXT = [(5 * i + 3) % 97 for i in range(60)]
MODELS = {"gpt2": MODEL, "llama": small_llama("llama"), "qwen3": small_llama("qwen3")}


def stage_of(model="gpt2", stage_class=PrefixCache, num_blocks=40, block_size=4, **sizes):
    return stage_class(MODELS[model], num_blocks=num_blocks, block_size=block_size, **sizes)


def run_out(stage, *seqs):
    """Tokens computed in each step, by sequence in the order of seqs."""
    for seq in seqs:
        stage.add(seq)
    steps = []
    while stage.has_work:
        scheduled, num_new = stage.schedule()
        steps.append([dict(zip(scheduled, num_new, strict=True)).get(seq, 0) for seq in seqs])
        stage.commit(scheduled, stage.run(scheduled, num_new))
        if isinstance(stage, PrefixCache):
            stage.tables.check()
    assert stage.num_free_blocks == stage.tables.num_blocks
    return steps


# The same tokens with and without


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("num_blocks", "budget"), [(40, None), (11, 9)])
def test_tokens_are_those_of_the_reference_of_transformers_and_without_sharing(model, num_blocks, budget):
    lengths, own = (0, 1, 3, 4, 5, 11, 12, 13), prompts_of((1, 2, 3, 1, 4, 1, 6, 2), 97)
    prompts = [TEXT[:n] + end for n, end in zip(lengths, own, strict=True)] + [TEXT[:12], TEXT[:12], own[4]]
    outputs = []
    for stage_class in (PrefixCache, TokenBudget):
        stage = stage_of(model, stage_class, num_blocks, max_num_seqs=5, max_num_batched_tokens=budget)
        rounds = [[request(prompt) for prompt in order] for order in (prompts, prompts[::-1])]
        for seqs in rounds:
            run_out(stage, *seqs)
        outputs.append([[seq.output_ids for seq in seqs] for seqs in rounds])
    shared, alone = outputs
    assert shared == alone == [wanted := reference_generate(MODELS[model], prompts, 6), wanted[::-1]]
    assert wanted == hf_generate(MODELS[model], prompts, 6)


# What is computed


@pytest.mark.parametrize(
    ("prompt", "computed"),
    [
        (TEXT[:11], 3),
        (TEXT[:10] + [0, 0], 4),
        (TEXT[:7], 3),
        (TEXT[:3], 3),
        ([0, *TEXT[1:12]], 12),
        (TEXT[:4] + [0] + TEXT[5:12], 8),
        (TEXT[4:12], 8),
        (TEXT[:8], 1),
        (TEXT[:4], 1),
        (TEXT[:9], 1),
    ],
    ids=[
        "same",
        "same blocks",
        "shorter",
        "no full block",
        "other first",
        "other middle",
        "moved",
        "all of it",
        "all of the first",
        "all but one",
    ],
)
@pytest.mark.parametrize("other_runs", [False, True])
def test_what_is_found_is_not_computed(prompt, computed, other_runs):
    stage = stage_of()
    stage.add(request(TEXT[:11], 30 if other_runs else 1))
    stage.step()
    seq = request(prompt)
    stage.add(seq)
    seqs, num_new = stage.schedule()
    assert dict(zip(seqs, num_new, strict=True))[seq] == computed
    stage.commit(seqs, stage.run(seqs, num_new))
    run_out(stage)
    assert_right(MODEL, [seq])
    assert stage.num_asked_tokens == 11 + len(prompt) and stage.num_found_tokens == len(prompt) - computed


def test_outputs_are_found_too():
    """The next turn of a chat begins with the answer to the last one."""
    stage = stage_of()
    first = request(TEXT[:6])
    run_out(stage, first)
    turn = request([*first.token_ids, 1, 2, 3])
    assert run_out(stage, turn)[0] == [15 - 8]
    assert_right(MODEL, [turn])


@pytest.mark.parametrize(
    ("budget", "wanted"), [(None, [[10, 10, 10], [1, 1, 1]]), (4, [[4, 0, 0], [4, 0, 0], [2, 2, 0], [1, 1, 2]])]
)
def test_only_blocks_that_are_computed_are_found(budget, wanted):
    """Equal prompts that join in one step are all computed; one that joins later finds what was computed until then."""
    stage = stage_of(max_num_batched_tokens=budget, max_num_seqs=3)
    twins = [request(TEXT[:10]) for _ in range(3)]
    assert run_out(stage, *twins)[: len(wanted)] == wanted
    assert_right(MODEL, twins)


def test_where_a_step_failed_nothing_is_found():
    stage = stage_of()
    seq, twin = request(TEXT[:10]), request(TEXT[:10])
    stage.add(seq)
    stage.schedule()
    stage.abort(seq)  # its step is never made
    assert not stage.tables.block_of
    assert run_out(stage, twin)[0] == [10]
    assert_right(MODEL, [twin])


@pytest.mark.parametrize(("stage_class", "computed"), [(TokenBudget, 17), (PrefixCache, 1)])
def test_a_preempted_sequence_finds_what_was_not_evicted(stage_class, computed):
    """17 tokens, of which 16 were cached: four blocks, and a token that makes the next."""
    stage = stage_of(stage_class=stage_class)
    seq = request(TEXT[:15])
    stage.add(seq)
    stage.step()
    stage.step()
    stage.preempt(seq)
    seqs, num_new = stage.schedule()
    assert num_new == [computed]
    stage.commit(seqs, stage.run(seqs, num_new))
    run_out(stage)
    assert_right(MODEL, [seq])


# Samples of one prompt


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("num_cached", ["none", "running"])
def test_samples_compute_one_token_each(prompt_len, num_cached):
    parent = request(TEXT[:prompt_len])
    samples = [request(TEXT[:prompt_len], parent=parent) for _ in range(3)]
    stage = stage_of()
    if num_cached == "running":
        stage.add(parent)
        stage.step()
        stage.step()
        assert run_out(stage, *samples)[0] == [1, 1, 1]
    else:
        steps = run_out(stage, parent, *samples)
        assert steps[:2] == [[prompt_len, 0, 0, 0], [1, 1, 1, 1]]
    assert_right(MODEL, [parent, *samples])


# Who writes where


@pytest.mark.parametrize("budget", [None, 5])
def test_no_step_writes_to_a_block_that_is_shared_or_can_be_found(budget):
    """Bit by bit: all that a step may change are the slots of the tokens that it computes, and copies."""
    stage = stage_of(num_blocks=14, max_num_batched_tokens=budget, max_num_seqs=5)
    parent = request(TEXT[:10])
    later = [request(TEXT[:10], parent=parent), request(TEXT[:8]), request(TEXT[:8]), request(TEXT[:13])]
    for seq in (parent, *later):
        stage.add(seq)
    num_shared = 0
    while stage.has_work:
        seqs, num_new = stage.schedule()
        before, copies = stage.pool.clone(), set(stage.copies)
        kept = [b for b, count in enumerate(stage.tables.ref_counts) if count > 1 or b in stage.tables.key_of]
        num_shared += sum(count > 1 for count in stage.tables.ref_counts)
        stage.commit(seqs, stage.run(seqs, num_new))
        changed = (stage.pool != before).any(dim=(0, 1, 3, 4, 5)).nonzero().flatten().tolist()
        assert not set(changed) & set(kept) and not copies & set(kept)
    assert num_shared
    assert_right(MODEL, [parent, *later])


def test_a_block_that_is_evicted_for_its_own_copy_keeps_its_contents():
    """A pool of two blocks: both are found, and one of them has to be handed out to hold the copy of itself."""
    stage = stage_of(num_blocks=3)
    run_out(stage, request(TEXT[:8], 1))
    stage.tables.reserve({-1: 4})  # another sequence takes the block that was never used
    seq = request(TEXT[:8], 1)
    assert stage.num_free_blocks == 2
    stage.add(seq)
    assert stage.schedule() == ([seq], [1])
    stage.commit([seq], stage.run([seq], [1]))
    assert_right(MODEL, [seq])


# Who is evicted


def texts_found(stage, texts):
    return [name for name, text in texts.items() if stage.find(request(text))[1] >= 4]


def test_the_longest_idle_is_evicted_and_then_not_found():
    stage = stage_of(num_blocks=4)
    texts = {name: [90 - 5 * i - j for j in range(5)] for i, name in enumerate("abcde")}
    for name in "abc":
        run_out(stage, request(texts[name][:4], 1))
    assert texts_found(stage, texts) == ["a", "b", "c"]
    run_out(stage, request(texts["a"], 1))  # and now "a" is the last that was released
    assert list(stage.tables.idle) == [stage.find(request(texts[name]))[0][0] for name in "bca"]
    run_out(stage, request(texts["d"][:4], 1))
    assert texts_found(stage, texts) == ["a", "b", "c", "d"]
    run_out(stage, request(texts["e"][:4], 1))
    assert texts_found(stage, texts) == ["a", "c", "d", "e"]


def test_of_a_text_the_end_is_evicted_first():
    stage = stage_of(num_blocks=4)
    run_out(stage, request(TEXT[:12], 1))
    for left in (2, 1, 0):
        stage.tables.reserve({-left - 1: 4 if left < 2 else 8})
        assert stage.find(request(TEXT[:12]))[1] == 4 * left


def test_a_block_that_is_held_is_never_evicted():
    stage = stage_of(num_blocks=6)
    holder = request(TEXT[:8], 12)
    stage.add(holder)
    stage.step()
    others = [request(prompt, 1) for prompt in prompts_of((12, 4, 9, 5), 97)]
    run_out(stage, *others)
    assert_right(MODEL, [holder, *others])


# Keys


def test_a_key_is_a_text_and_not_a_block():
    key = PrefixCache.block_key
    assert key(b"", [1, 2]) == key(b"", [1, 2]) != key(b"", [2, 1])
    assert key(key(b"", [1, 2]), [3, 4]) != key(b"", [3, 4]) != key(key(b"", [1, 3]), [3, 4])


UNSOUND = {
    "all the same": lambda before, token_ids: b"",
    "the block alone": lambda before, token_ids: PrefixCache.block_key(b"", token_ids),
    "length and last token": lambda before, token_ids: ((before[0] if before else 0) + len(token_ids), token_ids[-1]),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_keys_are_trusted_so_an_unsound_one_changes_tokens(name):
    """Books stay in order all the same."""
    stage_class = type("Unsound", (PrefixCache,), {"block_key": staticmethod(UNSOUND[name])})
    outputs = {}
    for cls in (PrefixCache, stage_class):
        stage = stage_of(stage_class=cls)
        seqs = [request(text) for text in (TEXT[:10], [0, *TEXT[1:10]], [*TEXT[4:8], *TEXT[:4], 7, 9])]
        for seq in seqs:
            run_out(stage, seq)
        outputs[cls] = [seq.output_ids for seq in seqs]
    assert outputs[stage_class] != outputs[PrefixCache]


def test_a_sequence_that_comes_from_a_stage_with_other_blocks_gets_new_keys():
    seq = request(TEXT[:12])
    small, large = stage_of(block_size=2), stage_of(block_size=4)
    small.add(seq)
    small.step()
    small.abort(seq)
    seq.finish_reason = None
    run_out(large, request(TEXT[:12]))
    assert run_out(large, seq)[0] == [1]
