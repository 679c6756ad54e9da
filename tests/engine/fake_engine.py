"""An engine without a model: its K and V are fingerprints of a text, and its tokens follow from them.

What a slot of the pool should hold is known, so attention over a wrong, stale or half-shared block is an error at once,
and a step takes microseconds.
"""

from __future__ import annotations

from itertools import accumulate, takewhile, zip_longest

from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.policies import policy_for
from roseinfer.engine.prefix_cache import PrefixCache
from roseinfer.engine.scheduler import Scheduler
from roseinfer.engine.speculation.speculation import add_drafts, reserve_drafts, settle_drafts
from roseinfer.engine.step import Step
from roseinfer.sampling import NO_TOKEN
from roseinfer.sequence import SamplingParams, Sequence

VOCAB_SIZE = 97
Computed = tuple[Step, list[int]]  # a step, and the tokens that follow its sequences


def fingerprints(token_ids: list[int]) -> list[int]:
    """One for each token, of all the text up to it."""
    return list(accumulate(token_ids, lambda before, token: hash((before, token)), initial=0))[1:]


def continuation(prompt: list[int], max_tokens: int) -> list[int]:
    """What the fake model says after a prompt."""
    text = list(prompt)
    for _ in range(max_tokens):
        text.append(fingerprints(text)[-1] % VOCAB_SIZE)
    return text[len(prompt) :]


def request(prompt: list[int], max_tokens: int = 5, stop: int | None = None, **others) -> Sequence:
    """stop: a token that it ends with, should it come."""
    stops = [] if stop is None else [stop]
    return Sequence(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stops), **others)


