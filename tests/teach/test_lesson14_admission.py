"""Lesson 14, a rule of admission: wrong ones are told what is wrong, and other right ways pass."""

from __future__ import annotations

from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers

from stages import Graphs, TokenBudget


class Unchanged(TokenBudget):
    num_calls = 0


class WorstCase(TokenBudget):
    def admit(self, seq):
        reserved = sum(self.tables.blocks_for(other.max_len - 1) for other in (*self.running, seq))
        return reserved <= self.tables.num_blocks and super().admit(seq)


class OneAtATime(TokenBudget):
    def admit(self, seq):
        return not self.running and super().admit(seq)


class NobodyWithoutRoom(TokenBudget):
    """Half of the pool stays free, for the only one, too."""

    def admit(self, seq):
        left = self.tables.num_free - self.tables.blocks_for(len(seq))
        return left >= 0.9 * self.tables.num_blocks and super().admit(seq)


class ABlockEach(TokenBudget):
    """Too little: they need more than one."""

    def admit(self, seq):
        left = self.tables.num_free - self.tables.blocks_for(len(seq))
        return (not self.running or left >= len(self.running)) and super().admit(seq)


class ShortFirst(TokenBudget):
    """Those that need little overtake."""

    def admit(self, seq):
        shortest = min(self.waiting, key=lambda other: other.max_len)
        return len(self.running) < 3 and super().admit(shortest)


class ForgetsWhatItMade(TokenBudget):
    """Greedily it makes the same tokens once more, and pays for each."""

    def preempt(self, seq):
        super().preempt(seq)
        del seq.token_ids[seq.num_prompt_tokens :]


class TokenForACutPrompt(TokenBudget):
    def run(self, seqs, num_new):
        tokens = super().run(seqs, num_new)
        return tokens + [0] * (len(seqs) - len(tokens))


class KeepsItsBlocks(TokenBudget):
    def preempt(self, seq):
        self.num_preemptions += 1


class KeepsABlock(TokenBudget):
    """Of the last one to end."""

    def admit(self, seq):
        return len(self.running) < 2 and super().admit(seq)

    def commit(self, seqs, tokens):
        done = super().commit(seqs, tokens)
        if not self.has_work:
            self.tables.reserve({seqs[0].seq_id: 1})
        return done


class NoBudget(TokenBudget):
    def schedule(self):
        seqs, num_new = super().schedule()
        num_new[-1] = len(seqs[-1]) - seqs[-1].num_cached_tokens
        return seqs, num_new


class WaitsForEver(TokenBudget):
    """Once three have joined, nobody does."""

    def make_room(self):
        return False

    def run(self, seqs, num_new):
        return []


class LargerPool(TokenBudget):
    def __init__(self, model, *, num_blocks, **sizes):
        super().__init__(model, num_blocks=2 * num_blocks, **sizes)


class ShortestFirst(TokenBudget):
    def prompts(self, may_admit):
        yield from [seq for seq in self.running if seq.num_cached_tokens < len(seq) - 1]
        for seq in sorted(self.waiting, key=lambda seq: seq.max_len):
            if not (may_admit and self.admit(seq)):
                break
            yield self.running[-1]


@wrong_answers(
    "14.4",
    {
        "unchanged": (Unchanged, "at most 67% of these are allowed. Leave more room"),
        "a block each": (ABlockEach, "Leave more room for those that run"),
        "the worst case": (WorstCase, "The pool stands empty: let more in"),
        "one at a time": (OneAtATime, "The pool stands empty: let more in"),
        "not even the only one": (NobodyWithoutRoom, "whoever is alone has to get in"),
        "the short overtake": (ShortFirst, "before request"),
        "tokens forgotten": (ForgetsWhatItMade, "tokens were computed again in 3 loads"),
        "a token for a cut prompt": (TokenForACutPrompt, "token 0 is 0, expected"),
        "a preempt that frees nothing": (KeepsItsBlocks, "does preempt still give back blocks?"),
        "blocks kept": (KeepsABlock, "blocks are not free at the end"),
        "no budget": (NoBudget, "tokens, the budget is 16"),
        "a larger pool": (LargerPool, "made with num_blocks=24, the stage has a pool of 48 blocks"),
        "prompts() in another order": (ShortestFirst, "before request"),
        "nothing is computed": (WaitsForEver, "somebody waits for ever"),
        "no stage": (lambda model: None, "expected a subclass of TokenBudget"),
        "another stage": (Graphs, "expected a subclass of TokenBudget, got Graphs"),
        "the stage itself": (TokenBudget, "expected a subclass of TokenBudget, got TokenBudget"),
    },
)
def test_wrong_rules(answer, message):
    assert_refused("14.4", answer, message)


class AShareStaysFree(TokenBudget):
    def admit(self, seq):
        left = self.tables.num_free - self.tables.blocks_for(len(seq))
        return (not self.running or left >= 0.3 * self.tables.num_blocks) and super().admit(seq)


class HalfWay(TokenBudget):
    """In prompts(), which asks for those that join: as if all had half of their tokens."""

    def prompts(self, may_admit):
        for seq in super().prompts(may_admit and self.has_room()):
            yield seq
            if not self.has_room():
                return

    def has_room(self):
        seqs = [*self.running, *list(self.waiting)[:1]]
        half = sum(self.tables.blocks_for((len(seq) + seq.max_len) // 2) for seq in seqs)
        return not self.running or half <= self.tables.num_blocks


class NotAfterAPreemption(TokenBudget):
    """Waits until somebody has ended before it lets in whoever had to go, and lets in fewer at all."""

    def admit(self, seq):
        crowded = sum(other.max_len - len(other) for other in self.running) > 3 * self.tables.num_free
        return (not self.running or not crowded) and super().admit(seq)


@right_answers(
    "14.4", {"a share stays free": AShareStaysFree, "in prompts": HalfWay, "by what is free": NotAfterAPreemption}
)
def test_right_rules(answer):
    assert_accepted("14.4", answer)
