"""Steps that read what an older batch left behind, count too early, or write into the caller's model."""

from __future__ import annotations

from contextlib import suppress

import torch

from course.contract.making import copy_of
from course.contract.small_models import prompts_of
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage
from stages import FusedStep, Graphs, NaiveCat, PackedWeights
from stages.s11_fused_step import read
from stages.s13_graphs import advance

from .demonstrations import demonstration, right_token, script
from .mutant import by_hand, edit

TOGETHER = ("prompts_together",)
FAILED = ("failed_choice",)
YOURS = ("leaves_your_model",)
NAN_AT = 8


@demonstration
def prefilled(stage_class, *batches: list[int]) -> None:
    """The first tokens of each batch of prompts, all prefilled in one call, beside the reference's."""
    stage = stage_class(copy_of("gpt2", "cpu"), num_blocks=16)
    for lengths in batches:
        seqs = [Sequence(prompt, SamplingParams(max_tokens=1)) for prompt in prompts_of(lengths, 97, seed=5)]
        tokens = stage.first_tokens(seqs)
        right = [right_token("gpt2", tuple(seq.token_ids)) for seq in seqs]
        assert tokens == right, f"prompts of {lengths}: {tokens} chosen, {right} are right"
        for seq in seqs:
            stage.free(seq)


@demonstration
def one_row_of_nan(stage_class) -> None:
    """Decode two sequences, one with NaN at position 8. Its step is refused; then the other one goes on alone."""
    model = copy_of("gpt2", "cpu")
    with torch.no_grad():
        model.wpe.weight[NAN_AT] = torch.nan
    stage = stage_class(model, num_blocks=8)
    seqs = [Sequence(prompt, SamplingParams(max_tokens=4)) for prompt in prompts_of([3, NAN_AT], 97)]
    for seq, token in zip(seqs, stage.first_tokens(seqs), strict=True):
        seq.append(token)
    with suppress(ValueError):
        tokens = stage.next_tokens(seqs)
        raise AssertionError(f"{tokens} are chosen from logits of NaN")
    stage.free(seqs.pop())
    right = right_token("gpt2", tuple(seqs[0].token_ids))
    assert stage.next_tokens(seqs) == [right]


@demonstration
def writes_into_the_model(stage_class) -> None:
    """The caller's model beside what it was: its modules and all of its numbers."""
    model, was = copy_of("gpt2", "cpu"), copy_of("gpt2", "cpu")
    stage_class(model, num_blocks=8)
    assert str(model) == str(was), "other modules"
    for name, tensor in was.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def stale_starts(base: type[Stage]) -> type[Stage]:
    class StaleStarts(base):
        """Where each sequence begins in a step is kept for as long as sequences and tokens are as many."""

        def write_tables(self, seqs, num_new):
            attend = super().write_tables(seqs, num_new)
            self.kept = getattr(self, "kept", {})
            starts = self.inputs_on_host["query_start"][: len(seqs) + 1]
            starts[:] = self.kept.setdefault((len(seqs), sum(num_new)), starts.copy())
            return attend

    return StaleStarts


class LastBatchFirst(FusedStep):
    """Prompts that need several flat batches are run from the last one on, and so are their tokens."""

    def groups(self, seqs):
        return super().groups(seqs)[::-1]


class LeftoverPadding(Graphs):
    """Padding is written when the bucket is another one than in the last step."""

    last_bucket = None

    def write_padding(self, num_seqs, bucket):
        if bucket != self.last_bucket:
            super().write_padding(num_seqs, bucket)
        self.last_bucket = bucket


class CountsBeforeItReads(Graphs):
    """The step counts when it was replayed, before its tokens are on the host."""

    @torch.inference_mode()
    def next_tokens(self, seqs):
        logits, tokens = self.replay(seqs)
        advance(seqs)
        return read(self.choose(logits, seqs) if any(seq.params.temperature > 0 for seq in seqs) else tokens)


class RoundsYourWeights(NaiveCat):
    def __init__(self, model, **sizes):
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
        super().__init__(model, **sizes)


MUTANTS = (
    by_hand(stale_starts(FusedStep), prefilled([3, 9], [9, 3]), *TOGETHER),
    by_hand(LastBatchFirst, prefilled([100, 150, 60, 7, 180]), *TOGETHER),
    by_hand(LeftoverPadding, script("+a1 +b1 +c1 +d1 abcd -d +e3 abc e*3"), "padding_touches_nothing"),
    by_hand(RoundsYourWeights, writes_into_the_model(), *YOURS),
    edit(PackedWeights, "packs the caller's model",
         "twin = empty_model(model.config)\n        twin.load_state_dict(model.state_dict(), assign=True)",
         "twin = model",
         writes_into_the_model(), *YOURS),
    edit(FusedStep, "a failed choice counts", "                seq.num_cached_tokens -= 1\n", "                pass\n",
         one_row_of_nan(), *FAILED),
    edit(FusedStep, "NaN gives a token", "return torch.where(largest.isfinite(), tokens, -1)", "return tokens",
         one_row_of_nan(), *FAILED),
    by_hand(CountsBeforeItReads, one_row_of_nan(), *FAILED),
)  # fmt: skip
