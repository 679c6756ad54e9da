"""Sequences that follow texts written beforehand (teacher forcing): one forward of the reference judges all steps.

With the stage's own tokens the reference would have to recompute the whole text for each token. Teacher forcing checks
a text of thousands of tokens, or a batch of hundreds of sequences, within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from roseinfer.arguments import counted
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .broken_promises import require_all_free, require_one_owner
from .making import stage_of
from .small_models import text_logits, text_of

# Of the largest logit. Right stages are off by 1e-6 and less; one token in 4,000 moves more than 1e-4.
TOLERANCE = 1e-5


class TeacherForced:
    """A stage on the model of that name in small_models.MAKERS, with the texts that its sequences follow.

    own: a copy of that model that several stages share; None gives this stage a copy that no other stage has.

    Every call is judged by its logits, by the number of cached tokens that its sequences then have, and by the block
    tables: no block is lost or shared. `where` describes the situation in the message of a broken promise.
    """

    def __init__(
        self, stage_class: type[Stage], device: str, model: str, *, own: Model | None = None, **sizes: int
    ) -> None:
        self.model, self.device = model, device
        self.stage = stage_of(stage_class, own or model, device, **sizes)
        self.texts: dict[int, tuple[int, ...]] = {}

    def begin(self, lengths: Iterable[int], num_steps: int, where: str = "", seed: int = 0) -> list[Sequence]:
        """Prefill a prompt of each length; each sequence's own random text goes on for num_steps after its prompt."""
        texts = [text_of(self.model, length + num_steps, seed + i) for i, length in enumerate(lengths)]
        return [self.prefill(text, len(text) - num_steps, where) for text in texts]

    def prefill(self, text: tuple[int, ...], length: int, where: str = "") -> Sequence:
        """Make a sequence with the first `length` tokens of the text as its prompt, and prefill it."""
        seq = Sequence(list(text[:length]), SamplingParams(max_tokens=1))
        self.prefill_again(seq, text, where)
        return seq

    def prefill_again(self, seq: Sequence, text: tuple[int, ...], where: str = "") -> None:
        self.texts[seq.seq_id] = text
        logits = self.stage.prefill(seq)
        self.judge(logits.unsqueeze(0), [seq], f"{where}in the prefill of")

    def decode(self, seqs: list[Sequence], where: str = "") -> None:
        """Decode one step. Each sequence gets its text's next token, unless it still has the one of a failed step."""
        self.give_tokens(seqs)
        batch = "one sequence" if len(seqs) == 1 else f"{len(seqs)} sequences"
        self.judge(self.stage.decode(list(seqs)), seqs, f"{where}in a step of {batch},")

    def give_tokens(self, seqs: list[Sequence]) -> None:
        for seq in seqs:
            if len(seq) == seq.num_cached_tokens:
                seq.append(self.texts[seq.seq_id][len(seq)])

    def free(self, seq: Sequence) -> None:
        self.stage.free(seq)
        require_one_owner(self.stage.tables)

    def end(self, seqs: list[Sequence]) -> None:
        """Free these sequences, which must be all that the stage holds."""
        for seq in seqs:
            self.free(seq)
        require_all_free(self.stage, "with every sequence freed")

    def books(self, seqs: list[Sequence]) -> tuple[int, ...]:
        """Return the counts that a refused call must not change: cached tokens, sequences held, free blocks."""
        return *(seq.num_cached_tokens for seq in seqs), len(self.stage.tables), self.stage.num_free_blocks

    def judge(self, logits: Tensor, seqs: list[Sequence], where: str) -> None:
        """Check the logits [B, V] that a call returned, and how many tokens its sequences count as cached after it."""
        allowed = (len(seqs), self.stage.config.vocab_size)
        assert logits.shape == allowed, f"{where} the logits have shape {tuple(logits.shape)}, expected {allowed}"
        want = torch.stack([text_logits(self.model, self.texts[seq.seq_id], self.device)[len(seq) - 1] for seq in seqs])
        off = (logits - want).abs().amax(1) / want.abs().amax(1)
        for i, (error, seq) in enumerate(zip(off.tolist(), seqs, strict=True)):
            row = f"row {i}, of {counted(len(seq), 'token')}"
            assert error <= TOLERANCE, (
                f"{where} {row}: a logit is off from the reference by {error:.2g} of the largest, allowed {TOLERANCE}"
            )
            cached = seq.num_cached_tokens
            assert cached == len(seq), f"{where} {row}: {cached} tokens count as cached now"
        require_one_owner(self.stage.tables)
