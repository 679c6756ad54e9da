"""Stages with a queue that lose a request, a block or a token: one slip in the source of stages 14, 16 and 17."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from roseinfer.sequence import SamplingParams, Sequence
from stages import Overlap, Policies, TokenBudget

from .mutant import by_hand, edit
from .queue_demonstrations import bad_logits, fails_somewhere, first_to_end, is_refused, served, stopped, waits_for_ever
from .steps import stale_starts

S14, S16, S17 = TokenBudget, Overlap, Policies
MANY = served("+a9*5 +b3*9 +c14*3 s +d1*9 s3 +e7*4")
CHUNKS = served("+a5*9 s2 +b30*5 +c9*3 s +d2*4", max_num_batched_tokens=5)
TIGHT = served("+a5*16 +b3*16 +c8*16 +d4*16", num_blocks=7)
DRAWN = served("+a9*5? +b3*9? +c14*3?")
HANGS_UP = served("+a9*5 +b3*9 s2 -a +c9*9 s -c +d9*9")
BREAKS = fails_somewhere("+a9*5 +b3*9 s ! s +c5*3 !")
ANY = ("runs_a_queue", "any_budget")
POOL, ORDER, ERRORS = ("small_pools",), ("ordered_by_policy",), ("failed_queue_steps",)


def wish(prompt: int = 3, max_tokens: int = 3, **wishes: object) -> Sequence:
    return Sequence([1] * prompt, SamplingParams(max_tokens=max_tokens, **wishes))


TWICE = wish()


class ForgetsAfterAnError(TokenBudget):
    """An error empties the batch, and nothing of it goes back to the queue."""

    def step(self):
        try:
            return super().step()
        except BaseException:
            for seq in self.running:
                self.free(seq)
            self.running.clear()
            raise


MUTANTS = (
    by_hand(ForgetsAfterAnError, BREAKS, *ERRORS),
    by_hand(stale_starts(TokenBudget), served("+a3*1 +b9*1 s +c9*1 +d3*1"), *ANY, "small_pools"),
    edit(S14, "a step of any size", "room -= num_new[-1]\n            if not room:", "if not room:",
         served("+a100*2 +b100*2 +c100*2", num_blocks=90), "any_budget"),
    edit(S14, "a preempted one is lost", "self.waiting.appendleft(seq)", "pass", TIGHT, *POOL),
    edit(S14, "a preempted one keeps its blocks", "        self.free(seq)\n        self.waiting", "        self.waiting",
         TIGHT, *POOL),
    edit(S14, "an aborted one keeps its blocks", "            self.free(seq)\n        seq.finish_reason",
         "            pass\n        seq.finish_reason", HANGS_UP, "aborted_anywhere"),
    edit(S14, "an aborted one goes on", "        queue.remove(seq)\n", "", HANGS_UP, "aborted_anywhere"),
    edit(S14, "added twice", "if seq in self.waiting or seq in self.running:", "if False:",
         is_refused(lambda: TWICE, lambda: TWICE), "refused_when_added"),
    edit(S14, "what never fits waits", "        check_startable(self, [seq])\n", "", is_refused(lambda: wish(40, 9)),
         "refused_when_added"),
    edit(S14, "last come, first served", "self.waiting.append(seq)", "self.waiting.appendleft(seq)", waits_for_ever(),
         "no_request_starves"),
    edit(S14, "a cut prompt gets a token", "is_cut = seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1])",
         "is_cut = False", CHUNKS, "any_budget"),
    edit(S14, "the logits of the first token", "[1 : len(chosen) + 1] - 1", "[: len(chosen)]", MANY, *ANY),
    edit(S14, "joins without blocks", " or self.tables.blocks_for(len(seq)) > self.tables.num_free", "", TIGHT, *POOL),
    edit(S14, "one place too many", "if len(self.tables) == self.max_num_seqs or", "if len(self.tables) > self.max_num_seqs or",
         served("+a3*5 +b3*5 +c3*5 +d3*5 +e3*5"), "runs_a_queue"),
    edit(S14, "ended, and still running", "self.running = [seq for seq in self.running if not seq.finish_reason]",
         "self.running = [seq for seq in self.running if self.holds(seq) or seq.params.max_tokens > 1]", MANY, *ANY),
    edit(S14, "NaN gives a token", "if -1 in read:", "if False:", bad_logits(8), "one_bad_request"),
    edit(S16, "a surplus token is kept", "if not seq.finish_reason]", "if seq]", stopped(), "ends_where_it_should"),
    edit(S16, "the token of row 0", "seq.append(-1 - row)", "seq.append(-1)", MANY, *ANY),
    edit(S16, "preempts what is in flight", "if self.in_flight:\n            raise", "if False:\n            raise", TIGHT,
         *POOL),
    edit(S16, "in flight counts for good", "                seq.num_cached_tokens -= n\n", "", MANY, *ANY),
    edit(S16, "a step that failed stays in flight", "        self.in_flight.clear()\n", "", BREAKS, *ERRORS),
    edit(S16, "a token of a cut prompt", "rows = [row for row, _, _ in alive if row < step.num_rows]",
         "rows = [row for row, _, _ in alive]", CHUNKS, "any_budget"),
    edit(S16, "seeds by another length", "generator_of(seq, probs.device, length)", "generator_of(seq, probs.device, 7)",
         DRAWN, "runs_a_queue"),
    edit(S16, "NaN is appended", "self.read(step.side.tokens[rows], [step.seqs[row] for row in rows])",
         "step.side.tokens[rows].tolist()", bad_logits(4), "one_bad_request"),
    edit(S17, "no priority", "return seq.priority, self.rounds", "return 0, self.rounds",
         first_to_end("cab", "a3*9", "b3*1", "c3*1!"), *ORDER),
    edit(S17, "no rounds", "self.num_added // ROUND", "0", waits_for_ever(policy="shortest"), "no_request_starves"),
    edit(S17, "of equals the last", "return min(waiting, key=len)", "return min(reversed(waiting), key=len)",
         first_to_end("ab", "a3*2", "b3*2", policy="shortest"), *ORDER),
    edit(S17, "shortest in all", "return min(waiting, key=len)", "return min(waiting, key=lambda seq: seq.max_len)",
         first_to_end("ba", "a4*1", "b3*9", policy="shortest"), *ORDER),
    edit(S17, "longest in all", "return max(waiting, key=lambda seq: seq.max_len - len(seq))",
         "return max(waiting, key=lambda seq: seq.max_len)", first_to_end("ba", "a9*2", "b3*4", policy="longest_output"), *ORDER),
    edit(S17, "the first, whatever the policy", "self.admit(seq := self.next_in_line())", "self.admit(seq := self.waiting[0])",
         first_to_end("ba", "a9*2", "b3*4", policy="shortest"), *ORDER),
    edit(S17, "an unknown length", "if self.policy is longest_output and may_stop_early(seq.params):", "if False:",
         is_refused(lambda: wish(stop_token_ids=(3,)), policy="longest_output"), *ORDER),
)  # fmt: skip
