# --- 14.1
def next_step(cached, lengths, budget):
    left = [length - n for n, length in zip(cached, lengths, strict=True)]
    num_new = [1 if n == 1 else 0 for n in left]
    room = budget - sum(num_new)
    for i, n in enumerate(left):
        if n > 1:
            num_new[i] = min(n, room)
            room -= num_new[i]
    return num_new


# --- 14.2
def make_room(lengths, block_size, num_blocks):
    preempted = []
    needed = [-(-n // block_size) for n in lengths]
    while sum(needed) > num_blocks:
        needed.pop()
        preempted.append(len(needed))
    return preempted, sum(lengths[i] - 1 for i in preempted)


# --- 14.3
def times_of(arrival, first_scheduled, finish):
    gaps = [after - before for before, after in zip(finish, finish[1:], strict=False)]
    waiting_time = first_scheduled - arrival
    ttft = finish[0] - arrival
    tpot = sum(gaps) / len(gaps) if gaps else 0
    longest_itl = max(gaps, default=0)
    return waiting_time, ttft, tpot, longest_itl


# --- 14.4
class LookAhead(TokenBudget):
    def admit(self, seq):
        """Only if the pool has room for all at each step to come, should all go on to their longest."""
        seqs = [*self.running, seq]
        for steps in sorted(other.max_len - 1 - len(other) for other in seqs):
            grown = [len(other) + steps for other in seqs if other.max_len - 1 >= len(other) + steps]
            if sum(map(self.tables.blocks_for, grown)) > self.tables.num_blocks:
                return False
        return super().admit(seq)


# --- 14.5
import torch

from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import check_startable
from roseinfer.sequence import finish_reason
from stages import TokenBudget


class MyScheduler(TokenBudget):
    def add(self, seq):
        if seq in self.waiting or seq in self.running:
            raise ValueError(f"sequence {seq.seq_id} was added already")
        check_startable(self, [seq])
        self.waiting.append(seq)

    def abort(self, seq):
        queue = next((queue for queue in (self.waiting, self.running) if seq in queue), None)
        if queue is None:
            raise ValueError(f"sequence {seq.seq_id} neither waits nor runs here")
        queue.remove(seq)
        if self.holds(seq):
            self.free(seq)
        seq.finish_reason = "abort"

    def step(self):
        if not self.has_work:
            raise ValueError("no sequence waits or runs: add one first")
        seqs, num_new = self.schedule()
        return self.commit(seqs, self.run(seqs, num_new))

    def schedule(self):
        was_full = self.make_room()
        seqs = [seq for seq in self.running if len(seq) - seq.num_cached_tokens == 1]
        num_new, room = [1] * len(seqs), self.max_num_batched_tokens - len(seqs)
        prompts = [seq for seq in self.running if len(seq) - seq.num_cached_tokens > 1]
        while room:
            if prompts:
                seq = prompts.pop(0)
            elif not was_full and self.waiting and self.admit(self.waiting[0]):
                seq = self.running[-1]
            else:
                break
            seqs.append(seq)
            num_new.append(min(room, len(seq) - seq.num_cached_tokens))
            room -= num_new[-1]
        if not seqs:
            raise OutOfBlocks("no sequence can run: others hold the blocks")
        return seqs, num_new

    def make_room(self):
        before = self.num_preemptions
        for seq in list(self.running):
            while self.holds(seq):
                try:
                    self.tables.reserve({seq.seq_id: len(seq)})
                    break
                except OutOfBlocks:
                    self.preempt(self.running[-1])
        return self.num_preemptions > before

    def preempt(self, seq):
        if seq not in self.running:
            raise ValueError(f"sequence {seq.seq_id} does not run here")
        self.running.remove(seq)
        self.free(seq)
        self.waiting.appendleft(seq)
        self.num_preemptions += 1

    def admit(self, seq):
        if len(self.tables) == self.max_num_seqs or self.tables.blocks_for(len(seq)) > self.tables.num_free:
            return False
        self.tables.reserve({seq.seq_id: len(seq)})
        self.waiting.remove(seq)
        self.running.append(seq)
        return True

    @torch.inference_mode()
    def run(self, seqs, num_new):
        is_cut = seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1])
        chosen = seqs[:-1] if is_cut else seqs
        if sum(num_new) == len(chosen):
            return self.next_tokens(seqs)
        token_ids, positions = self.write_inputs(seqs, num_new)
        attend = self.write_tables(seqs, num_new)
        tokens = self.read(self.forward(chosen, token_ids, positions, attend), chosen)
        for seq, n in zip(seqs, num_new, strict=True):
            seq.num_cached_tokens += n
        return tokens

    def commit(self, seqs, tokens):
        done = seqs[: len(tokens)]
        for seq, token in zip(done, tokens, strict=True):
            seq.append(token)
            seq.finish_reason = finish_reason(seq, self.config.eos_token_ids)
            if seq.finish_reason:
                self.free(seq)
        self.running = [seq for seq in self.running if not seq.finish_reason]
        return done
