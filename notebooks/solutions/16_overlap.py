# --- 16.1
def plan_next(requests):
    num_new = []
    for num_tokens, num_cached, in_flight, max_len in requests:
        cached = num_cached + in_flight
        gets_token = in_flight > 0 and cached == num_tokens
        length = num_tokens + gets_token
        num_new.append(0 if length == max_len else length - cached)
    return num_new


# --- 16.2
def feed(token_ids, last_tokens):
    rows = (-1 - token_ids).clamp(min=0)
    tokens = last_tokens[rows].clamp(min=0)
    token_ids.copy_(torch.where(token_ids < 0, tokens, token_ids))


# --- 16.3
def commit_late(seqs, tokens, stop_token_id):
    alive = [(seq, token) for seq, token in zip(seqs, tokens, strict=True) if seq.finish_reason is None]
    if any(token == -1 for _, token in alive):
        raise ValueError("a row has NaN or infinity, and no token")
    for seq, token in alive:
        seq.token_ids.append(token)
        if token == stop_token_id:
            seq.finish_reason = "stop"
        elif len(seq.token_ids) == seq.max_len:
            seq.finish_reason = "length"
    return [seq for seq, _ in alive]


# --- 16.4
class OneAhead(TakingTurns):
    def step(self):
        was_in_flight = bool(self.in_flight)
        try:
            with self.ahead(), suppress(OutOfBlocks) if was_in_flight else nullcontext():
                self.launch(*self.schedule())
            return self.finish() if was_in_flight else []
        except BaseException:
            self.drop()
            raise
