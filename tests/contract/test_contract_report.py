"""The contract finds what is wrong with a stage, and teach.contract says it: a report, whatever the stage does."""

from __future__ import annotations

import random
import re
import time

import pytest
import torch
from mutants import MUTANTS
from right_stage import Right, RightStep

from roseinfer.blocks import OutOfBlocks
from roseinfer.contract import PROMISES, check_promises
from roseinfer.stage import Stage
from roseinfer.teach import contract
from roseinfer.teach.measure.contract_report import ContractReport

pytestmark = pytest.mark.slow


BY_NAME = {promise.name: promise for promise in PROMISES}
QUICK_ONLY = [promise for promise in PROMISES if not promise.slow]


# Wrong in one thing each.


class Abstract(Stage):
    def build(self, seqs): ...


class AnySize(Right):
    def __init__(self, model, **sizes):
        super().__init__(model, **{name: max(1, value) for name, value in sizes.items()})


class BuildsNothing(Right):
    def build(self, seqs): ...


class OneDimensionMore(Right):
    def build(self, seqs):
        step = super().build(seqs)
        return lambda layer, q, k, v: step(layer, q, k, v)[:, :, None]


class KeysForValues(Right):
    def append(self, seqs, step):
        step.new = [(k, k) for k, _ in step.new]
        super().append(seqs, step)


class OtherRows(Right):
    def build(self, seqs):
        return super().build(seqs[::-1])


class LongestPosition(Right):
    def positions(self, seqs):
        return [max(seq.num_cached_tokens for seq in seqs)] * len(seqs)


class KeepsBlocks(Right):
    def free(self, seq):
        self.caches.pop(seq.seq_id, None)


class LosesABlock(Right):
    def free(self, seq):
        self.tables.of(seq.seq_id, 1).pop()
        super().free(seq)


class SharesABlock(Right):
    def free(self, seq):
        self.tables.of(seq.seq_id, 1)[-1] = self.tables.of(seq.seq_id, 1)[0]
        super().free(seq)


class SkipsAtTheEdge(Right):
    def append(self, seqs, step):
        if all(seq.num_cached_tokens % 64 for seq in seqs):
            super().append(seqs, step)


class BlocksOf64(Right):
    def append(self, seqs, step):
        if self.block_size == 64:
            super().append(seqs, step)


class Sorts(Right):
    def build(self, seqs):
        return super().build(sorted(seqs, key=lambda seq: seq.seq_id))


class RemembersTheSize(Right):
    size = rows = None

    def build(self, seqs):
        if len(seqs) != self.size:
            self.size, self.rows = len(seqs), [self.caches[seq.seq_id] for seq in seqs]
        return RightStep(self.rows)


class TilesHeads(Right):
    def build(self, seqs):
        return TilesHeadsStep([self.caches[seq.seq_id] for seq in seqs])


class TilesHeadsStep(RightStep):
    def attend(self, cache, q, k, v):
        group = q.size(0) // k.size(0)
        return super().attend([x.repeat(group, 1, 1) for x in cache], q, k.repeat(group, 1), v.repeat(group, 1))


class CountsFromOne(Right):
    def positions(self, seqs):
        return [seq.num_cached_tokens + (self.config.architecture == "qwen2") for seq in seqs]


class TwoLayers(Right):
    def append(self, seqs, step):
        step.new = [step.new[min(layer, 1)] for layer in range(len(step.new))]
        super().append(seqs, step)


class KeepsFp32(Right):
    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k.float(), v.float())


class FreesAnything(Right):
    def free(self, seq):
        if self.holds(seq):
            super().free(seq)


class KeepsCaches(Right):
    def free(self, seq):
        Stage.free(self, seq)


class Deduplicates(Right):
    def decode(self, seqs):
        return super().decode(list(dict.fromkeys(seqs)))


class TakesAnything(Right):
    def check_fits(self, seq): ...


class ForgetsAToken(Right):
    def decode(self, seqs):
        try:
            return super().decode(seqs)
        except OutOfBlocks:
            seqs[0].num_cached_tokens -= 1
            raise


