"""Promises about blocks and places: what is refused, and that nothing is lost, whatever happens."""

from __future__ import annotations

import torch

from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import begin, decode_step, generate, stream
from roseinfer.graphs.tensors import memory_of
from roseinfer.models import Model
from roseinfer.profiling.reachable import tensors_of
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..broken_promises import refused, require_all_free, require_logits, require_tokens
from ..making import copy_of, stage_of
from ..small_models import expected, last_logits, prompts_for
from ..teacher_forced import TeacherForced
from .tokens import greedy


def can_be_made(stage_class: type[Stage], device: str) -> None:
    lacking = " and ".join(sorted(stage_class.__abstractmethods__))
    assert not lacking, f"{stage_class.name} lacks {lacking}"
    model = copy_of("gpt2", device)
    stage = stage_of(stage_class, model, device, num_blocks=4, block_size=16, max_num_seqs=2)
    assert stage.num_free_blocks == 4, f"made with num_blocks=4, {stage.num_free_blocks} are free"
    for wrong in ({"num_blocks": 0}, {"num_blocks": 4, "block_size": 0}, {"num_blocks": 4, "max_num_seqs": -1}):
        argument, value = list(wrong.items())[-1]
        with refused(f"{argument}={value}", argument):
            stage_class(model, **wrong)


def blocks_come_back(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=12, block_size=4)
    seqs = begin(stage, prompts_for("gpt2", (3, 9)), greedy(4))
    stage.decode(seqs)
    for i, seq in enumerate(seqs):
        stage.free(seq)
        assert not stage.holds(seq), f"sequence {i} was freed, and stage.holds(seq) is still True"
        assert not seq.num_cached_tokens, f"sequence {i} was freed, and counts {seq.num_cached_tokens} tokens as cached"
    require_all_free(stage, "with both sequences freed")


def freeing_twice(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=4)
    [seq] = begin(stage, [[1, 2, 3]], greedy(4))
    stage.free(seq)
    with refused("freeing a sequence twice", f"sequence {seq.seq_id} is not held"):
        stage.free(seq)
    with refused("decoding a freed sequence", "is not held"):
        stage.decode([seq])
    require_all_free(stage, "with the sequence freed")


def prefilled_again(stage_class: type[Stage], device: str) -> None:
    """Free and prefill a sequence three times, each time past a block's edge, so that a loss in any round shows."""
    stage = stage_of(stage_class, "gpt2", device, num_blocks=4, block_size=16)
    [seq] = begin(stage, prompts_for("gpt2", (3,)), greedy(40))
    decode_step(stage, [seq])
    for round in range(3):
        stage.free(seq)
        require_all_free(stage, "with the sequence freed" + (" and prefilled again" if round else ""))
        for step in ("prefill", *["decode"] * 12):
            logits = stage.prefill(seq) if step == "prefill" else stage.decode([seq])[0]
            where = f"a sequence freed and prefilled again with its output: in its {step}"
            require_logits(logits, last_logits("gpt2", tuple(seq.token_ids), device), 1e-4, where)
            seq.append(int(logits.argmax()))
    stage.free(seq)
    require_all_free(stage, "with the sequence freed and prefilled again")
    require_tokens([seq], expected("gpt2", (3,), 41, device))


def misuse(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=4, max_num_seqs=1)
    [seq] = begin(stage, [[1, 2, 3]], greedy(4))
    with refused("prefilling a sequence twice", "already held"):
        stage.prefill(seq)
    with refused("one sequence more than max_num_seqs=1", "max_num_seqs=1"):
        stage.prefill(Sequence([1], SamplingParams()))
    with refused("decoding no sequence", "at least one"):
        stage.decode([])
    with refused("decoding a sequence twice in one step", "twice"):
        stage.decode([seq, seq])
    stage.decode([seq])
    with refused("decoding without a new token", "exactly one new token"):
        stage.decode([seq])
    _refusals_change_nothing(stage_class, device)


