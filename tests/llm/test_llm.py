"""LLM: transformers' texts, every form of prompt, stop strings, streams, what is freed."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from fresh_python import printed_by
from oracles import prompts_of, values_of
from served import BLOCKS, IDS, TEXTS, TOKENIZER, copied, params, texts

import roseinfer
from roseinfer.engine.runner import copied_to_host
from roseinfer.generate import check_honoured
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2, load_model
from roseinfer.models.weights import held_bytes, prepare_weights
from roseinfer.paths import TINY
from roseinfer.reference import hf_generate, reference_generate, reference_logits
from roseinfer.sequence import SamplingParams, Sequence
from stages import PrefixCache

# What comes out


@pytest.mark.slow
def test_texts_are_those_of_transformers(llm, tiny):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(TINY)
    wanted = hf_generate(tiny, IDS, 40)
    outputs = llm.generate(TEXTS, params(40))
    assert [output.outputs[0].token_ids for output in outputs] == wanted
    assert texts(outputs) == [theirs.decode(ids, skip_special_tokens=True) for ids in wanted]


def test_packed_weights_say_the_same(tiny):
    """A spec's model is packed for this machine; a Model, as the others here, is used as it is."""
    outputs = LLM("tiny", device="cpu", num_kvcache_blocks=16).generate(TEXTS, params(20))
    assert [output.outputs[0].token_ids for output in outputs] == reference_generate(tiny, IDS, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "quantization"), [("float32", "int8"), ("float32", "int4"), ("bfloat16", None)])
def test_fewer_bits_are_served(dtype, quantization):
    """The answers are those of a model that was prepared by hand, to the last bit."""
    by_hand = load_model("tiny", dtype=getattr(torch, dtype))
    prepare_weights(by_hand, quantization)
    llm = LLM("tiny", device="cpu", dtype=dtype, quantization=quantization, num_kvcache_blocks=4)
    assert (llm.model.dtype, held_bytes(llm.model)) == (by_hand.dtype, held_bytes(by_hand))
    asked = IDS[0], params(8, logprobs=2)
    assert llm.generate(*asked)[0].outputs[0].logprobs == (
        LLM(by_hand, tokenizer="tiny", num_kvcache_blocks=4).generate(*asked)[0].outputs[0].logprobs
    )


def test_an_output_says_what_was_asked_and_how_it_ended(llm):
    [output] = llm.generate("Return a new", params(3))
    assert (output.prompt, output.prompt_token_ids, output.finished) == ("Return a new", IDS[0], True)
    [completion] = output.outputs
    assert completion == roseinfer.CompletionOutput(
        index=0, text=TOKENIZER.decode(completion.token_ids), token_ids=completion.token_ids, finish_reason="length"
    )
    assert isinstance(output, roseinfer.RequestOutput) and len(completion.token_ids) == 3


@pytest.mark.parametrize(
    "prompts",
    [TEXTS[0], IDS[0], TEXTS[:2], IDS[:2], [IDS[0], TEXTS[1]], tuple(TEXTS), [tuple(IDS[0])]],
    ids=["text", "ids", "texts", "lists", "both", "tuple", "tuple-of-ids"],
)
def test_prompts_are_texts_or_token_ids_one_or_many(llm, prompts):
    outputs = llm.generate(prompts, params(5))
    many = 1 if prompts in (TEXTS[0], IDS[0]) else len(prompts)
    assert texts(outputs) == texts(llm.generate(TEXTS, params(5)))[:many]
    assert [output.prompt_token_ids for output in outputs] == IDS[:many]
    first = prompts if isinstance(prompts, str) else prompts[0]
    assert outputs[0].prompt == (first if isinstance(first, str) else None)


def test_outputs_keep_the_order_of_the_prompts_and_each_its_own_params(llm, tiny):
    lengths = [9, 1, 4, 2]
    outputs = llm.generate(TEXTS, [params(n) for n in lengths])
    wanted = [ids[:n] for ids, n in zip(reference_generate(tiny, IDS, 9), lengths, strict=True)]
    assert [output.outputs[0].token_ids for output in outputs] == wanted


