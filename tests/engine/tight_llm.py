"""An LLM so small that blocks are shared, copied, evicted, and sequences preempted; and what calls may leave of it."""

from __future__ import annotations

import pytest
from served import params
from small_engines import assert_empty

from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2

EXECUTORS = pytest.mark.parametrize("async_scheduling", [False, True], ids=["in turn", "one behind"])


def llm_of(model: GPT2, **settings) -> LLM:
    return LLM(model, num_kvcache_blocks=9, block_size=8, max_num_seqs=3, max_num_batched_tokens=16, **settings)


def assert_whole(llm: LLM, prompts, wanted, where: str) -> None:
    """Nothing of what was interrupted is left, and the next call is right."""
    outputs = llm.generate(prompts[:2], params(2), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [ids[:2] for ids in wanted[:2]], where
    assert_empty(llm.engine, where)
    assert not llm.live._live, where
