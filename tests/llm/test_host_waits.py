"""No choice of tokens makes the host wait for the device, whatever requests ask for, and no copy of blocks does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from roseinfer.graphs.upload import uploaded
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2
from roseinfer.profiling.replay import record_step
from roseinfer.sampling_params import SamplingParams
from roseinfer.structured_outputs import StructuredOutputsParams

DRAWN = {"temperature": 0.9, "top_k": 20, "top_p": 0.9}
ASKED = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "bad_words": {"bad_words": ["the", "a list"]},
    "structured_outputs": {"structured_outputs": StructuredOutputsParams(regex="[a-z ]+")},
    "logit_bias": {"logit_bias": {3: 4.0, 17: -100}},
    "allowed_token_ids": {"allowed_token_ids": range(0, 256, 2)},
    "min_tokens": {"min_tokens": 4, "stop_token_ids": [5, 6]},
    "logprobs": {"logprobs": 3},
    "drawn": DRAWN,
    "drawn with a seed": DRAWN | {"seed": 7},
    "min_p": DRAWN | {"min_p": 0.1},
    "samples with logprobs": DRAWN | {"n": 2, "logprobs": 1},
}
READ_THE_TEXT = [*ASKED][:5]  # whose last token may not be on the host when a step is launched


def waits(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What the work returns, and why the host waits in it."""
    results: list[Any] = []
    record = record_step(lambda: results.append(work()), ())
    ignored = ("uploaded: a tensor is made of", "reads a tensor")
    return results[0], [why for why in record.violations if not any(text in why for text in ignored)]


def waits_of(llm: LLM, *asked: dict[str, Any]) -> list[str]:
    """Why the host waits in the steps of these requests, as tokens are chosen and as blocks are copied."""
    found: list[str] = []

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            result, why = waits(lambda: call(*args))
            found.extend(why)
            return result

        return noting

    runner = llm.engine.runner
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "choose", noted(runner.choose))
        patch.setattr(runner.pool, "copy_blocks", noted(runner.pool.copy_blocks))
        params = [SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True} | each) for each in asked]
        outputs = llm.generate(["A list is a"] * len(params), params, use_tqdm=False)
    assert all(len(sample.token_ids) == 6 for output in outputs for sample in output.outputs)
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["in turn", "ahead"])
def llm(tiny: GPT2, request: pytest.FixtureRequest) -> LLM:
    return LLM(tiny, tokenizer="tiny", num_kvcache_blocks=64, block_size=8, async_scheduling=request.param)


@pytest.mark.parametrize("asked", ASKED)
def test_the_host_waits_in_no_choice(llm: LLM, asked):
    """But for the text's last token, where a step is launched before that is read and the request's change reads it."""
    found = waits_of(llm, ASKED[asked], {})
    if llm.engine.depth == 2 and asked in READ_THE_TEXT:
        assert {*found} == {"a step must not wait for the device, tolist: the host waits for values"}
    else:
        assert found == []


def test_the_host_waits_in_no_choice_for_all_of_them_together(llm: LLM):
    found = waits_of(llm, *(each for name, each in ASKED.items() if name not in READ_THE_TEXT))
    assert found == []


def test_the_host_waits_in_no_copy_of_blocks(llm: LLM, monkeypatch):
    copied = []
    copy_blocks = llm.engine.pool.copy_blocks
    monkeypatch.setattr(
        llm.engine.pool, "copy_blocks", lambda copies: (copied.append(dict(copies)), copy_blocks(copies))
    )
    assert waits_of(llm, {**DRAWN, "n": 3}) == [] and copied


HERE = torch.device("cpu")
TEN = torch.arange(10.0)


@pytest.mark.parametrize(
    "waiting",
    [
        lambda: TEN[[1, 2]],
        lambda: torch.tensor([1, 2], device=HERE),
        lambda: TEN[torch.from_numpy(TEN[:2].long().numpy()).to(HERE)],
        lambda: TEN.sum().item(),
        lambda: TEN.tolist(),
        lambda: TEN[TEN > 2],
    ],
)
def test_each_way_to_wait_is_found(waiting):
    assert waits(waiting)[1]


@pytest.mark.parametrize("values", [[1, 2], [[1, 2], (3, 4)], torch.arange(3).numpy() > 1])
def test_what_is_uploaded_is_what_it_was_made_of_and_no_wait(values):
    made, why = waits(lambda: uploaded(values, HERE))
    assert why == [] and torch.equal(made, torch.tensor(values))
    assert uploaded(values, HERE, torch.float32).dtype == torch.float32
