"""What judges a learner's own prefix cache: its books after every step, the reference's tokens, and what it finds."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.explain import explain_tokens
from ..exercises.stage_checks import drawn_model, require_sizes, require_stage
from ..exercises.wrong import Wrong

BLOCK_SIZE, NUM_BLOCKS, OUTPUT_LEN = 4, 30, 2
SEEDS = (0, 1, 2)
# The promises that other books can break. Those of the queue hold a block in several sequences at once.
TOUCHED = (
    "Every block comes back",
    "An empty pool changes nothing",
    "Prefilled again",
    "Two at once",
    "A pool that runs short",
    "Shared beginnings",
    "Samples of a prompt",
    "Told apart by all tokens",
    "Aborted anywhere",
)


def require_policy(stage_class: type[Stage]) -> None:
    """Raise Wrong unless the stage finds more than the course's stage that it is made from, and changes no token."""
    require_stage(stage_class, "PrefixCache", "block_key")
    base: type[Stage] = next(cls for cls in stage_class.__mro__ if cls.__module__.startswith("stages."))
    mine = theirs = asked = 0
    for seed in SEEDS:
        prompts = prompts_between_scans(seed)
        outputs, found = _run(_new(stage_class), prompts)
        _require_outputs(outputs, prompts)
        mine += found
        theirs += _found_by(base, seed)
        asked += sum(map(len, prompts))
    prompts = prompts_found_twice()
    _require_outputs(_run(_new(stage_class), prompts)[0], prompts)
    require_contract(stage_class, TOUCHED)
    if mine == theirs:
        raise Wrong(f"of {asked} tokens {mine} are found, as by {base.name}: does it evict in another order?")
    if mine < theirs:
        raise Wrong(f"of {asked} tokens {mine} are found, fewer than the {theirs} of {base.name}")


@cache
def _found_by(base: type[Stage], seed: int) -> int:
    return _run(_new(base), prompts_between_scans(seed))[1]


def prompts_between_scans(seed: int) -> list[list[int]]:
    """Draw prompts with one of three beginnings, each with its own end, between long texts that come only once."""
    rng = Random(seed)
    beginnings = [[rng.randrange(31) for _ in range(4 * BLOCK_SIZE)] for _ in range(3)]
    prompts = []
    for _ in range(20):
        prompts.append([*rng.choice(beginnings), rng.randrange(31), rng.randrange(31)])
        prompts.append([rng.randrange(31) for _ in range(rng.randint(9, 14) * BLOCK_SIZE + 1)])
    return prompts


def prompts_found_twice() -> list[list[int]]:
    """Make prompts that find every idle block once (each beginning comes twice), then texts that need those blocks."""
    beginnings = [[(5 * i + token) % 31 for token in range(4 * BLOCK_SIZE)] for i in range(7)]
    return [*(prompt for one in beginnings for prompt in ([*one, 1], [*one, 2])), *prompts_between_scans(0)[:4]]


def _new(stage_class: type[Stage]) -> Any:
    stage = stage_class(drawn_model(), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=1)
    tables: Any = getattr(stage, "tables", None)
    if not all(hasattr(tables, name) for name in ("block_of", "key_of", "idle", "ref_counts")):
        raise Wrong(f"self.tables must be a SharedTables, or a subclass of it; got {type(tables).__name__}")
    if (tables.num_blocks, tables.block_size) != (NUM_BLOCKS, BLOCK_SIZE):
        raise Wrong(
            f"made with num_blocks={NUM_BLOCKS} and block_size={BLOCK_SIZE}, self.tables has {tables.num_blocks} "
            f"blocks of {tables.block_size} tokens"
        )
    require_sizes(stage, max_num_seqs=1)
    return stage


def _run(stage: Any, prompts: list[list[int]]) -> tuple[list[list[int]], int]:
    """Run requests in turn; return their outputs and how many tokens were found, counted as those not computed."""
    computed, run = [], stage.run

    def counted_run(seqs: list[Sequence], num_new: list[int]) -> Any:
        computed.extend(num_new)
        return run(seqs, num_new)

    stage.run = counted_run
    seqs = [Sequence(prompt, SamplingParams(max_tokens=OUTPUT_LEN, ignore_eos=True)) for prompt in prompts]
    for i, seq in enumerate(seqs):  # each is added when the one before has ended, so that their order stays as drawn
        stage.add(seq)
        _run_alone(stage, i)
    num_decoded = len(prompts) * (OUTPUT_LEN - 1)  # the last token of an output is never computed
    return [seq.output_ids for seq in seqs], sum(map(len, prompts)) + num_decoded - sum(computed)


def _run_alone(stage: Any, request: int) -> None:
    for _ in range(4 * OUTPUT_LEN):
        if not stage.has_work:
            return
        stage.step()
    if stage.has_work:
        raise Wrong(f"request {request}: it is alone, and after {4 * OUTPUT_LEN} steps it is still not done")


def _require_outputs(outputs: list[list[int]], prompts: list[list[int]]) -> None:
    for i, (got, prompt) in enumerate(zip(outputs, prompts, strict=True)):
        [want] = _reference(tuple(prompt))
        if message := explain_tokens(got, want):
            raise Wrong(
                f"request {i} of {len(prompts)}, a prompt of {len(prompt)} tokens: {message}. Was a block "
                "with another text found for it? An evicted block must not be found any more"
            )


@cache
def _reference(prompt: tuple[int, ...]) -> list[list[int]]:
    return reference_generate(drawn_model(), [list(prompt)], OUTPUT_LEN)