def test_no_prompts_are_no_outputs(llm):
    assert llm.generate([]) == [] and list(llm.stream([])) == [] and llm.generate([], []) == []


def test_default_params_are_sixteen_greedy_tokens(llm, tiny):
    [output] = llm.generate(TEXTS[:1])
    assert [output.outputs[0].token_ids] == reference_generate(tiny, IDS[:1], 16)


def test_temperature_zero_is_top_k_one(llm):
    assert texts(llm.generate(TEXTS, params())) == texts(llm.generate(TEXTS, params(temperature=1.0, top_k=1)))


def test_the_engines_seed_makes_other_requests_repeatable(tiny):
    def drawn(seed: int) -> list[str]:
        llm = LLM(tiny, tokenizer=TOKENIZER, num_kvcache_blocks=8, seed=seed)
        return texts(llm.generate(TEXTS, params(temperature=1.0)))

    assert drawn(3) == drawn(3) != drawn(4)


def test_the_models_end_token_ends_a_request_and_is_no_text(llm, tiny):
    [output] = llm.generate(TEXTS[0], SamplingParams(max_tokens=200))
    [completion] = output.outputs
    assert completion.token_ids[-1] == tiny.config.eos_token_id and "endoftext" not in completion.text
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_an_end_token_that_is_a_word_is_no_text(tiny):
    """The tokenizer has it as an ordinary token: it would show it."""
    [ids] = reference_generate(tiny, IDS[:1], 6)
    ends = GPT2(replace(tiny.config, eos_token_id=ids[5]))
    ends.load_state_dict(tiny.state_dict())
    llm = LLM(ends.eval(), tokenizer="tiny", num_kvcache_blocks=4)
    [output] = llm.generate(TEXTS[:1])
    assert ids.index(ids[5]) == 5 and output.outputs[0].token_ids == ids
    assert output.outputs[0].text == TOKENIZER.decode(ids[:5]) != TOKENIZER.decode(ids)
    assert [streamed.outputs[0].text for streamed in llm.stream(TEXTS[:1])][-2:] == [output.outputs[0].text] * 2


def test_a_stop_token_is_the_reason_and_no_text(llm):
    [plain] = llm.generate(TEXTS[0], params())
    stop = plain.outputs[0].token_ids[4]
    [output] = llm.generate(TEXTS[0], params(stop_token_ids=[stop]))
    assert output.outputs[0].token_ids == plain.outputs[0].token_ids[:5]
    assert output.outputs[0].text == TOKENIZER.decode(plain.outputs[0].token_ids[:4])
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)


def test_stop_strings_cut_the_text_and_free_the_request(llm):
    """Each prompt has a stop string of its own, one across two tokens; the others run on."""
    plain = texts(llm.generate(TEXTS, params(30)))
    stops = [plain[0][9:14], "never there", plain[2][3:20]]
    outputs = llm.generate(TEXTS[:3], [params(30, stop=[stop, "nor this"]) for stop in stops])
    for text, stop, output in zip(plain, stops, outputs, strict=False):
        [completion] = output.outputs
        before, found, _ = text.partition(stop)
        assert completion.text == before
        assert (completion.finish_reason, completion.stop_reason) == (("stop", stop) if found else ("length", None))
        whole = TOKENIZER.decode(completion.token_ids)
        assert stop not in TOKENIZER.decode(completion.token_ids[:-1]) and whole.startswith(before + found)


# Who goes when


def test_longest_output_first_refuses_what_may_end_sooner(tiny):
    llm = LLM(tiny, tokenizer="tiny", scheduling_policy="longest_output", num_kvcache_blocks=3)
    with pytest.raises(ValueError, match=r"^prompts\[0\]: scheduling_policy='longest_output' has to know how many"):
        llm.generate(TEXTS, params(stop="a"))


