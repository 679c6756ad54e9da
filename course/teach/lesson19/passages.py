"""repeating_prompts: passages of Python's documentation that the bundled model goes on to repeat."""

from __future__ import annotations

from random import Random

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.documentation import topics
from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.engine.speculation.ngram import NGramProposer
from roseinfer.engine.speculation.verify import verified
from roseinfer.models import Model, load_tokenizer
from roseinfer.models.weights import prepared_copy
from roseinfer.sequence import SamplingParams, Sequence

PROMPT_LEN, MAX_TOKENS = 64, 64
OPENING = 8  # tokens of a passage's beginning, which the prompt ends with
CANDIDATES, LEAST_CANDIDATES = 3, 24  # for each prompt, and in all


def repeating_prompts(
    model: Model, number: int, seed: int = 0, prompt_len: int = PROMPT_LEN, max_tokens: int = MAX_TOKENS
) -> list[list[int]]:
    """Choose prompts on which drafting works best, as when a text is revised or quoted; the best first.

    A prompt is a passage of Python's documentation, on which the bundled model was trained, followed by the beginning
    of that passage. From more candidates than prompts we take those from whose own text the most of the max_tokens new
    tokens can be drafted.
    """
    opening = min(OPENING, max(1, prompt_len // 4))
    passages = passages_of(max(LEAST_CANDIDATES, CANDIDATES * number), prompt_len - opening, seed)
    seqs = [
        Sequence(passage + passage[:opening], SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        for passage in passages
    ]
    num_blocks = len(seqs) * -(-(prompt_len + max_tokens) // BLOCK_SIZE)
    for _ in drive(Engine(prepared_copy(model), num_blocks=num_blocks, max_num_seqs=len(seqs)), seqs):
        pass
    seqs.sort(key=steps_with_drafts)
    return [seq.token_ids[:prompt_len] for seq in seqs[:number]]


def passages_of(number: int, length: int, seed: int) -> list[list[int]]:
    """Cut passages of `length` tokens that begin with a paragraph."""
    tokenizer, rng = load_tokenizer("tiny"), Random(seed)
    paragraphs = [text for topic in topics() for text in topic.split("\n\n")]
    starts = [i for i, text in enumerate(paragraphs[: -length or None]) if text[:1].isupper()]
    chosen = [rng.choice(starts) for _ in range(number)]
    return [tokenizer.encode(" ".join(" ".join(paragraphs[i : i + length]).split())).ids[:length] for i in chosen]


def steps_with_drafts(seq: Sequence) -> int:
    """Count the steps that a finished sequence's new tokens take with drafts of four tokens from its own text."""
    proposer = NGramProposer(num_tokens=4, longest=4, shortest=2)
    text = Sequence(seq.token_ids[: seq.num_prompt_tokens])
    num_steps = 0
    while len(text) < len(seq):
        left = seq.token_ids[len(text) :]
        [draft] = proposer.propose([text], [min(n, len(left) - 1) for n in proposer.wishes([text])])
        text.token_ids += verified(draft, left)
        num_steps += 1
    return num_steps