def _refusals_change_nothing(stage_class: type[Stage], device: str) -> None:
    """Check that refused steps change nothing, though their batch has a sequence that would get a new block."""
    run = TeacherForced(stage_class, device, "two layers", num_blocks=9, block_size=4)
    full, freed, silent = run.begin((4, 4, 5), 2)
    run.free(freed)
    run.give_tokens([full])
    freed.append(1)
    before = run.books([full, silent])
    for wrong, batch in (
        ("a step with a freed sequence", [full, freed]),
        ("a step with a sequence twice", [full, full]),
        ("a step with one that has no new token", [full, silent]),
    ):
        with refused(wrong):
            run.stage.decode(batch)
        after = run.books([full, silent])
        assert after == before, f"{wrong} is refused, and changed cached tokens and free blocks: {before}, then {after}"
    run.decode([full, silent], "after steps that were refused: ")
    run.end([full, silent])


def never_fits(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=1)
    too_long, too_many_blocks, no_token = ([1] * 150, 100), ([1] * 60, 6), ([97], 1)
    for (prompt, max_tokens), named in (
        (too_long, "max_model_len=192"),
        (too_many_blocks, "num_blocks=1"),
        (no_token, "97"),
    ):
        started = []
        with refused(f"a request that can never fit ({len(prompt)} tokens, max_tokens={max_tokens})", named):
            for seq, _ in stream(stage, [Sequence([1], greedy(1)), Sequence(prompt, greedy(max_tokens))]):
                started.append(seq)
        assert not started, "a request that can never fit was refused only when others had started"
    require_all_free(stage, "with every request refused")


def pool_exhausted(stage_class: type[Stage], device: str) -> None:
    """Check that a step that needs 3 blocks, with 0 to 2 left, is refused and changes nothing for any sequence."""
    for left in range(3):
        run = TeacherForced(stage_class, device, "two layers", num_blocks=6 + left, block_size=4, max_num_seqs=4)
        seqs = run.begin((4, 8, 12), 4)
        run.give_tokens(seqs)
        before = run.books(seqs)
        prompt = Sequence([1] * (4 * left + 1), greedy(1))
        with refused(f"a prompt of {left + 1} blocks with {left} left", error=OutOfBlocks):
            run.stage.prefill(prompt)
        assert not run.stage.holds(prompt), "a prompt that was refused for want of blocks is held"
        for batch in (seqs, seqs[::-1]):
            with refused(f"a step that needs 3 blocks with {left} left", error=OutOfBlocks):
                run.stage.decode(batch)
            after = run.books(seqs)
            assert after == before, f"a refused step changed cached tokens and free blocks: {before}, then {after}"
        if left:
            run.decode(seqs[:left], "with just enough blocks, after a refused step: ")
        run.free(seqs.pop())
        run.decode(seqs, "with a sequence freed, after a refused step: ")
        run.end(seqs)


def closed_stream(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=8)
    tokens = stream(stage, [Sequence([1, 2, 3], greedy(9)), Sequence([4], greedy(9))])
    for _ in range(5):
        next(tokens)
    tokens.close()
    require_all_free(stage, "with the stream closed in the middle")


def memory_comes_back(stage_class: type[Stage], device: str) -> None:
    stage = stage_of(stage_class, "gpt2", device, num_blocks=8)
    held = []
    for _ in range(3):
        generate(stage, prompts_for("gpt2", (3, 17)), greedy(2))
        held.append(bytes_held(stage))
    assert held[2] <= held[1], (
        f"the same two requests three times over, all freed each time: the stage then holds {held[0]:,}, {held[1]:,} "
        f"and {held[2]:,} bytes of tensors. What does free leave behind?"
    )


def bytes_held(stage: Stage | type) -> int:
    """Sum the bytes of all tensors that can be reached from the stage's attributes, without those of its model."""
    storages: dict[int, int] = {}
    for tensor in tensors_of(vars(stage), without=(Model,)):
        is_open = tensor.layout == torch.strided  # a library's own layout does not say how it is stored
        storages[memory_of(tensor)] = tensor.untyped_storage().nbytes() if is_open else tensor.nbytes
    return sum(storages.values())