class FailsToFree(Right):
    def free(self, seq):
        Stage.free(self, seq)
        del self.caches[seq.seq_id]


class Swallows(Right):
    def decode(self, seqs):
        try:
            return super().decode(seqs)
        except (RuntimeError, KeyboardInterrupt):
            for seq in seqs:
                seq.num_cached_tokens += 1
            return torch.zeros(len(seqs), self.config.vocab_size)


class FreesTheFinished(Right):
    def free(self, seq):
        if seq.finish_reason:
            super().free(seq)


class RemembersTheSet(Right):
    members = rows = None

    def build(self, seqs):
        members = {seq.seq_id for seq in seqs}
        if members != self.members:
            self.members, self.rows = members, [self.caches[seq.seq_id] for seq in seqs]
        return RightStep(self.rows)

    def free(self, seq):
        super().free(seq)
        self.members = self.rows = None


BROKEN = [
    ("can_be_made", Abstract, "Abstract lacks append and write_prompt"),
    ("can_be_made", AnySize, "num_blocks=0 is not refused; wanted a ValueError that says 'num_blocks'"),
    ("fits_the_seam", BuildsNothing, "build returned None; the model calls what it returns: step(layer, q, k, v)"),
    ("fits_the_seam", OneDimensionMore, "returned shape (2, 4, 1, 8), expected (2, 4, 8) = [B, H, D]"),
    ("one_sequence", KeysForValues, r"sequence 0 of 1, prompt of 5 tokens: token \d is \d+, expected \d+ as the ref"),
    ("equal_lengths", OtherRows, "sequence 0 of 3, prompt of 6 tokens: token"),
    ("mixed_lengths", LongestPosition, "of 4, prompt of 3 tokens: token 1 is"),
    ("blocks_come_back", KeepsBlocks, "sequence 0 was freed, and holds says that it is still held"),
    ("blocks_come_back", LosesABlock, "layer 1: block 0 is lost: it is neither free nor held by a sequence"),
    ("blocks_come_back", SharesABlock, "layer 1: block 1 is free twice"),
    ("block_edges", SkipsAtTheEdge, "prompt of 63 tokens: token"),
    ("small_blocks", BlocksOf64, "sequence 0 of 4, prompt of 1 token: token"),
    ("rows_in_order", Sorts, "two sequences, the second one given first: in row 0 a logit is off by"),
    ("batch_grows_and_shrinks", RemembersTheSize, "model gpt2, 1 of 6 at once: sequence 1 of 6"),
    ("shared_kv_heads", TilesHeads, "model gpt2, 2 KV heads, 16 of 6 at once"),
    ("llama_families", CountsFromOne, "model qwen2, 3 of 6 at once: sequence"),
    ("equals_transformers", TwoLayers, "as transformers has it"),
    ("half_precision", KeepsFp32, "RuntimeError"),
    ("freeing_twice", FreesAnything, "freeing a sequence twice is not refused; wanted a ValueError that says"),
    ("prefilled_again", KeepsCaches, "freed and prefilled again with its output: in its decode a logit is off"),
    ("misuse", Deduplicates, "decoding a sequence twice in one step is not refused"),
    ("never_fits", TakesAnything, "a request that can never fit (150 tokens, max_tokens=100)"),
    ("pool_exhausted", ForgetsAToken, "a refused step changed cached tokens and free blocks"),
    ("errors_free_everything", FailsToFree, "KeyboardInterrupt in prefill: the caller gets a KeyError instead, in"),
    ("errors_free_everything", Swallows, "KeyboardInterrupt in decode: the error is swallowed, the caller never hears"),
    ("closed_stream", FreesTheFinished, "with the stream closed in the middle, 6 of 8 blocks are free"),
    ("memory_comes_back", KeepsCaches, "bytes of tensors. What does free leave behind?"),
    ("random_schedules", RemembersTheSet, r"1 token; decode (A, B; decode B, A|B, A; decode A, B): the logits of"),
]
BY_A_MUTANT = [
    ("any_block_size", "SixteenColumns", "block_size=1: in a step of 3 sequences, row 2, of 21 tokens: a logit is off"),
    ("odd_shapes", "GroupsUpTo4", "model groups of 7: in a step of 2 sequences, row 0"),
    ("last_position", "s05: a table of the pool's width", "blocks must be at most max_blocks=11, got 12"),
    ("just_fits", "stage: one position too few", "a prompt of 1 + max_tokens=44 just fits max_model_len=45, and is"),
    ("long_sequences", "PromptOf2048", "lengths from 1 to 4,097: in a step of 7 sequences, row 6, of 4096 tokens"),
    ("very_long_sequences", "ShortsForLengths", "32,767 tokens and more: in a step of one sequence"),
    ("high_block_ids", "SevenBits", "in blocks 125 to 130, of as many as there are: in a step of 2 sequences"),
    ("very_high_block_ids", "UInt16Ids", "in blocks 65533 to 65538, of as many as there are: in a step"),
    ("many_blocks", "ColumnsInBytes", "256 blocks of 4 tokens, and one more: in a step of 2 sequences, row 0"),
    ("large_batches", "WarpOf64", "in a step of 70 sequences, row 64, of"),
    ("very_large_batches", "RowsInBytes", "in a step of 257 sequences, row 256, of"),
    ("neighbours_come_and_go", "BySequenceModulo", "a sequence that stays while others come and go: in a step of"),
    ("alike_prompts", "LooksAtTheFirstPrompt", "behind a prompt that is much like it, in a step of"),
    ("other_blocks", "rows by sequence, first and last", "freed and prefilled again, before in blocks 1, 2"),
    ("two_at_once", "SharedPool", "two stages side by side: in a step of"),
    ("leaves_what_is_yours", "SortsYours", "decode changed the caller's list of sequences"),
    ("leaves_your_model", "RoundsYourWeights", "changes its caller's model when it is made: wte.weight differs"),
    ("leaves_your_model", "s12: packs the caller's model", "c_attn is a PackedLinear now, and was a Linear"),
    ("padding_touches_nothing", "LeftoverPadding", "freed by rows 3 and up, after a step of 3 rows: in a step of one"),
    ("prompts_together", "LastBatchFirst", "prompts of 100, 150, 60, 7, 180, 20 tokens together, first_tokens: row 0"),
    ("failed_choice", "s11: NaN gives a token", "a prompt whose logits are NaN is not refused; wanted a ValueError"),
    ("failed_choice", "CountsBeforeItReads", "a row of NaN is refused: [3, 12] tokens were cached before it"),
    ("chooses_as_sample", "Forgetful", "greedy and drawn rows, token 0 of each: row 1, prompt of 9, SamplingParams("),
    ("failed_steps", "GrowsInTheStep", "made again after a KeyboardInterrupt in decode: in a step of 2 sequences"),
    ("errors_anywhere", "GrowsLayerByLayer", "in append, during decode: in a step of 2 sequences, row"),
]


