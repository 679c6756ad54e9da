"""Stage 19: drafts change how many tokens a step gives, and never which ones."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from oracles import prompts_of, small_llama, small_model

from roseinfer.sequence import SamplingParams, Sequence
from stages import OneKernel, Speculative
from stages.s19_speculative import rows_of, verified

LENGTHS = (5, 1, 13, 8, 30)
REPEATING = [7, 3, 9, 4, 7, 3, 9, 4, 7, 3]


class Perfect(Speculative):
    """Drafts what the reference says, with every `wrong`-th token replaced. wrong=1: nothing is right."""

    name = "perfect"
    right: dict[tuple[int, ...], list[int]] = {}
    wrong = 0

    def draft(self, seq, num_tokens):
        [after] = [text[len(seq) :] for text in self.right.values() if text[: len(seq)] == seq.token_ids]
        draft = after[:num_tokens]
        return [(token + 1) % 97 if self.wrong and i % self.wrong == 0 else token for i, token in enumerate(draft, 1)]


def run(stage_class, model, prompts, *, max_num_seqs=64, num_blocks=40, params=None, **settings):
    """The stage and its sequences after all steps, and how many tokens each step gave to each sequence."""
    stage = stage_class(model, num_blocks=num_blocks, block_size=8, max_num_seqs=max_num_seqs, **settings)
    params = params or SamplingParams(max_tokens=12, ignore_eos=True)
    seqs = [Sequence(prompt, params) for prompt in prompts]
    for seq in seqs:
        stage.add(seq)
    grown = []
    while stage.has_work:
        before = [len(seq) for seq in seqs]
        stage.step()
        grown.append([len(seq) - length for seq, length in zip(seqs, before, strict=True)])
        stage.tables.check()
        held = [seq for seq in seqs if seq.seq_id in stage.tables and not stage.in_flight]
        assert all(
            len(stage.tables.of(seq.seq_id, 0)) == stage.tables.blocks_for(seq.num_cached_tokens) for seq in held
        )
    assert stage.num_free_blocks == num_blocks
    return stage, seqs, grown


def texts_of(seqs):
    return {tuple(seq.token_ids[: seq.num_prompt_tokens]): seq.token_ids for seq in seqs}


@pytest.fixture
def perfect(monkeypatch):
    model = small_model()
    _, seqs, _ = run(OneKernel, model, prompts_of(LENGTHS, 97))
    monkeypatch.setattr(Perfect, "right", texts_of(seqs))
    return model, seqs


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [small_model(), small_llama("llama"), deepcopy(small_model()).to(torch.bfloat16)],
    ids=["one function", "llama", "bfloat16"],
)
def test_a_step_with_right_drafts_gives_five_tokens_on_any_model(model, monkeypatch):
    prompts = prompts_of(LENGTHS, model.config.vocab_size)
    _, theirs, _ = run(OneKernel, model, prompts)
    monkeypatch.setattr(Perfect, "right", texts_of(theirs))
    _, ours, grown = run(Perfect, model, prompts)
    assert grown[1] == [5] * 5
    assert [seq.output_ids for seq in ours] == [seq.output_ids for seq in theirs]


@pytest.mark.slow
@pytest.mark.parametrize("wrong, first", [(0, 5), (1, 1), (2, 2), (3, 3)])
def test_a_step_keeps_the_right_beginning_of_a_draft_and_one_token(perfect, monkeypatch, wrong, first):
    model, expected = perfect
    monkeypatch.setattr(Perfect, "wrong", wrong)
    _, seqs, grown = run(Perfect, model, prompts_of(LENGTHS, 97))
    assert [seq.output_ids for seq in seqs] == [seq.output_ids for seq in expected]
    assert grown[0] == [1] * 5  # the prompts
    assert grown[1] == [first] * 5


def test_with_right_drafts_twelve_tokens_take_four_steps(perfect):
    model, _ = perfect
    stage, _, grown = run(Perfect, model, prompts_of(LENGTHS, 97))
    assert len(grown) == 4  # 1, 5, 5 and the last one
    assert (stage.num_drafted, stage.num_accepted) == (5 * 8, 5 * 8)


def test_no_draft_goes_past_max_tokens(perfect):
    model, _ = perfect
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    stage, seqs, grown = run(Perfect, model, prompts_of(LENGTHS, 97), params=params)
    assert [len(seq.output_ids) for seq in seqs] == [4] * 5 and len(grown) == 2
    assert stage.num_drafted == 5 * 2


def test_a_stop_token_within_a_draft_ends_the_sequence_there(perfect):
    model, expected = perfect
    stop = expected[0].output_ids[3]
    place = expected[0].output_ids.index(stop)
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(stop,))
    _, [seq], _ = run(Perfect, model, [expected[0].token_ids[:5]], params=params)
    assert seq.output_ids == expected[0].output_ids[: place + 1] and seq.finish_reason == "stop"


def test_drafts_take_the_rows_that_the_batch_leaves_free(perfect):
    model, _ = perfect
    stage, _, grown = run(Perfect, model, prompts_of(LENGTHS, 97), max_num_seqs=8)
    assert grown[1] == [4, 1, 1, 1, 1]  # three rows are left, and the first sequence takes them
    _, _, grown = run(Perfect, model, prompts_of(LENGTHS, 97), max_num_seqs=5)
    assert grown[1] == [1] * 5


def test_a_draft_that_needs_a_block_is_left_out_where_none_is_free(perfect):
    model, expected = perfect
    # 13 tokens and one more fit into 2 blocks of 8, a draft of 4 would need a third.
    stage, [seq], grown = run(Perfect, model, [expected[2].token_ids[:13]], num_blocks=2, params=SamplingParams(3))
    assert [g for [g] in grown] == [1, 2] and stage.num_preemptions == 0
    assert seq.output_ids == expected[2].output_ids[:3]


def test_preempted_sequences_are_computed_again_with_the_same_tokens(perfect):
    model, expected = perfect
    stage, seqs, _ = run(Perfect, model, prompts_of(LENGTHS, 97), num_blocks=8)
    assert stage.num_preemptions > 0
    assert [seq.output_ids for seq in seqs] == [seq.output_ids for seq in expected]


def test_the_prefix_cache_finds_accepted_tokens_and_no_rejected_ones(perfect, monkeypatch):
    model, expected = perfect
    monkeypatch.setattr(Perfect, "wrong", 2)
    stage = Perfect(model, num_blocks=40, block_size=8)
    text = expected[4].token_ids  # 30 of a prompt, 12 new ones
    stage.add(seq := Sequence(text[:30], SamplingParams(max_tokens=12, ignore_eos=True)))
    while stage.has_work:
        stage.step()
    keys = stage.keys(Sequence(text), len(text) // 8)
    assert set(stage.tables.block_of) == set(keys[: (len(seq) - 1) // 8])
    stage.add(Sequence(text[:42], SamplingParams(max_tokens=1, ignore_eos=True)))
    stage.step()
    assert stage.num_found_tokens == 40


def test_a_seed_gives_the_tokens_that_it_gives_without_drafts():
    model = small_model()
    params = SamplingParams(max_tokens=16, temperature=0.7, top_k=5, seed=3, ignore_eos=True)
    prompts = [REPEATING, *prompts_of(LENGTHS, 97)]
    stage, ours, _ = run(Speculative, model, prompts, params=params)
    _, theirs, _ = run(OneKernel, model, prompts, params=params)
    assert stage.num_accepted > 0
    assert [seq.output_ids for seq in ours] == [seq.output_ids for seq in theirs]


def test_what_followed_the_last_earlier_place_is_drafted():
    draft = Speculative(small_model(), num_blocks=4).draft
    text = [1, 2, 3, 4, 5, 9, 3, 4, 6, 8, 3, 4]
    assert draft(Sequence(text), 2) == [6, 8]
    assert draft(Sequence(text), 9) == [6, 8, 3, 4]
    assert draft(Sequence([2, 3, 4, 5, *text]), 1) == [6]
    assert draft(Sequence([1, 2, 3]), 4) == [] and draft(Sequence([5]), 4) == []
    assert draft(Sequence([5, 5, 5, 5]), 4) == [5]


def test_a_row_for_each_drafted_token_leaves_the_sequence_as_it_is():
    seq = Sequence([1, 2, 3])
    seq.num_cached_tokens = 2
    rows = rows_of(seq, [8, 9])
    assert [row.token_ids for row in rows] == [[1, 2, 3], [1, 2, 3, 8], [1, 2, 3, 8, 9]]
    assert [row.num_cached_tokens for row in rows] == [2, 3, 4] and rows[0] is seq


@pytest.mark.parametrize("draft, chosen, kept", [([], [4], [4]), ([4, 5], [4, 6, 7], [4, 6]), ([4], [4, 5], [4, 5])])
def test_verified(draft, chosen, kept):
    assert verified(draft, chosen) == kept


@pytest.mark.parametrize("num_tokens", [0, -1, 1.5, "4"])
def test_a_bad_number_of_tokens_is_refused(num_tokens):
    with pytest.raises(ValueError, match="num_tokens must be"):
        Speculative(small_model(), num_blocks=4, num_tokens=num_tokens)


@pytest.mark.parametrize("draft", [[97], [3, -1], [2**30]])
def test_a_draft_of_unknown_tokens_is_refused_and_its_step_dropped(monkeypatch, draft):
    drafts = iter([[1, 2, 3], draft])
    monkeypatch.setattr(Speculative, "draft", lambda self, seq, most: next(drafts, []))
    model, prompts = small_model(), prompts_of((7, 5), 97)
    stage = Speculative(model, num_blocks=8, block_size=8)
    seqs = [Sequence(prompt, SamplingParams(max_tokens=6, ignore_eos=True)) for prompt in prompts]
    for seq in seqs:
        stage.add(seq)
    stage.step()
    with pytest.raises(ValueError, match="token ids from 0 to 96"):
        stage.step()
    assert stage.num_free_blocks == 8
    while stage.has_work:
        stage.step()
        stage.tables.check()
    _, expected, _ = run(OneKernel, model, prompts, params=seqs[0].params)
    assert [seq.output_ids for seq in seqs] == [seq.output_ids for seq in expected]
