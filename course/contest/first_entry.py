"""An entry for the contest. Score it with `roseinfer contest run FILE`.

One class, derived from one of these; every kind gives the same tokens, and may only give them sooner:

    Policy      which queued request is next: key(seq), the smallest goes first
    Draft       tokens that may follow a text: draft(token_ids, num_tokens)
    Settings    settings of the engine, as a dict `settings`, and its weights: prepare(model)
    Stage       a step of your own, as in the course: derive it from any stage

The rules: tokens are greedy in float32, and as many as were asked for. Eight sequences run at a time: a prompt comes
when one of eight places is free, and until then only its length is known. Prompts are new in every run. The time is
taken from outside, from the first request to the last token. An entry leaves the library as it is.
"""

from course.contest import Policy


class MyEntry(Policy):
    """First come, first served, as in the baseline: change it."""

    name = "my_entry"

    def key(self, seq):
        # seq.num_prompt_tokens, len(seq): tokens so far, seq.max_len: tokens at its end
        return 0