class FakeEngine:
    def __init__(
        self,
        num_blocks: int = 24,
        block_size: int = 4,
        max_num_seqs: int = 4,
        budget: int = 16,
        policy: str = "fcfs",
        caching: bool = True,
        behind: bool = False,
        num_drafts: int = 0,
    ) -> None:
        """behind: a step is launched before the one before it is committed, as an engine of depth 2 does. num_drafts:
        of each sequence that decodes, some right to their end and some not."""
        self.cache = PrefixCache(block_size) if caching else None
        self.blocks = BlockManager(num_blocks, block_size, max_num_seqs, num_blocks, self.cache)
        self.scheduler = Scheduler(self.blocks, budget, (), policy_for(policy))
        self.pool = [[0] * block_size for _ in range(num_blocks)]
        self.steps: list[list[tuple[Sequence, int]]] = []
        self.behind, self.num_drafts = behind, num_drafts
        self.in_flight: Computed | None = None
        self.fails_after: dict[int, int] = {}  # by seq_id, new tokens after which logits are not finite

    def add(self, *seqs: Sequence) -> None:
        for seq in seqs:
            self.scheduler.add(seq)

    def step(self) -> list[Sequence]:
        if not self.behind:
            return self.commit(computed) if (computed := self.computed()) else []
        before, self.in_flight = self.in_flight, self.computed()
        return self.commit(before) if before else []

    def commit(self, computed: Computed) -> list[Sequence]:
        step, _ = computed
        for seq, n in zip(step.seqs, step.num_new, strict=True):
            seq.num_in_flight -= n
        done = self.scheduler.commit(*computed)
        if step.drafts:
            assert 0 <= settle_drafts(self.scheduler, step) <= sum(map(len, step.drafts))
        for seq in step.seqs:
            if step.draft_of().get(seq.seq_id) and seq.seq_id in self.blocks:
                held = len(self.blocks.of(seq.seq_id))
                assert held == self.blocks.blocks_for(seq.num_cached_tokens), "a block that only a draft needed"
        return done

    def add_drafts(self, step: Step) -> None:
        """As Speculation adds them. How many of a draft are right depends on the text alone."""
        preemptions = self.scheduler.num_preemptions
        seqs = list(takewhile(lambda seq: len(seq) == seq.num_cached_tokens + 1, step.seqs))
        most = reserve_drafts(self.scheduler, step, [self.num_drafts] * len(seqs))
        drafts = []
        for seq, n in zip(seqs, most, strict=True):
            assert 0 <= n <= self.num_drafts
            draft, wrong = continuation(seq.token_ids, n), sum(seq.token_ids) % (self.num_drafts + 1)
            drafts.append([token + 1 if i == wrong else token for i, token in enumerate(draft)])
        add_drafts(step, drafts)
        assert self.scheduler.num_preemptions == preemptions, "a draft has preempted a sequence"

    def drop(self) -> None:
        """The tokens in flight never come."""
        self.in_flight = None
        for seq in (*self.scheduler.running, *self.scheduler.waiting):
            seq.num_in_flight = 0

    def computed(self) -> Computed | None:
        """A step up to its tokens, which are not committed yet. None: there is no work, or another one has to be
        committed first."""
        known = {}
        if self.in_flight:
            before, tokens = self.in_flight
            known = {seq.seq_id: token for seq, token in zip(before.chosen, tokens, strict=True)}
        step = self.scheduler.schedule()
        assert step or self.in_flight or not self.scheduler.has_work, "no step while there is work"
        if not step:
            return None
        if self.num_drafts:
            self.add_drafts(step)
        seqs, num_new = step.seqs, step.num_new
        assert sum(num_new) <= self.scheduler.max_num_batched_tokens
        assert len(set(seqs)) == len(seqs) <= self.scheduler.max_num_seqs
        assert all(n > 0 for n in num_new)
        texts = [seq.token_ids + ([known[seq.seq_id]] if seq.seq_id in known else []) for seq in seqs]
        texts = [text + draft for text, draft in zip_longest(texts, step.drafts, fillvalue=[])]
        starts = [seq.num_launched_tokens for seq in seqs]
        ends = [start + n for start, n in zip(starts, num_new, strict=True)]
        assert all(end == len(text) for end, text in list(zip(ends, texts, strict=True))[:-1]), "only the last is cut"
        assert step.is_cut == (ends[-1] < len(texts[-1]))
        assert all(end < seq.max_len for end, seq in zip(ends, seqs, strict=True)), "more tokens than it may have"
        self.check()
        self.steps.append(list(zip(seqs, num_new, strict=True)))
        tokens = self.run(seqs, starts, ends, texts, [*map(len, step.drafts)])
        for seq, n in zip(seqs, num_new, strict=True):
            seq.num_in_flight += n
        return step, tokens

    def run(
        self, seqs: list[Sequence], starts: list[int], ends: list[int], texts: list[list[int]], drafted: list[int]
    ) -> list[int]:
        """All write, then all read, as in a layer. texts: as the device knows them, with the drafts at their ends."""
        size = self.blocks.block_size
        copied = {to: list(self.pool[source]) for to, source in self.blocks.pool.copies.items()}
        for to, contents in copied.items():
            self.pool[to] = contents
        self.blocks.pool.copies.clear()
        for seq, start, end, text in zip(seqs, starts, ends, texts, strict=True):
            table, prints = self.blocks.of(seq.seq_id), fingerprints(text)
            for at in range(start, end):
                block = table[at // size]
                assert self.blocks.pool.ref_counts[block] == 1, "a shared block is written"
                assert not self.cache or block not in self.cache.of_block, "a block that can be found is written"
                self.pool[block][at % size] = prints[at]
        tokens = []
        drafted += [0] * (len(seqs) - len(drafted))
        for seq, end, text, num_drafts in zip(seqs, ends, texts, drafted, strict=True):
            table = self.blocks.of(seq.seq_id)
            read = [self.pool[table[at // size]][at % size] for at in range(end)]
            assert read == fingerprints(text[:end]), f"sequence {seq.seq_id} reads what is not its text"
            for known in range(end - num_drafts, end + 1) if end == len(text) else ():
                fails = known - seq.num_prompt_tokens == self.fails_after.get(seq.seq_id)
                tokens.append(NO_TOKEN if fails else read[known - 1] % VOCAB_SIZE)
        return tokens

    def check(self) -> None:
        self.blocks.check()
        assert all(seq.seq_id in self.blocks for seq in self.scheduler.running)
        assert not any(seq.seq_id in self.blocks for seq in self.scheduler.waiting)
        assert len(self.blocks) == len(self.scheduler.running)

    def run_out(self, most_steps: int = 10_000) -> None:
        """To the end of all requests: right tokens, every block free."""
        seqs = [*self.scheduler.running, *self.scheduler.waiting]
        for _ in range(most_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, f"not done after {most_steps} steps"
        self.drop()
        self.check()
        assert self.blocks.num_free == self.blocks.num_blocks and not any(self.blocks.pool.ref_counts)
        for seq in seqs:
            assert_right(seq)


def assert_right(seq: Sequence) -> None:
    """To its end, or to where it was aborted or failed."""
    wanted = continuation(seq.token_ids[: seq.num_prompt_tokens], seq.params.max_tokens)
    ends = [i for i, token in enumerate(wanted) if token in seq.params.stop_token_ids]
    wanted = wanted[: ends[0] + 1] if ends else wanted
    assert seq.output_ids == (wanted[: len(seq.output_ids)] if seq.finish_reason in ("abort", "error") else wanted)
