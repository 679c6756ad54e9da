"""LLM as a vLLM user calls it: lengths, prompts as dicts, bad words, special tokens, log-probabilities of a prompt."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from oracles import values_of
from served import IDS, TEXTS, TOKENIZER, copied, params, texts

from roseinfer.llm.llm import LLM
from roseinfer.llm.loading import NOT_TAKEN
from roseinfer.models import GPT2
from roseinfer.reference import reference_generate, reference_logits
from roseinfer.sampling_params import SamplingParams

pytestmark = pytest.mark.slow

END = TOKENIZER.token_to_id("<|endoftext|>")


# How long


@pytest.fixture(scope="module")
def short(tiny: GPT2) -> LLM:
    return LLM(tiny, tokenizer="tiny", max_model_len=24, block_size=8, num_kvcache_blocks=9, max_num_seqs=3)


@pytest.mark.parametrize("max_tokens", [None, 100, 21])
@pytest.mark.parametrize(
    "settings", [{}, {"async_scheduling": True}, {"speculative": {"method": "ngram", "num_tokens": 3}}]
)
def test_a_request_ends_where_the_positions_of_the_model_end(tiny, max_tokens, settings):
    llm = LLM(tiny, tokenizer="tiny", max_model_len=24, block_size=8, num_kvcache_blocks=9, **settings)
    outputs = llm.generate(IDS[:2], [params(max_tokens), params(5)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [24 - len(IDS[0]), 5]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length"] * 2
    assert outputs[0].outputs[0].token_ids == reference_generate(tiny, IDS[:1], 24 - len(IDS[0]))[0]


def test_a_shorter_end_is_the_requests_own(short):
    [output] = short.generate(IDS[0], params(24 - len(IDS[0]) - 1))
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 23
    stop = output.outputs[0].token_ids[3]
    [stopped] = short.generate(IDS[0], params(None, stop_token_ids=[stop]))
    assert stopped.outputs[0].finish_reason == "stop" and stopped.outputs[0].token_ids[-1] == stop


def test_the_longest_prompt_leaves_room_for_one_token(short):
    [output] = short.generate([5] * 23, params(None, n=1))
    assert len(output.outputs[0].token_ids) == 1
    with pytest.raises(
        ValueError, match="^prompt of 24 tokens leaves no room for a new one, allowed: at most 23 with max"
    ):
        short.generate([5] * 24, params(None))


def test_without_max_tokens_the_pool_is_a_limit_too(tiny):
    """A number that the pool cannot hold is refused: it was asked for. None asks for what there is."""
    llm = LLM(tiny, block_size=8, num_kvcache_blocks=2)
    [output] = llm.generate([5] * 3, params(None))
    assert len(output.outputs[0].token_ids) == 2 * 8 + 1 - 3 and output.outputs[0].finish_reason == "length"
    with pytest.raises(ValueError, match="needs 3 blocks of 8 tokens, allowed: num_blocks=2"):
        llm.generate([5] * 3, params(15))


def test_the_least_is_cut_with_the_most(short):
    [output] = short.generate([5] * 20, params(40, min_tokens=30))
    assert len(output.outputs[0].token_ids) == 4


# Prompts


def test_prompts_may_be_dicts(llm):
    wanted = llm.generate(TEXTS[0], params())
    as_text, as_ids, as_both = llm.generate(
        [{"prompt": TEXTS[0]}, {"prompt_token_ids": IDS[0]}, {"prompt": "shown", "prompt_token_ids": IDS[0]}], params()
    )
    assert as_text.outputs == as_ids.outputs == as_both.outputs == wanted[0].outputs
    assert (as_text.prompt, as_ids.prompt, as_both.prompt) == (TEXTS[0], None, "shown")
    assert llm.generate({"prompt": TEXTS[0], "multi_modal_data": None}, params())[0].outputs == wanted[0].outputs
    [*_, last] = llm.stream({"prompt_token_ids": IDS[0]}, params())
    assert last.outputs == wanted[0].outputs


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_arguments_of_vllm_that_are_not_taken_say_why(name):
    with pytest.raises(ValueError, match=re.escape(f"LLM does not take {name}, as vLLM's does: {NOT_TAKEN[name]}")):
        LLM("tiny", **{name: None})


@pytest.mark.parametrize(("key", "dtype"), [("dtype", "bfloat16"), ("torch_dtype", "float16"), ("dtype", "float64")])
def test_the_checkpoint_may_name_the_dtype(tmp_path, key, dtype):
    file = copied(tmp_path) / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if "dtype" not in k}
    file.write_text(json.dumps(config | {key: dtype}))
    llm = LLM(str(tmp_path), dtype="auto", device="cpu", num_kvcache_blocks=1)
    assert llm.model.dtype == (torch.float32 if dtype == "float64" else getattr(torch, dtype))
    assert LLM("random:tiny-llama", dtype="auto", device="cpu", num_kvcache_blocks=1).model.dtype == torch.float32


# Special tokens


@pytest.mark.parametrize("stop", [{}, {"stop": ["zzz"]}])
def test_special_tokens_are_shown_where_they_are_asked_for(llm, stop):
    forced = params(4, logit_bias={END: 100}, **stop)
    [hidden, shown] = llm.generate(IDS[:2], [forced, replace(forced, skip_special_tokens=False)])
    assert (hidden.outputs[0].text, shown.outputs[0].text) == ("", "<|endoftext|>" * 4)
    assert shown.outputs[0].token_ids == hidden.outputs[0].token_ids == [END] * 4


def test_the_end_token_is_shown_where_both_are_asked_for(llm):
    ends = SamplingParams(max_tokens=4, logit_bias={END: 100}, include_stop_str_in_output=True)
    outputs = llm.generate(IDS[:2], [ends, replace(ends, skip_special_tokens=False)])
    assert texts(outputs) == ["", "<|endoftext|>"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop"] * 2


def test_what_stopped_a_text_may_stay_in_it(llm):
    plain = llm.generate(TEXTS[0], params(20))[0].outputs[0]
    word = plain.text.split()[2]
    before = plain.text[: plain.text.index(word)]
    cut, kept = llm.generate(
        [TEXTS[0]] * 2, [params(20, stop=word, include_stop_str_in_output=on) for on in (False, True)]
    )
    assert (cut.outputs[0].text, kept.outputs[0].text) == (before, before + word)
    assert cut.outputs[0].token_ids == kept.outputs[0].token_ids
    token = plain.token_ids[4]
    cut, kept = llm.generate(
        [TEXTS[0]] * 2, [params(20, stop_token_ids=[token], include_stop_str_in_output=on) for on in (False, True)]
    )
    ids = cut.outputs[0].token_ids
    assert kept.outputs[0].text == TOKENIZER.decode(ids) and cut.outputs[0].text == TOKENIZER.decode(ids[:-1])


@pytest.mark.parametrize("drafts", [None, {"method": "ngram", "num_tokens": 4, "prompt_lookup_min": 1}])
def test_a_stop_string_counts_after_min_tokens(tiny, drafts):
    llm = LLM(tiny, tokenizer="tiny", num_kvcache_blocks=24, block_size=16, speculative=drafts)
    plain = llm.generate(TEXTS[0], params(40))[0].outputs[0]
    letter = plain.text.strip()[0]
    ends = [n for n in range(1, 41) if letter in TOKENIZER.decode(plain.token_ids[:n][-1:])]
    assert len(ends) > 2
    for least in (0, ends[0] - 1, ends[0], ends[1]):
        [output] = llm.generate(TEXTS[0], params(40, stop=letter, min_tokens=least))
        wanted = next(n for n in ends if n > least)
        assert len(output.outputs[0].token_ids) == wanted and output.outputs[0].stop_reason == letter
        text = TOKENIZER.decode(plain.token_ids[:wanted])
        assert output.outputs[0].text == text[: text.rindex(letter)]


def test_a_stop_string_may_begin_before_min_tokens_and_end_after(llm):
    plain = llm.generate(TEXTS[0], params(20))[0].outputs[0]
    stop = TOKENIZER.decode(plain.token_ids[4:7])
    assert len(llm.generate(TEXTS[0], params(20, stop=stop, min_tokens=6))[0].outputs[0].token_ids) == 7
    assert len(llm.generate(TEXTS[0], params(20, stop=stop, min_tokens=7))[0].outputs[0].token_ids) == 20


# Log-probabilities of a prompt


@pytest.mark.parametrize("most", [0, 3])
def test_prompt_logprobs_are_those_of_the_model(llm, tiny, most):
    asked = params(3, prompt_logprobs=most, repetition_penalty=1.5)
    output, other = llm.generate([IDS[2], IDS[0]], [asked, params(3)])
    assert other.prompt_logprobs is None
    first, *found = output.prompt_logprobs
    assert first is None and len(found) == len(IDS[2]) - 1
    rows = reference_logits(tiny, IDS[2])[:-1].log_softmax(-1)
    for position, token, row in zip(found, IDS[2][1:], rows, strict=True):
        likeliest = row.topk(most).indices.tolist()
        assert list(position) == [token, *(other for other in likeliest if other != token)]
        assert list(values_of(position).values()) == pytest.approx(row[list(position)].tolist(), abs=1e-4)
        assert position[token].rank == 1 + int((row > row[token]).sum())
        assert position[token].decoded_token == TOKENIZER.decode([token])


@pytest.mark.parametrize(
    "settings", [{"quantization": "int8"}, {"async_scheduling": True}, {"enable_prefix_caching": False}]
)
def test_prompt_logprobs_whatever_the_weights_and_the_steps(settings):
    llm = LLM("tiny", device="cpu", num_kvcache_blocks=24, **settings)
    [long] = llm.generate([(IDS[2] * 40)[:400]], params(2, prompt_logprobs=1))
    rows = reference_logits(llm.model, long.prompt_token_ids)[:-1].log_softmax(-1)
    wanted = [float(row[token]) for row, token in zip(rows, long.prompt_token_ids[1:], strict=True)]
    found = [at[token].logprob for at, token in zip(long.prompt_logprobs[1:], long.prompt_token_ids[1:], strict=True)]
    assert found == pytest.approx(wanted, abs=1e-3)
    [one] = llm.generate([[5]], params(2, prompt_logprobs=1))
    assert one.prompt_logprobs == [None]


def test_a_prompt_whose_logits_are_no_numbers_is_one_error(llm, monkeypatch):
    logits = llm.model.logits
    monkeypatch.setattr(llm.model, "logits", lambda hidden: logits(hidden) * float("nan"))
    with pytest.raises(
        ValueError, match="^logits must be finite, those of a prompt with prompt_logprobs have NaN or inf"
    ):
        llm.generate(IDS[:2], [params(), params(prompt_logprobs=0)])


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"bad_words": "a"}, r"bad_words=\('a',\) needs a tokenizer, and 'GPT2' has none: use logit_bias"),
        ({"allowed_token_ids": [2048]}, "allowed_token_ids has token id 2048, which is out of range: vocab_size=2048"),
        ({"logit_bias": {2048: 1}}, "logit_bias has token id 2048, which is out of range: vocab_size=2048"),
    ],
)
def test_what_a_model_cannot_have_is_refused(tiny, wishes, message):
    llm = LLM(tiny, num_kvcache_blocks=4)
    with pytest.raises(ValueError, match=rf"^prompts\[1\]: {message}$"):
        llm.generate([[1], [2]], [params(), params(**wishes)])
