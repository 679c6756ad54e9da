"""The list of promises. Later ones depend on earlier ones: look first at the first that is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roseinfer.stage import Stage

from .. import schedule_search
from ..queue import failures, search, sharing
from ..queue import promises as queue
from ..queue.driver import has_queue
from . import blocks, choices, errors, models, reach, reuse, tokens


@dataclass(frozen=True)
class Promise:
    """check(stage_class, device) returns if the promise is held; else it raises an AssertionError in plain words.

    why: what breaks in an engine without it. slow: left out of a quick look. last: a search, which is of use only
    when all other promises are held.
    """

    title: str
    why: str
    check: Callable[[type[Stage], str], None]
    slow: bool = False
    last: bool = False

    @property
    def name(self) -> str:
        return self.check.__name__


PROMISES = (
    Promise("It can be made", "its four methods are there, and wrong sizes are refused", blocks.can_be_made),
    Promise("It fits the seam", "the model calls what build returns, once a layer", tokens.fits_the_seam),
    Promise("One sequence", "K and V of every token are kept and read", tokens.one_sequence),
    Promise("A batch of equal lengths", "each row attends to its own cache", tokens.equal_lengths),
    Promise("A batch of mixed lengths", "positions and masks are each sequence's own", tokens.mixed_lengths),
    Promise("Every block comes back", "an engine that loses blocks stops after a day", blocks.blocks_come_back),
    Promise("Block edges", "63, 64 and 65 tokens: a new block begins in time", tokens.block_edges),
    Promise("Small blocks", "nothing is built on blocks of 64", tokens.small_blocks),
    Promise("Any block size", "1 token, 3, 7, or more than the model has positions", reach.any_block_size),
    Promise("Rows in the order given", "row i of the logits belongs to seqs[i], in any order", tokens.rows_in_order),
    Promise("Batches that grow and shrink", "requests end at different steps", tokens.batch_grows_and_shrinks),
    Promise("Shared KV heads", "2 or 1 KV heads serve 4 query heads (GQA, MQA)", tokens.shared_kv_heads),
    Promise("Prompts that are alike", "what is shared is known by all of its tokens", reuse.alike_prompts),
    Promise("Odd shapes", "groups of 3, 5 and 7, one head, one layer, fifty layers", reach.odd_shapes),
    Promise("Llama and Qwen", "other models rotate K before it is cached", tokens.llama_families, slow=True),
    Promise("Equal to transformers", "an oracle that shares no code with ours", tokens.equals_transformers),
    Promise(
        "Equal to transformers in full size",
        "twelve layers of GPT-2 small's shape",
        tokens.equals_transformers_in_full_size,
        slow=True,
    ),
    Promise("The last position", "max_model_len is no multiple of the block size", reach.last_position),
    Promise("What just fits is taken", "a limit that is off by one wastes or breaks", reach.just_fits),
    Promise("High block ids", "ids over 127 and 255", reach.high_block_ids),
    Promise("Very high block ids", "ids over 32,767 and 65,535", reach.very_high_block_ids, slow=True),
    Promise("Long sequences", "lengths over 127, 255, ... 4,095 tokens", reach.long_sequences),
    Promise("Very long sequences", "over 32,767 tokens", reach.very_long_sequences, slow=True),
    Promise("Many blocks", "a sequence of more than 255", reach.many_blocks),
    Promise("Large batches", "more than 64 sequences", reach.large_batches),
    Promise("Very large batches", "more than 255 sequences", reach.very_large_batches, slow=True),
    Promise("Half precision", "nothing is fp32 by accident, nothing is rounded twice", tokens.half_precision),
    Promise("Tokens of its own choice", "chosen in the step or after it: the same", choices.chooses_as_sample),
    Promise("Prompts together", "many prompts in one call, in the order given", choices.prompts_together),
    Promise("Freeing twice is refused", "else two sequences share a block one day", blocks.freeing_twice),
    Promise("Prefilled again", "a preempted sequence comes back with its output", blocks.prefilled_again),
    Promise("Neighbours come and go", "a sequence may live as long as a server", reuse.neighbours_come_and_go),
    Promise("Back in other blocks", "nothing kept for a sequence outlives its blocks", reuse.other_blocks),
    Promise("Two at once", "what one stage keeps is not another's", reuse.two_at_once),
    Promise("What is yours stays", "lists, tokens and logits are the caller's", reuse.leaves_what_is_yours),
    Promise("Your model stays as it is", "other stages share its weights", models.leaves_your_model),
    Promise(
        "Padding touches nothing",
        "rows that only fill a batch up belong to no sequence",
        reuse.padding_touches_nothing,
    ),
    Promise("Misuse is refused by name", "a wrong call must not become wrong tokens", blocks.misuse),
    Promise("Refused before any runs", "a request that can never fit must not wait", blocks.never_fits),
    Promise("An empty pool changes nothing", "the engine frees a sequence and tries again", blocks.pool_exhausted),
    Promise("Errors and Ctrl-C free everything", "one bad request must not cost blocks", errors.errors_free_everything),
    Promise("A failed step is made again", "out of memory in the model: it counts once", errors.failed_steps),
    Promise("A failed choice counts nothing", "NaN is no token, and the step is made again", choices.failed_choice),
    Promise(
        "Errors anywhere",
        "at any operation of a call, nothing is lost and nothing counts twice",
        errors.errors_anywhere,
        slow=True,
    ),
    Promise("A closed stream frees everything", "clients hang up", blocks.closed_stream),
    Promise("Memory comes back", "free means the stage's own tensors too", blocks.memory_comes_back),
    Promise(
        "Random schedules", "a search for what no fixed promise tries", schedule_search.random_schedules, last=True
    ),
)

# For a stage with a queue.
QUEUE_PROMISES = (
    Promise("A queue runs to its end", "whatever comes when, each request gets its own tokens", queue.runs_a_queue),
    Promise("Refused when added", "a request that can never run must not wait", queue.refused_when_added),
    Promise("Nothing after the end", "a stop token ends a request in any step", queue.ends_where_it_should),
    Promise("Any budget", "prompts are cut anywhere, and no step is larger than it may be", queue.any_budget),
    Promise("A pool that runs short", "a preempted request comes back with the same tokens", queue.small_pools),
    Promise("No request starves", "others keep coming", queue.no_request_starves),
    Promise("Orders as documented", "priority, then the policy, then arrival", queue.ordered_by_policy),
    Promise("Shared beginnings", "a block is free when no sequence holds it", sharing.shared_beginnings),
    Promise("Samples of a prompt", "a shared block is copied before it is written", sharing.samples_of_a_prompt),
    Promise("Told apart by all tokens", "texts that look alike share nothing", sharing.told_apart_by_all_tokens),
    Promise("Token ids of any size", "ids over 255 and 65,535 have keys of their own", sharing.token_ids_of_any_size),
    Promise("Many texts", "keys of 16 bits meet among some thousand blocks", sharing.many_texts),
    Promise("Aborted anywhere", "clients hang up: the others go on", failures.aborted_anywhere),
    Promise("One bad request", "logits that are not finite are one request's error", failures.one_bad_request),
    Promise("A failed step of a queue", "out of memory or Ctrl-C: nothing is lost", failures.failed_queue_steps),
    Promise("Random queues", "a search for what no other promise tries", search.random_queues, last=True),
)


def promises_of(stage_class: type[Stage]) -> tuple[Promise, ...]:
    """Return all promises that fit the stage: with those of a queue if it has add, step, abort and has_work."""
    return (*PROMISES, *QUEUE_PROMISES) if has_queue(stage_class) else PROMISES
