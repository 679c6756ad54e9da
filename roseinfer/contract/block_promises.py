"""Promises about blocks and places: what is refused, and that nothing is lost, whatever happens."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import begin, decode_step, generate, stream
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .broken_promises import an, refused, require_all_free, require_logits, require_tokens
from .small_models import expected, last_logits, model_of, prompts_for
from .token_promises import greedy


def can_be_made(stage_class: type[Stage], device: str) -> None:
    lacking = " and ".join(sorted(stage_class.__abstractmethods__))
    assert not lacking, f"{stage_class.name} lacks {lacking}"
    model = model_of("gpt2", device)
    stage = stage_class(model, num_blocks=4, block_size=16, max_num_seqs=2)
    assert stage.num_free_blocks == 4, f"made with num_blocks=4, {stage.num_free_blocks} are free"
    for wrong in ({"num_blocks": 0}, {"num_blocks": 4, "block_size": 0}, {"num_blocks": 4, "max_num_seqs": -1}):
        argument, value = list(wrong.items())[-1]
        with refused(f"{argument}={value}", argument):
            stage_class(model, **wrong)


def blocks_come_back(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=12, block_size=4)
    seqs = begin(stage, prompts_for("gpt2", (3, 9)), greedy(4))
    stage.decode(seqs)
    for i, seq in enumerate(seqs):
        stage.free(seq)
        assert not stage.holds(seq), f"sequence {i} was freed, and holds says that it is still held"
    require_all_free(stage, "with both sequences freed")


def freeing_twice(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=4)
    [seq] = begin(stage, [[1, 2, 3]], greedy(4))
    stage.free(seq)
    with refused("freeing a sequence twice", f"sequence {seq.seq_id} is not held"):
        stage.free(seq)
    with refused("decoding a freed sequence", "is not held"):
        stage.decode([seq])
    require_all_free(stage, "with the sequence freed")


def prefilled_again(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=4)
    [seq] = begin(stage, prompts_for("gpt2", (3,)), greedy(8))
    decode_step(stage, [seq])
    stage.free(seq)
    for step in ("prefill", "decode"):
        logits = stage.prefill(seq) if step == "prefill" else stage.decode([seq])[0]
        where = f"a sequence freed and prefilled again with its output: in its {step}"
        require_logits(logits, last_logits("gpt2", tuple(seq.token_ids), device), 1e-4, where)
        seq.append(int(logits.argmax()))
    require_tokens([seq], expected("gpt2", (3,), 4, device))


def misuse(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=4, max_num_seqs=1)
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


def never_fits(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=1)
    too_long, too_many_blocks, no_token = ([1] * 150, 100), ([1] * 60, 6), ([97], 1)
    for (prompt, max_tokens), named in (
        (too_long, "max_model_len=192"), (too_many_blocks, "num_blocks=1"), (no_token, "97"),
    ):  # fmt: skip
        started = []
        with refused(f"a request that can never fit ({len(prompt)} tokens, max_tokens={max_tokens})", named):
            for seq, _ in stream(stage, [Sequence([1], greedy(1)), Sequence(prompt, greedy(max_tokens))]):
                started.append(seq)
        assert not started, "a request that can never fit was refused only when others had started"
    require_all_free(stage, "with every request refused")


def pool_exhausted(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=3, block_size=4)
    first, second = begin(stage, prompts_for("gpt2", (4, 3)), greedy(6))
    with refused("a prompt of two blocks with one left", "2 more blocks", error=OutOfBlocks):
        stage.prefill(Sequence([1] * 5, greedy(1)))
    decode_step(stage, [first, second])  # the first takes the last block; on the next step the second finds none
    before = _books(stage, first, second)
    said = "1 more blocks of 4 tokens are needed, 0 of num_blocks=3"
    with refused("a step with no block left for the second sequence", said, error=OutOfBlocks):
        stage.decode([first, second])
    after = _books(stage, first, second)
    assert after == before, f"a refused step changed cached tokens and free blocks: {before} before, {after} now"
    stage.free(first)
    decode_step(stage, [second])
    tokens = expected("gpt2", (4, 3), 6, device)[1]
    require_tokens([second], [tokens[: len(second.output_ids)]])


def _books(stage: Stage, *seqs: Sequence) -> tuple[int, ...]:
    return *(seq.num_cached_tokens for seq in seqs), stage.num_free_blocks


def errors_free_everything(stage_class: type[Stage], device: str) -> None:
    for during, method in (("prefill", "write_prompt"), ("decode", "append")):
        for error in (KeyboardInterrupt, RuntimeError):
            _fail_in(method, error, stage_class(model_of("gpt2", device), num_blocks=8), during)


def _fail_in(method: str, error: type[BaseException], stage: Stage, during: str) -> None:
    def fail(*_: Any) -> None:
        raise error("stop")

    seqs = [Sequence(prompt, greedy(9)) for prompt in prompts_for("gpt2", (3, 5))]
    tokens = stream(stage, seqs)
    next(tokens)
    setattr(stage, method, fail)
    what = f"{error.__name__} in {method}, during {during}"
    try:
        list(tokens)
    except error:
        pass
    except Exception as other:
        raise AssertionError(f"{what}: the caller gets {an(type(other).__name__)} instead") from other
    else:
        raise AssertionError(f"{what}: the error is swallowed, the caller never hears of it")
    require_all_free(stage, f"after a {what}")
    delattr(stage, method)
    seqs = generate(stage, prompts_for("gpt2", (2,)), greedy(3))
    require_tokens(seqs, expected("gpt2", (2,), 3, str(stage.model.device)), f"after a {what}, the reference")


def closed_stream(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=8)
    tokens = stream(stage, [Sequence([1, 2, 3], greedy(9)), Sequence([4], greedy(9))])
    for _ in range(5):
        next(tokens)
    tokens.close()
    require_all_free(stage, "with the stream closed in the middle")


def memory_comes_back(stage_class: type[Stage], device: str) -> None:
    stage = stage_class(model_of("gpt2", device), num_blocks=8)
    held = []
    for _ in range(3):
        generate(stage, prompts_for("gpt2", (3, 17)), greedy(2))
        held.append(bytes_held(stage))
    assert held[2] <= held[1], (
        f"the same two requests three times over, all freed each time: the stage then holds {held[0]:,}, {held[1]:,} "
        f"and {held[2]:,} bytes of tensors. What does free leave behind?"
    )


def bytes_held(stage: Stage) -> int:
    """Bytes of the tensors that can be reached from the stage's attributes, its model's left out."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting: list[Any] = [vars(stage)]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (Model, type, ModuleType, FunctionType)):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        else:
            waiting += gc.get_referents(thing)
    return sum(storages.values())
