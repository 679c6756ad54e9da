"""Stages with a queue that lose a request, a block or a token: one slip in the source of stages 14, 16 and 17."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from stages import Overlap, Policies, TokenBudget

from .mutant import by_hand, edit
from .steps import stale_starts

S14, S16, S17 = TokenBudget, Overlap, Policies
POOL, ORDER, ERRORS = "small_pools", "ordered_by_policy", "failed_queue_steps"


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
    by_hand(ForgetsAfterAnError, ERRORS),
    by_hand(stale_starts(TokenBudget), "runs_a_queue", "any_budget", POOL),
    edit(S14, "a step of any size", "room -= num_new[-1]\n            if not room:", "if not room:", "any_budget"),
    edit(S14, "a preempted one is lost", "self.waiting.appendleft(seq)", "pass", POOL),
    edit(S14, "an aborted one keeps its blocks", "            self.free(seq)\n        seq.finish_reason",
         "            pass\n        seq.finish_reason", "aborted_anywhere"),
    edit(S14, "an aborted one goes on", "        queue.remove(seq)\n", "", "aborted_anywhere"),
    edit(S14, "added twice", "if seq in self.waiting or seq in self.running:", "if False:", "refused_when_added"),
    edit(S14, "what never fits waits", "        check_startable(self, [seq])\n", "", "refused_when_added"),
    edit(S14, "last come, first served", "self.waiting.append(seq)", "self.waiting.appendleft(seq)", "no_request_starves"),
    edit(S14, "a cut prompt gets a token", "is_cut = seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1])",
         "is_cut = False", "any_budget"),
    edit(S14, "one place too many", "if len(self.tables) == self.max_num_seqs or", "if len(self.tables) > self.max_num_seqs or",
         "runs_a_queue"),
    edit(S14, "NaN gives a token", "if -1 in read:", "if False:", "one_bad_request"),
    edit(S16, "a surplus token is kept", "if not seq.finish_reason]", "if seq]", "ends_where_it_should"),
    edit(S16, "preempts what is in flight", "if self.in_flight:\n            raise", "if False:\n            raise", POOL),
    edit(S16, "a step that failed stays in flight", "        self.in_flight.clear()\n", "", ERRORS),
    edit(S16, "seeds by another length", "generator_of(seq, probs.device, length)", "generator_of(seq, probs.device, 7)",
         "runs_a_queue"),
    edit(S16, "NaN is appended", "self.read(step.side.tokens[rows], [step.seqs[row] for row in rows])",
         "step.side.tokens[rows].tolist()", "one_bad_request"),
    edit(S17, "no priority", "return seq.priority, self.rounds", "return 0, self.rounds", ORDER),
    edit(S17, "no rounds", "self.num_added // ROUND", "0", "no_request_starves"),
    edit(S17, "shortest in all", "return min(waiting, key=len)", "return min(waiting, key=lambda seq: seq.max_len)", ORDER),
    edit(S17, "an unknown length", "if self.policy is longest_output and may_stop_early(seq.params):", "if False:", ORDER),
)  # fmt: skip
