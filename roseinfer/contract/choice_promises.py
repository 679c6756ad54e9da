"""The promise of first_tokens and next_tokens: whoever chooses tokens inside the step chooses as `sample` does."""

from __future__ import annotations

from itertools import cycle, islice

import torch

from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .broken_promises import require_all_free
from .small_models import model_of, prompts_for

MODEL = "gpt2"
LENGTHS = (3, 9, 1, 17, 64, 5, 12)
STEPS = 6
# All that can be asked for, each with a seed, so that one token is right; greedy ones beside them.
WISHES = (
    {"temperature": 0.0}, {"temperature": 1.0, "seed": 1}, {"temperature": 0.7, "top_k": 5, "seed": 2},
    {"temperature": 1.5, "top_p": 0.6, "seed": 3}, {"temperature": 5.0, "top_k": 40, "top_p": 0.9, "seed": 4},
    {"temperature": 1e-30, "seed": 5}, {"temperature": 1.0, "seed": 1},
)  # fmt: skip


def chooses_as_sample(stage_class: type[Stage], device: str) -> None:
    """The same requests on two stages: one chooses itself, of the other `sample` reads the logits."""
    for wishes, what in ((WISHES, "greedy and drawn rows"), (WISHES[:1], "greedy rows"), (WISHES[1:2], "one seed")):
        params = [SamplingParams(max_tokens=STEPS + 1, **wish) for wish in islice(cycle(wishes), len(LENGTHS))]
        stage, other = (stage_class(model_of(MODEL, device), num_blocks=16) for _ in range(2))
        seqs, twins = (list(map(Sequence, prompts_for(MODEL, LENGTHS), params)) for _ in range(2))
        # None of the requests without a seed is drawn, so nothing may depend on the global generator.
        torch.manual_seed(0)
        chosen = stage.first_tokens(seqs)
        logits = torch.stack([other.prefill(twin) for twin in twins])
        for step in range(STEPS):
            _require_equal(chosen, sample(logits, twins), seqs, f"{what}, token {step} of each")
            for token, seq, twin in zip(chosen, seqs, twins, strict=True):
                seq.append(token)
                twin.append(token)
            if step % 2:  # the order of a batch is the caller's
                seqs.reverse()
                twins.reverse()
            torch.manual_seed(step)
            chosen, logits = stage.next_tokens(seqs), other.decode(twins)
        for seq in seqs:
            stage.free(seq)
        require_all_free(stage, f"with {len(seqs)} sequences that chose their tokens in the step")


def _require_equal(chosen: object, right: list[int], seqs: list[Sequence], where: str) -> None:
    assert isinstance(chosen, list) and len(chosen) == len(seqs), (
        f"first_tokens and next_tokens return a list of {len(seqs)} token ids, one a sequence; got {chosen!r:.80}"
    )
    for row, (token, expected, seq) in enumerate(zip(chosen, right, seqs, strict=True)):
        assert token == expected, (
            f"{where}: row {row}, prompt of {seq.num_prompt_tokens}, {seq.params}: token {token!r}, and `sample` "
            f"chooses {expected} from the logits"
        )
