"""Promises about first_tokens and next_tokens: a stage that chooses tokens in the step chooses as `sample` does."""

from __future__ import annotations

import traceback
from itertools import cycle, islice
from typing import Any
from unittest.mock import patch

import torch

from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..broken_promises import lengths_text, refused, require_all_free
from ..injected_errors import ErrorAt, OutOfMemory, attempt, num_operations, where_raised
from ..making import copy_of, stage_of
from ..small_models import last_logits, prompts_for

MODEL = "gpt2"
LENGTHS = (3, 9, 1, 17, 64, 5, 12, 7)
STEPS = 6
# All that can be asked for, each with a seed, so that one token is right; greedy ones beside them.
WISHES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_k": 5, "seed": 2},
    {"temperature": 1.5, "top_p": 0.6, "seed": 3},
    {"temperature": 5.0, "top_k": 40, "top_p": 0.9, "seed": 4},
    {"temperature": 1e-30, "seed": 5},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.5, "top_k": 1000, "seed": 6},  # above the vocabulary: all tokens stay
)


def chooses_as_sample(stage_class: type[Stage], device: str) -> None:
    """Run the same requests on two stages: one chooses its tokens itself, the other returns logits for `sample`."""
    for wishes, what in ((WISHES, "greedy and drawn rows"), (WISHES[:1], "greedy rows"), (WISHES[1:2], "one seed")):
        params = [SamplingParams(max_tokens=STEPS + 1, **wish) for wish in islice(cycle(wishes), len(LENGTHS))]
        stage, other = (stage_of(stage_class, MODEL, device, num_blocks=16) for _ in range(2))
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


# Two batches with the same number of prompts and of tokens, and one that no flat batch can hold.
TOGETHER = ((3, 9), (9, 3), (6, 6), (100, 150, 60, 7, 180, 20))


def prompts_together(stage_class: type[Stage], device: str) -> None:
    """Check that first_tokens takes many prompts at once, in the order given."""
    stage = stage_of(stage_class, MODEL, device, num_blocks=16)
    for lengths in TOGETHER:
        seqs = [Sequence(prompt, SamplingParams(max_tokens=3)) for prompt in prompts_for(MODEL, lengths)]
        for call in (stage.first_tokens, stage.next_tokens):
            right = [int(last_logits(MODEL, tuple(seq.token_ids), device).argmax()) for seq in seqs]
            where = f"prompts of {lengths_text(lengths)} tokens together, {call.__name__}"
            tokens = call(list(seqs))
            _require_equal(tokens, right, seqs, where)
            for seq, token in zip(seqs, tokens, strict=True):
                seq.append(token)
        for seq in seqs:
            stage.free(seq)


NAN_AT = 12  # a position
TRIED = 16  # operations of a step at which an error is tried


def failed_choice(stage_class: type[Stage], device: str) -> None:
    """Check that logits of NaN give no token, and that a step without its tokens does not count and can be repeated."""
    for wish in WISHES[:2]:
        params = SamplingParams(max_tokens=9, **wish)
        _nan_is_refused(stage_class, device, params)
        _interrupted_choice(stage_class, device, params)


def _nan_is_refused(stage_class: type[Stage], device: str, params: SamplingParams) -> None:
    model = copy_of(MODEL, device)
    with torch.no_grad():
        model.get_parameter("wpe.weight")[NAN_AT] = torch.nan
    stage = stage_of(stage_class, model, device, num_blocks=12, block_size=4, max_num_seqs=3)
    with refused("a prompt whose logits are NaN", error=ValueError):
        stage.first_tokens([Sequence(prompt, params) for prompt in prompts_for(MODEL, (3, NAN_AT + 1))])
    require_all_free(stage, "after a prompt whose logits are NaN")
    seqs = [Sequence(prompt, params) for prompt in prompts_for(MODEL, (3, NAN_AT))]
    for seq, token in zip(seqs, stage.first_tokens(seqs), strict=True):
        seq.append(token)
    cached = [seq.num_cached_tokens for seq in seqs]
    try:
        tokens = stage.next_tokens(seqs)
    except ValueError as error:
        _require_uncounted(seqs, cached, error, "a step with a row of NaN is refused")
    else:
        raise AssertionError(f"row 1 has logits of NaN, and next_tokens gives {tokens}; wanted a ValueError")


def _interrupted_choice(stage_class: type[Stage], device: str, params: SamplingParams) -> None:
    """Interrupt the choice of a stage that makes the whole step; the template counts a step before it samples."""
    stage = stage_of(stage_class, MODEL, device, num_blocks=12, block_size=4, max_num_seqs=3)
    seqs = _begun(stage, params)
    if _decodes_by_template(stage, seqs):
        return
    seqs = _begun(stage, params)
    total = num_operations(lambda: stage.next_tokens(seqs))
    for seq in seqs:
        stage.free(seq)
    for i in range(TRIED):
        seqs = _begun(stage, params)
        cached = [seq.num_cached_tokens for seq in seqs]
        injection = ErrorAt((KeyboardInterrupt, OutOfMemory)[i % 2], total - 1 - i * total // TRIED)
        tokens = attempt(lambda: stage.next_tokens(seqs), injection)  # noqa: B023
        again = f"next_tokens made again after a {where_raised(injection)}"
        if tokens is None:
            _require_uncounted(seqs, cached, injection.raised, again)
            if [seq.num_cached_tokens for seq in seqs] == cached:
                tokens = stage.next_tokens(seqs)
        if tokens is not None:
            logits = torch.stack([last_logits(MODEL, tuple(seq.token_ids), device) for seq in seqs])
            _require_equal(tokens, sample(logits, seqs), seqs, again)
        for seq in seqs:
            stage.free(seq)


def _decodes_by_template(stage: Stage, seqs: list[Sequence]) -> bool:
    """Tell whether next_tokens calls Stage.decode. The sequences are freed."""
    called = []
    decode = Stage.decode

    def noted(self: Stage, seqs: list[Sequence]) -> torch.Tensor:
        called.append(self)
        return decode(self, seqs)

    with patch.object(Stage, "decode", noted):
        stage.next_tokens(seqs)
    for seq in seqs:
        stage.free(seq)
    return bool(called)


def _begun(stage: Stage, params: SamplingParams) -> list[Sequence]:
    """Begin two sequences, so that both are ready for a step."""
    seqs = [Sequence(prompt, params) for prompt in prompts_for(MODEL, (3, 9))]
    for seq, token in zip(seqs, stage.first_tokens(seqs), strict=True):
        seq.append(token)
    return seqs


def _require_uncounted(seqs: list[Sequence], cached: list[int], error: BaseException | None, when: str) -> None:
    """Require that a failed step is not counted, unless it failed in Stage.next_tokens: that counts, then samples."""
    frames = traceback.walk_tb(error.__traceback__ if error else None)
    by_template = Stage.next_tokens.__code__ in [frame.f_code for frame, _ in frames]
    after = [seq.num_cached_tokens for seq in seqs]
    assert by_template or after == cached, f"{when}: {cached} tokens were cached before it, and {after} count now"
