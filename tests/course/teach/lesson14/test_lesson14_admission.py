"""Lesson 14, a rule of admission: wrong ones are told what is wrong, and other right ways pass."""

from __future__ import annotations

import pytest
from wrong_answers import right_answers, wrong_answers

from stages import Graphs, TokenBudget

pytestmark = pytest.mark.slow


def rule(**methods):
    return type("LookAhead", (TokenBudget,), methods)


def admitting(may_join):
    """The stage's own rule, and may_join(stage, seq) before it."""
    return rule(admit=lambda self, seq: may_join(self, seq) and TokenBudget.admit(self, seq))


def left_by(self, seq):
    """Blocks that stay free when a sequence joins."""
    return self.tables.num_free - self.tables.blocks_for(len(seq))


def fits_at_its_longest(self, seq):
    longest = sum(self.tables.blocks_for(other.max_len - 1) for other in (*self.running, seq))
    return longest <= self.tables.num_blocks


def one_spare_at_the_end(self, seq):
    """As if all went on to their longest at once; a pool that is then just full is taken for too small."""
    seqs = [*self.running, seq]
    for steps in sorted(other.max_len - 1 - len(other) for other in seqs):
        grown = [len(other) + steps for other in seqs if other.max_len - 1 >= len(other) + steps]
        if sum(map(self.tables.blocks_for, grown)) >= self.tables.num_blocks:
            return False
    return True


def share_stays_free(self, seq):
    return not self.running or left_by(self, seq) >= 0.3 * self.tables.num_blocks


class ForgetsWhatItMade(TokenBudget):
    """Greedily it makes the same tokens once more, and pays for each."""

    def preempt(self, seq):
        super().preempt(seq)
        del seq.token_ids[seq.num_prompt_tokens :]


class KeepsABlock(TokenBudget):
    """Keeps a block of the last sequence to end."""

    def admit(self, seq):
        return len(self.running) < 2 and super().admit(seq)

    def commit(self, seqs, tokens):
        done = super().commit(seqs, tokens)
        if not self.has_work:
            self.tables.reserve({seqs[0].seq_id: 1})
        return done


class NoBudget(TokenBudget):
    def admit(self, seq):
        return share_stays_free(self, seq) and super().admit(seq)

    def schedule(self):
        seqs, num_new = super().schedule()
        num_new[-1] = len(seqs[-1]) - seqs[-1].num_cached_tokens
        return seqs, num_new


def made_with(**other):
    def __init__(self, model, **sizes):
        TokenBudget.__init__(self, model, **sizes | other)

    return rule(__init__=__init__)


class ToTheEnd(TokenBudget):
    """Admits as a right rule does, and a preempted sequence waits after all others."""

    def admit(self, seq):
        return share_stays_free(self, seq) and super().admit(seq)

    def preempt(self, seq):
        super().preempt(seq)
        self.waiting.rotate(-1)


class NotesRequests(TokenBudget):
    """Notes what each may need half way, until it ends or is preempted. An aborted one stays noted."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.noted = {}

    def admit(self, seq):
        half = self.tables.blocks_for((len(seq) + seq.max_len) // 2)
        if self.noted and sum(self.noted.values()) + half > self.tables.num_blocks:
            return False
        if joins := super().admit(seq):
            self.noted[seq.seq_id] = half
        return joins

    def preempt(self, seq):
        super().preempt(seq)
        del self.noted[seq.seq_id]

    def commit(self, seqs, tokens):
        done = super().commit(seqs, tokens)
        for seq in done:
            if seq.finish_reason:
                del self.noted[seq.seq_id]
        return done


test_wrong_rules = wrong_answers(
    "14.4",
    {
        "a block each": (
            admitting(lambda s, seq: not s.running or left_by(s, seq) >= len(s.running)),
            "Leave more room for those that run",
        ),
        "the worst case": (admitting(fits_at_its_longest), "The pool is underused: admit more"),
        "no budget": (NoBudget, "the promise **Any budget**"),
        "not even the only one": (
            admitting(lambda s, seq: left_by(s, seq) >= 0.9 * s.tables.num_blocks),
            "a request that is alone has to get in",
        ),
        "tokens forgotten": (ForgetsWhatItMade, "tokens were computed again in 3 loads"),
        "blocks kept": (KeepsABlock, "the promise **"),
        "three at once": (made_with(max_num_seqs=3), "made with max_num_seqs=8, the stage has 3: pass all sizes on"),
        "a pool that is just full": (
            admitting(one_spare_at_the_end),
            "a request that is alone has to get in, whatever the rule",
        ),
        "a preempted one goes to the end": (ToTheEnd, "no request may overtake another, so a preempted sequence"),
        "aborted requests stay noted": (NotesRequests, "the promise **Aborted anywhere** (clients hang up: "),
        "another stage": (Graphs, "expected a subclass of TokenBudget, got Graphs"),
    },
)


class NotesWhatIsHeld(NotesRequests):
    """Forgets a request with its blocks, however it ends."""

    preempt, commit = TokenBudget.preempt, TokenBudget.commit

    def free(self, seq):
        super().free(seq)
        self.noted.pop(seq.seq_id, None)


# At night: the notebook's solution is judged in every run.
test_right_rules = pytest.mark.nightly(
    right_answers(
        "14.4",
        {
            "a share stays free": admitting(share_stays_free),
            "notes that go with the blocks": NotesWhatIsHeld,
        },
    )
)
