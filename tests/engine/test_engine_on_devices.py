"""The engine on a CPU, and with `pytest -m gpu` on a GPU: tokens in every dtype, and graphs against eager steps."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest
import torch
from devices import DTYPES, ByModule

from roseinfer.bench.ladder import mixed_prompts
from roseinfer.bench.token_check import NEAR_TIE
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.step_graphs import sizes_up_to
from roseinfer.generate import begin
from roseinfer.llm.llm import LLM
from roseinfer.models import Model, load_model
from roseinfer.reference import reference_generate, reference_logits
from roseinfer.sequence import SamplingParams, Sequence

pytestmark = pytest.mark.slow

BLOCK_SIZE = 16
MODELS = ("tiny", "random:tiny-llama", "random:tiny-qwen2", "random:tiny-qwen3")
LENGTHS = (1, 15, 16, 17, 40, 64)
MAX_TOKENS = 12
# Untrained weights are so small that the last token alone decides the next one. Scaled up, attention and positions do.
WEIGHT_SCALE = 12
SETTINGS = {
    "eager": {"enforce_eager": True, "async_scheduling": False},
    "graphs": {"async_scheduling": False},
    "one behind": {"async_scheduling": True},
}


@cache
@torch.no_grad()
def checked_model(spec: str, device: str, dtype: torch.dtype) -> Model:
    """One for all cases, which change nothing in it."""
    model = load_model(spec, device=device, dtype=dtype)
    if spec.startswith("random:"):
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(WEIGHT_SCALE)
    return model


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", MODELS)
def test_greedy_tokens_in_every_dtype(spec, dtype, settings, device):
    """Prompts and new tokens share batches, every sequence ends at its own step, and half of them wait for a slot."""
    model = checked_model(spec, device, dtype)
    prompts = mixed_prompts(model, LENGTHS)
    params = [SamplingParams(max_tokens=MAX_TOKENS + i, ignore_eos=True) for i in range(len(prompts))]
    llm = LLM(model, num_kvcache_blocks=18, block_size=BLOCK_SIZE, max_num_seqs=3, **settings)
    outputs = [list(done.outputs[0].token_ids) for done in llm.generate(prompts, params, use_tqdm=False)]
    if dtype == torch.float32:
        wanted = longest_outputs(spec, device)
        assert outputs == [ids[: one.max_tokens] for ids, one in zip(wanted, params, strict=True)]
    else:
        gap, allowed = largest_gap(model, prompts, outputs)
        assert gap <= allowed


@cache
def longest_outputs(spec: str, device: str) -> list[list[int]]:
    model = checked_model(spec, device, torch.float32)
    return reference_generate(model, mixed_prompts(model, LENGTHS), MAX_TOKENS + len(LENGTHS) - 1)


def largest_gap(model: Model, prompts: list[list[int]], outputs: list[list[int]]) -> tuple[float, float]:
    """How far a token's logit is below the best one at most, and how far it may be.

    In half precision greedy tokens of correct programs differ, since they round sums in other orders. Logits are
    computed in fp32 from the same weights after the same text. Allowed is twice the largest error that the reference
    itself makes in that dtype.
    """
    exact = deepcopy(model).float()
    gap = error = 0.0
    for prompt, output in zip(prompts, outputs, strict=True):
        text, new = prompt + output[:-1], slice(len(prompt) - 1, None)
        logits = reference_logits(exact, text)[new]
        error = max(error, float((reference_logits(model, text)[new].float() - logits).abs().max()))
        chosen = logits.gather(1, torch.tensor(output, device=logits.device).unsqueeze(1)).squeeze(1)
        gap = max(gap, float((logits.amax(dim=1) - chosen).max()))
    return gap, 2 * error


class Eager(EngineStage):
    enforce_eager = True


class WithGraphs(EngineStage):
    """The graphs and sizes that a GPU has, on a CPU too."""

    make_runner = ByModule


@pytest.mark.parametrize("spec", ["tiny", "random:tiny-qwen2"])
def test_a_graph_gives_an_eager_steps_tokens_and_writes_its_own_slots_alone(spec, device):
    """For every size of batch up to the largest and back to 1; unused slots hold NaN. The batch grows at its end and
    shrinks at its front. Both engines are given the tokens of eager steps, so one wrong token is one wrong step."""
    model, most = checked_model(spec, device, torch.float32), 40 if device == "cuda" else 5
    prompts = mixed_prompts(model, [1 + 5 * i % (2 * BLOCK_SIZE + 3) for i in range(most)])
    params = SamplingParams(max_tokens=2 * most + 1, ignore_eos=True)
    blocks = sum(-(-(len(prompt) + params.max_tokens) // BLOCK_SIZE) for prompt in prompts)
    stages = [cls(model, num_blocks=blocks, block_size=BLOCK_SIZE, max_num_seqs=most) for cls in (WithGraphs, Eager)]
    for stage in stages:
        stage.runner.pool.memory.fill_(float("nan"))
    seqs, twins = (begin(stage, prompts, params) for stage in stages)
    for rows in [slice(n) for n in range(1, most + 1)] + [slice(n, most) for n in range(1, most)]:
        before = stages[0].runner.pool.memory.clone()
        tokens = stages[0].next_tokens(seqs[rows])
        assert written_elsewhere(stages[0], before, seqs[rows]) == []
        wanted = stages[1].next_tokens(twins[rows])
        for seq, twin, token, want in zip(seqs[rows], twins[rows], tokens, wanted, strict=True):
            # Batches of other sizes are summed in other orders.
            assert token == want or distance(model, seq, token, want) < NEAR_TIE
            seq.append(want)
            twin.append(want)
    captured = [size.num_seqs for size in sorted(stages[0].runner.graphs.graphs) if size.is_decode]
    assert captured == sizes_up_to(most)


def written_elsewhere(stage: EngineStage, before: torch.Tensor, seqs: list[Sequence]) -> list[list[int]]:
    """Each (block, slot) that changed outside the new tokens' slots and the dummy block."""
    pool = stage.runner.pool
    changed = (pool.memory.view(torch.int32) != before.view(torch.int32)).any(5).any(3).any(1).any(0)
    changed[pool.dummy_block] = False  # [num_blocks + 1, block_size]
    for seq in seqs:
        block, slot = divmod(seq.num_cached_tokens - 1, BLOCK_SIZE)
        changed[stage.tables.of(seq.seq_id)[block], slot] = False
    return changed.nonzero().tolist()


def distance(model: Model, seq: Sequence, token: int, want: int) -> float:
    logits = reference_logits(model, seq.token_ids)[-1]
    return float((logits[want] - logits[token]).abs())