def test_the_lower_priority_goes_first(tiny):
    one_at_a_time = LLM(tiny, tokenizer="tiny", max_num_seqs=1, num_kvcache_blocks=3)
    outputs = one_at_a_time.stream(TEXTS, params(2), priority=[0, 3, -1, 0])
    assert [output.prompt for output in outputs if output.finished] == [TEXTS[i] for i in (2, 0, 3, 1)]
    for wrong in ([1, 2], 3, "ab"):
        with pytest.raises(ValueError, match="^priority must be a list of 4 integers, got "):
            one_at_a_time.generate(TEXTS, params(2), priority=wrong)
    with pytest.raises(ValueError, match=r"^prompts\[1\]: priority must be an integer .*, got 'a'$"):
        one_at_a_time.generate(TEXTS, params(2), priority=[1, "a", 2, 3])


def test_what_was_computed_is_not_computed_again_until_it_is_forgotten(llm):
    cache = llm.engine.blocks.prefix_cache
    prompt = [[7] * 40]
    for found in (0, 32, 32):
        before = cache.num_found_tokens
        llm.generate(prompt, params(2))
        assert cache.num_found_tokens - before == found
    llm.reset_prefix_cache()
    assert not cache.entries and llm.engine.blocks.num_free == BLOCKS
    llm.generate(prompt, params(2))
    assert cache.num_found_tokens - before == 32


def test_what_a_stage_has_cached_and_computed_is_its_own_business(tiny):
    llm = LLM(tiny, tokenizer="tiny", stage=PrefixCache, block_size=16, num_kvcache_blocks=8)
    wanted = reference_generate(tiny, [[7] * 40], 3)
    for _ in range(2):
        assert [output.outputs[0].token_ids for output in llm.generate([[7] * 40], params(3))] == wanted
    counters = llm.engine.metrics.counters()
    assert (counters["new_tokens"], counters["tokens"], counters["prefix_cache_hit_rate"]) == (6, 0, None)
    with pytest.raises(ValueError, match="^reset_prefix_cache is for the engine: a stage has no call that forgets"):
        llm.reset_prefix_cache()


# Samples


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("text", [0, 2])
def test_samples_are_those_of_requests_with_seeds_of_their_own(llm, n, text):
    drawn = {"temperature": 3.0, "top_k": 50, "logprobs": 1}
    [output] = llm.generate([TEXTS[text]], params(seed=5, n=n, **drawn))
    alone = llm.generate([TEXTS[text]] * n, [params(seed=5 + i, **drawn) for i in range(n)])
    assert output.finished and [sample.index for sample in output.outputs] == list(range(n))
    assert [sample.text for sample in output.outputs] == texts(alone)
    assert [sample.token_ids for sample in output.outputs] == [one.outputs[0].token_ids for one in alone]
    assert len({sample.text for sample in output.outputs}) == n
    for sample, one in zip(output.outputs, alone, strict=True):
        assert sample.cumulative_logprob == pytest.approx(one.outputs[0].cumulative_logprob, abs=1e-3)


def test_samples_without_a_seed_differ(llm):
    [output] = llm.generate(TEXTS[:1], params(temperature=2.0, n=4))
    assert len({sample.text for sample in output.outputs}) == 4


def test_a_stream_of_samples_ends_when_the_last_one_does(llm):
    """Each has a stop string of its own to find, or none."""
    drawn = params(25, temperature=1.5, seed=3, n=4, stop=["e"])
    [wanted] = llm.generate(TEXTS[:1], drawn)
    reasons = [sample.finish_reason for sample in wanted.outputs]
    assert "stop" in reasons and all("e" not in sample.text for sample in wanted.outputs)
    outputs = list(llm.stream(TEXTS[:1], drawn))
    assert outputs[-1].outputs == wanted.outputs and [output.finished for output in outputs].count(True) == 1
    lengths = [len(sample.token_ids) for sample in wanted.outputs]
    assert len(set(lengths)) > 1 and len(outputs) >= max(lengths)