@pytest.mark.parametrize(("name", "mutant", "message"), BY_A_MUTANT, ids=[f"{n}-{m}" for n, m, _ in BY_A_MUTANT])
def test_each_promise_of_reach_says_where_it_was_broken(name, mutant, message):
    [mutant] = [other for other in MUTANTS if other.name == mutant]
    [outcome] = check_promises(mutant.make(), promises=[BY_NAME[name]])
    assert outcome.verdict == "broken"
    assert message in str(outcome.error)


@pytest.mark.parametrize(("name", "stage_class", "message"), BROKEN, ids=[f"{n}-{c.name}" for n, c, _ in BROKEN])
def test_each_promise_is_broken_by_some_stage_and_says_how(name, stage_class, message):
    [outcome] = check_promises(stage_class, promises=[BY_NAME[name]])
    assert outcome.verdict == "broken"
    assert re.search(message, told(stage_class, outcome)) or message in told(stage_class, outcome)


def told(stage_class, outcome) -> str:
    return ContractReport(stage_class, (outcome,)).message(outcome)


def test_no_promise_is_left_out_above():
    # The full size shares its code with equals_transformers, and takes long.
    assert {name for name, _, _ in BROKEN + BY_A_MUTANT} == set(BY_NAME) - {"equals_transformers_in_full_size"}
    assert len(BY_NAME) == len(PROMISES)


