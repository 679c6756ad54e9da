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