def test_abort_ends_all_samples(llm):
    for output in llm.stream(TEXTS[:1], params(30, temperature=1.0, n=5)):
        if not output.finished and max(len(sample.token_ids) for sample in output.outputs) == 3:
            llm.abort(output.request_id)
    assert output.finished and [sample.finish_reason for sample in output.outputs] == ["abort"] * 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n must be an integer >= 1, got 0"),
        ({"n": 1.0}, "n must be an integer >= 1, got 1.0"),
        ({"n": 2}, "n must be 1 at temperature=0, where all samples are the same, got 2"),
        ({"n": 3, "temperature": 1.0, "seed": 2**63 - 2}, "seed must be at most 9223372036854775805 for n=3 samples"),
    ],
)
def test_samples_that_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        SamplingParams(**wrong)


def test_only_an_llm_runs_samples(llm):
    three = SamplingParams(n=3, temperature=1.0)
    with pytest.raises(ValueError, match="^n=3 samples are for roseinfer.LLM: here each is a Sequence of its own$"):
        llm.engine.add(Sequence([1], three))
    with pytest.raises(ValueError, match="^n=3 samples are for roseinfer.LLM"):
        check_honoured(three)
    with pytest.raises(ValueError, match="^parent must be a sequence with the same prompt, got Sequence"):
        Sequence([1, 2], parent=Sequence([1, 3]))


# Streams


@pytest.mark.parametrize("stop", [[], ["is", "ed. "]], ids=["to-the-end", "stop"])
def test_a_stream_grows_into_what_generate_gives(llm, stop):
    wanted = llm.generate(TEXTS, params(30, stop=stop))
    last: dict[str, roseinfer.RequestOutput] = {}
    for output in llm.stream(TEXTS, params(30, stop=stop)):
        before = last.get(output.request_id)
        if before:
            assert not before.finished and output.outputs[0].text.startswith(before.outputs[0].text)
            assert output.outputs[0].token_ids[:-1] == before.outputs[0].token_ids
        last[output.request_id] = output
    assert [output.outputs for output in last.values()] == [output.outputs for output in wanted]
    assert all(output.finished for output in last.values())


def test_streamed_outputs_do_not_change_later(llm):
    outputs = list(llm.stream(TEXTS[0], params(4, logprobs=0)))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4]
    assert [len(output.outputs[0].logprobs) for output in outputs] == [1, 2, 3, 4]


def test_a_closed_stream_frees_everything(llm):
    stream = llm.stream(TEXTS, params(30))
    for _ in range(7):
        next(stream)
    assert llm.engine.blocks.num_free < BLOCKS
    stream.close()
    assert llm.engine.blocks.num_free == BLOCKS
    llm.stream(TEXTS, params()).close()  # one that never began


def test_one_request_of_a_stream_is_aborted(llm):
    plain = texts(llm.generate(TEXTS[:2], params(9)))
    ended = {}
    for output in llm.stream(TEXTS[:2], params(9)):
        if output.prompt == TEXTS[0] and len(output.outputs[0].token_ids) == 3 and not output.finished:
            llm.abort(output.request_id)
        if output.finished:
            ended[output.prompt] = output
    first, second = ended[TEXTS[0]], ended[TEXTS[1]]
    assert first.outputs[0].finish_reason == "abort" and len(first.outputs[0].token_ids) == 3
    assert plain[0].startswith(first.outputs[0].text) and texts([second]) == plain[1:]
    with pytest.raises(KeyError):
        llm.abort(first.request_id)


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at_step", [1, 2, 5])
def test_whatever_ends_it_frees_everything(llm, monkeypatch, error, at_step):
    wanted, calls = texts(llm.generate(TEXTS, params())), []

    def interrupted(*inputs):
        """Behind the forward: its K and V are written."""
        calls.append(inputs)
        if len(calls) == at_step:
            raise error
        return copied_to_host(*inputs)

    monkeypatch.setattr("roseinfer.engine.runner.copied_to_host", interrupted)
    with pytest.raises(error):
        llm.generate(TEXTS, params())
    assert llm.engine.blocks.num_free == BLOCKS and not llm.engine.has_work
    assert texts(llm.generate(TEXTS, params())) == wanted  # the engine goes on