def test_a_stage_that_keeps_them_all():
    report = contract(Right, quick=True, device="cpu")
    assert report and repr(report) == ("Right: 41 promises held\nnot tried (left out by quick=True): the 6 others")
    assert "41 held" in report.to_html() and "✓" in report.to_html()


def test_a_report_says_where_to_look_first():
    report = contract(LongestPosition, quick=True, device="cpu")
    lines = repr(report).splitlines()
    assert not report
    broken = len(report.broken)
    assert lines[0] == f"LongestPosition: {40 - broken} of 40 promises held, {broken} broken"
    assert lines[1] == "look first at: A batch of mixed lengths (positions and masks are each sequence's own)"
    assert lines[2].startswith("  sequence 0 of 4, prompt of 3 tokens: token 1 is ")
    assert lines[3].startswith("also broken: Small blocks; ")
    assert lines[5] == "not tried (tried when all others are held): Random schedules"
    assert f"{broken - 1} more broken" in report.to_html()


def test_an_error_of_the_stage_names_its_line():
    report = contract(FailsToFree, quick=True, device="cpu")
    assert [outcome.promise.name for outcome in report.broken] == ["errors_free_everything", "failed_steps"]
    assert repr(report).splitlines()[2].endswith("of your cell: `del self.caches[seq.seq_id]`")


def test_an_endless_loop_gives_a_report():
    class Endless(Right):
        def build(self, seqs):
            while True:
                try:
                    time.sleep(0.001)
                except Exception:
                    pass

    report = contract(Endless, seconds=0.5, device="cpu")
    assert repr(report).splitlines() == [
        "Endless: 1 of 2 promises held, 1 broken",
        "look first at: It fits the seam (the model calls what build returns, once a layer)",
        "  not done after 0.5 s, and stopped: does a loop never end?",
        f"not tried (the one before it never ended): the {len(PROMISES) - 2} others",
    ]


def test_a_constructor_that_breaks_gives_a_report():
    class NotMade(Right):
        def __init__(self, model, **sizes):
            raise TypeError("<no>")

    report = contract(NotMade, device="cpu")
    assert repr(report).splitlines()[2].startswith("  TypeError: <no>, in line ")
    assert repr(report).splitlines()[3] == f"not tried (there is no stage to try): the {len(PROMISES) - 1} others"
    assert "<no>" not in report.to_html() and "&lt;no&gt;" in report.to_html()


@pytest.mark.parametrize("wrong", [None, int, "NaiveCat"])
def test_what_is_no_stage_class_is_refused(wrong):
    with pytest.raises(ValueError, match="stage_class must be a Stage class"):
        contract(wrong)


def test_an_interrupt_is_the_callers():
    class Interrupted(Right):
        def build(self, seqs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        contract(Interrupted, device="cpu")


def test_the_random_state_stays():
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    list(check_promises(Right, promises=[p for p in QUICK_ONLY if p.name in ("half_precision", "random_schedules")]))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_a_stage_that_writes_into_its_model_harms_no_later_stage():
    [rounds] = [mutant for mutant in MUTANTS if mutant.name == "RoundsYourWeights"]
    names = ("can_be_made", "one_sequence", "batch_grows_and_shrinks", "leaves_your_model", "half_precision")
    promises = [BY_NAME[name] for name in names]
    assert any(outcome.verdict == "broken" for outcome in check_promises(rounds.make(), promises=promises))
    assert [outcome.verdict for outcome in check_promises(Right, promises=promises)] == ["held"] * len(names)
