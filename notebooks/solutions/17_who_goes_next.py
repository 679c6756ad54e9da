# --- 17.1
def key(arrival, priority, prompt_len, output_len, made, round_size):
    to_come = output_len - made
    return priority, arrival // round_size, -to_come, arrival


# --- 17.2
def next_one(prompt_lens, overtaken, bound):
    may_go = []
    for place, times in enumerate(overtaken):
        may_go.append(place)
        if times >= bound:
            break  # none after it may overtake it once more
    return min(may_go, key=lambda place: prompt_lens[place])


# --- 17.3
class MyPolicy(FirstCome):
    """The shortest job first: who holds a place for the fewest steps."""

    name = "shortest_output"

    def check(self, params):
        if not params.ignore_eos or params.stop_token_ids or params.stop:
            raise ValueError(f"{self.name} has to know how many tokens come, got {params}")

    def key(self, seq):
        return seq.max_len - len(seq)


# --- 17.4
def abort_all(scheduler, request_ids):
    for seq in [*scheduler.running, *scheduler.waiting]:  # a list of its own: abort changes theirs
        if seq.seq_id in request_ids:
            scheduler.abort(seq)