# Log-probabilities


def test_logprobs_are_those_of_the_model(llm, tiny):
    counts = [None, 0, 3]
    outputs = llm.generate(TEXTS[:3], [params(6, logprobs=n, temperature=1.0, seed=5) for n in counts])
    assert outputs[0].outputs[0].logprobs is None and outputs[0].outputs[0].cumulative_logprob is None
    for output, n in zip(outputs[1:], counts[1:], strict=True):
        [completion], start = output.outputs, len(output.prompt_token_ids)
        logits = reference_logits(tiny, output.prompt_token_ids + completion.token_ids)[start - 1 : -1]
        for at, token, row in zip(completion.logprobs, completion.token_ids, logits.log_softmax(-1), strict=True):
            likeliest = row.topk(n).indices.tolist()
            assert list(at) == [token, *(i for i in likeliest if i != token)]
            assert list(values_of(at).values()) == pytest.approx(row[list(at)].tolist(), abs=1e-4)
            assert all(1 + int((row > row[other]).sum()) == entry.rank for other, entry in at.items())
            assert all(entry.decoded_token == TOKENIZER.decode([other]) for other, entry in at.items())
        chosen = [at[token].logprob for at, token in zip(completion.logprobs, completion.token_ids, strict=True)]
        assert completion.cumulative_logprob == pytest.approx(sum(chosen))


# Tokenizers


def test_without_a_tokenizer_token_ids_are_served_and_text_is_refused(small):
    llm = LLM(small, num_kvcache_blocks=4)
    prompts = prompts_of([3, 5], small.config.vocab_size)
    outputs = llm.generate(prompts, SamplingParams(max_tokens=6))
    assert [output.outputs[0].token_ids for output in outputs] == reference_generate(small, prompts, 6)
    assert texts(outputs) == ["", ""]
    for call in (lambda: llm.generate("Return"), lambda: llm.generate([[1], "Return"]), llm.get_tokenizer):
        with pytest.raises(ValueError, match=r"'GPT2' has no tokenizer: give token ids, or set tokenizer$"):
            call()
    with pytest.raises(ValueError, match=r"stop=\('a',\) needs a tokenizer, and 'GPT2' has none: use stop_token_ids$"):
        llm.generate([1], SamplingParams(stop="a"))


def test_a_folder_without_a_tokenizer(tmp_path, llm):
    copied(tmp_path, "tokenizer.json", "tokenizer_config.json")
    bare = LLM(str(tmp_path), device="cpu", num_kvcache_blocks=4)
    [output] = bare.generate(IDS[0], params(5))
    assert output.outputs[0].token_ids == llm.generate(IDS[0], params(5))[0].outputs[0].token_ids
    with pytest.raises(ValueError, match="has no tokenizer: give token ids"):
        bare.generate("Return a new")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is not a tokenizer"):
        LLM(str(tmp_path), device="cpu", num_kvcache_blocks=4)


# The bar


@pytest.mark.parametrize(("use_tqdm", "terminal"), [(True, True), (True, False), (False, True)])
def test_a_bar_is_for_those_who_look(llm, capsys, monkeypatch, use_tqdm, terminal):
    monkeypatch.setattr("roseinfer.llm.progress.REDRAW_SECONDS", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    llm.generate(TEXTS[:2], params(3), use_tqdm=use_tqdm)
    out, err = capsys.readouterr()
    assert out == "" and ("requests" in err) == ("tok/s" in err) == (use_tqdm and terminal)


IN_A_NOTEBOOK = "import ipykernel.zmqshell"
ONE_BAR = """
from roseinfer.llm.progress import progress_bar
with progress_bar(2, True) as show: show(1, 1)
import sys
print({"IPython", "ipywidgets", "torch"} & sys.modules.keys())
"""


@pytest.mark.slow
def test_a_bar_brings_a_notebooks_packages_into_a_notebook_alone():
    assert printed_by(ONE_BAR) == "set()\n"
    assert printed_by(IN_A_NOTEBOOK + ONE_BAR).startswith("requests:   0%|")
