"""Requests, the continuous loop and the block bookkeeping, apart from any one stage."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from oracles import prompts_of, small_model

from roseinfer.blocks import BlockTables, OutOfBlocks
from roseinfer.generate import begin, generate, stream
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence
from stages import BlockTableCache as Newest  # of those that need no interpreter here


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 2.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("stop_token_ids", 5),
        ("stop_token_ids", (-1,)),
        ("seed", -1),
        ("temperature", None),
        ("top_p", None),
        ("ignore_eos", "no"),
        ("stop", ""),
        ("stop", b"ab"),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", float("nan")),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", None),
        ("repetition_penalty", 0),
        ("repetition_penalty", float("inf")),
        ("logit_bias", [1]),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: float("nan")}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("bad_words", [""]),
        ("logits_processors", ["greedy"]),
        ("structured_outputs", {"regex": "a"}),
        ("skip_special_tokens", 1),
        ("include_stop_str_in_output", "no"),
    ],
)
def test_sampling_params_name_the_field_and_the_value(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be .*, got {re.escape(repr(value))}$"):
        SamplingParams(**{field: value})


def test_stops_may_come_one_by_one():
    assert SamplingParams(stop_token_ids=(token for token in [3, 4])).stop_token_ids == (3, 4)
    assert SamplingParams(stop=(text for text in ["a", "b"])).stop == ("a", "b")


def test_one_stop_text_stands_for_itself():
    assert SamplingParams(stop="ab").stop == ("ab",) and SamplingParams().stop == SamplingParams(stop=[]).stop == ()


def test_none_stands_for_no_stops_as_in_vllm():
    nothing = SamplingParams(stop=None, stop_token_ids=None, bad_words=None, logits_processors=None, logit_bias={})
    assert nothing == SamplingParams() and not nothing.changes_logits


def test_biases_are_limited_as_in_vllm():
    assert SamplingParams(logit_bias={3: 1000, 4: -101, 5: 7}).logit_bias == {3: 100.0, 4: -100.0, 5: 7.0}


def test_all_tokens_are_kept_as_vllm_writes_it():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop": "ab"}, r"stop=\('ab',\) needs a tokenizer: use roseinfer.LLM, or stop_token_ids"),
        ({"logprobs": 0}, "logprobs=0 is for roseinfer.LLM: a stage reports none"),
        ({"max_tokens": None}, "max_tokens=None is for roseinfer.LLM, which knows how long a sequence may become: .*"),
        ({"bad_words": "ab"}, r"bad_words=\('ab',\) needs a tokenizer: use roseinfer.LLM, or logits_processors"),
        ({"min_p": 0.1}, "min_p=0.1 is for roseinfer.LLM: a stage leaves logits as they are"),
        ({"logit_bias": {5: 1}}, r"logit_bias={5: 1.0} is for roseinfer.LLM: a stage leaves logits as they are"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2 is for roseinfer.LLM: a stage leaves logits as they are"),
    ],
)
def test_a_stage_refuses_what_only_the_engine_gives(small, params, message):
    stage = Newest(small, num_blocks=2)
    with pytest.raises(ValueError, match=f"^{message}$"):
        generate(stage, [[1], [2]], [SamplingParams(), SamplingParams(**params)])
    with pytest.raises(ValueError, match=f"^{message}$"):
        begin(stage, [[1], [2]], SamplingParams(**params))
    assert stage.num_free_blocks == 2


def test_unknown_fields_are_refused():
    with pytest.raises(
        ValueError, match=r"^SamplingParams has no argument 'max_token' \(nearest: max_tokens\), allowed: "
    ):
        SamplingParams(max_token=3)
    with pytest.raises(
        ValueError, match="^SamplingParams does not take best_of, as vLLM's does: use n, and sort the outp"
    ):
        SamplingParams(best_of=3)
    with pytest.raises(AttributeError):
        Sequence([1]).max_token = 3


@pytest.mark.parametrize("token_ids", [[], "text", [1, -1], [1.0], None, 7])
def test_a_prompt_is_a_list_of_token_ids(token_ids):
    with pytest.raises(ValueError, match="^token_ids must be"):
        Sequence(token_ids)


def test_a_sequence_copies_its_prompt_and_keeps_outputs_apart():
    prompt = [4, 5]
    seq = Sequence(prompt, SamplingParams(max_tokens=2))
    seq.append(6)
    assert (prompt, seq.token_ids, seq.output_ids, len(seq), seq.last_token_id) == ([4, 5], [4, 5, 6], [6], 3, 6)


def test_the_reference_takes_no_wrong_token_of_a_draft(small):
    prompts = prompts_of([3, 9], 97)
    right = reference_generate(small, prompts, 6)
    for place in range(7):
        wrong = [[*tokens[:place], *((token + 1) % 97 for token in tokens[place:])] for tokens in right]
        for drafts in (wrong, [tokens[:place] for tokens in right], [[*tokens, 5, 6] for tokens in wrong]):
            assert reference_generate(small, prompts, 6, drafts) == right
    assert reference_generate(small, prompts, 0, right) == [[], []]


def test_stop_tokens_end_a_request_and_stay_in_the_output(small):
    [plain] = reference_generate(small, [[3, 4, 5]], 12)
    stop = plain[4]
    params = SamplingParams(max_tokens=12, stop_token_ids=(stop,))
    [seq] = generate(Newest(small, num_blocks=4), [[3, 4, 5]], params)
    assert seq.output_ids == plain[: plain.index(stop) + 1] and seq.finish_reason == "stop"


def test_each_of_several_end_tokens_ends_a_request(small):
    [plain] = reference_generate(small, [[3, 4, 5]], 12)
    later, sooner = plain[7], plain[4]
    model = small_model()
    model.config = replace(model.config, eos_token_id=(later, sooner))
    [seq] = generate(Newest(model, num_blocks=4), [[3, 4, 5]], SamplingParams(max_tokens=12))
    assert seq.output_ids == plain[: min(plain.index(later), plain.index(sooner)) + 1] and seq.finish_reason == "stop"


def test_the_models_end_token_ends_a_request_unless_ignored(tiny):
    from roseinfer.models import load_tokenizer

    prompt = load_tokenizer("tiny").encode("Return a new").ids
    stage = Newest(tiny, num_blocks=16)
    [free_run] = generate(stage, [prompt], SamplingParams(max_tokens=200, ignore_eos=True))
    [stopped] = generate(stage, [prompt], SamplingParams(max_tokens=200))
    eos = tiny.config.eos_token_id
    assert eos in free_run.output_ids, "the bundled model should end its text within 200 tokens"
    assert stopped.output_ids == free_run.output_ids[: free_run.output_ids.index(eos) + 1]
    assert (stopped.finish_reason, free_run.finish_reason) == ("stop", "length")


def test_tokens_stream_while_others_still_wait(small):
    """Two places, three requests: the third starts when the first ends, and tokens come one step at a time."""
    seqs = [
        Sequence(p, SamplingParams(max_tokens=n)) for p, n in zip(prompts_of([2, 2, 2], 97), [2, 4, 2], strict=True)
    ]
    order = [seqs.index(seq) for seq, _ in stream(Newest(small, num_blocks=4, max_num_seqs=2), seqs)]
    assert order == [0, 1, 0, 1, 2, 1, 2, 1]


def test_a_running_request_never_finds_the_pool_empty(small):
    """Five blocks of 4 tokens; each request may grow to three of them: the loop runs one at a time and loses none."""
    stage = Newest(small, num_blocks=5, block_size=4)
    prompts = prompts_of([3, 4, 2, 4], 97)
    seqs = generate(stage, prompts, SamplingParams(max_tokens=8))
    assert [seq.output_ids for seq in seqs] == reference_generate(small, prompts, 8)
    assert stage.num_free_blocks == 5


def test_a_loop_that_cannot_start_says_so(small):
    stage = Newest(small, num_blocks=2)
    stage.prefill(Sequence([1] * 65, SamplingParams(max_tokens=1)))
    with pytest.raises(OutOfBlocks, match="other sequences hold the blocks"):
        generate(stage, [[1]], SamplingParams())


def test_streams_that_share_a_stage_never_find_the_pool_empty(small):
    """Six blocks of 4 tokens; each request may grow to three. Token by token in turn, two run and the third waits."""
    stage = Newest(small, num_blocks=6, block_size=4)
    prompts = prompts_of([3, 4, 2], 97)
    seqs = [Sequence(prompt, SamplingParams(max_tokens=8)) for prompt in prompts]
    streams = [stream(stage, [seqs[0]]), stream(stage, seqs[1:])]
    while streams:
        streams = [one for one in streams if next(one, None)]
        assert stage.tables.num_unpromised >= 0
    assert [seq.output_ids for seq in seqs] == reference_generate(small, prompts, 8)
    assert stage.num_free_blocks == 6


def test_a_finished_request_is_not_continued(small):
    stage, params = Newest(small, num_blocks=8), SamplingParams(max_tokens=3)
    [done] = generate(stage, [[1, 2]], params)
    full = Sequence([1, 2], params)
    full.token_ids += [3, 4, 5]
    for seq, reason in ((done, "finish_reason='length', 3 of max_tokens=3"), (full, "finish_reason=None, 3 of")):
        with pytest.raises(ValueError, match=rf"sequence {seq.seq_id} has finished \({reason}"):
            next(stream(stage, [Sequence([7], params), seq]))
        assert len(seq.output_ids) == 3 and stage.num_free_blocks == 8


def test_a_stream_refuses_and_leaves_alone_what_another_one_holds(small):
    stage, seq = Newest(small, num_blocks=8), Sequence([1, 2], SamplingParams(max_tokens=3))
    tokens = stream(stage, [seq])
    next(tokens)
    with pytest.raises(ValueError, match="is already held by s06_block_table_cache: free it first"):
        next(stream(stage, [seq]))
    with pytest.raises(ValueError, match="names a sequence twice"):
        next(stream(stage, [seq, seq]))
    assert stage.holds(seq) and len(list(tokens)) == 2 and stage.num_free_blocks == 8


def test_a_request_that_ran_half_goes_on_where_it_was(small):
    stage, seq = Newest(small, num_blocks=8), Sequence([1, 2], SamplingParams(max_tokens=6))
    tokens = stream(stage, [seq])
    next(tokens), next(tokens)
    tokens.close()
    assert len(list(stream(stage, [seq]))) == 4
    assert [seq.output_ids] == reference_generate(small, [[1, 2]], 6)


@pytest.mark.parametrize("prompts", [["Hello"], "Hello", [1, 2, 3], [[]], [None]])
def test_prompts_are_lists_of_token_ids(small, prompts):
    with pytest.raises(ValueError, match="token_ids must be a non-empty list of token ids") as refused:
        generate(Newest(small, num_blocks=2), prompts, SamplingParams())
    assert ("encode a text with a tokenizer" in str(refused.value)) == isinstance(prompts[0], str)


def test_one_params_a_prompt(small):
    with pytest.raises(ValueError, match="2 of them, got 1"):
        generate(Newest(small, num_blocks=2), [[1], [2]], [SamplingParams()])
    assert generate(Newest(small, num_blocks=2), [], SamplingParams()) == []


def test_block_tables_reserve_all_or_nothing():
    tables = BlockTables(num_tables=2, num_blocks=3, block_size=4)
    tables.reserve({7: 4, 8: 5})
    assert (tables.of(7, 0), tables.of(8, 1), tables.num_free, len(tables)) == ([0], [1, 2], 0, 2)
    with pytest.raises(OutOfBlocks, match="2 more blocks of 4 tokens are needed, 0 of num_blocks=3"):
        tables.reserve({7: 8, 9: 1})
    with pytest.raises(OutOfBlocks, match="1 more block of 4 tokens is needed, 0 of num_blocks=3"):
        tables.reserve({7: 8})
    assert 9 not in tables and tables.of(7, 1) == [0]
    tables.reserve({7: 3})  # fewer tokens than it holds blocks for: nothing is taken away
    tables.free(8)
    tables.check()
    tables.reserve({7: 9})
    assert tables.of(7, 0) == [0, 1, 2]
    with pytest.raises(KeyError):
        tables.free(8)


def test_a_sequence_that_is_trimmed_gives_its_last_blocks_back_in_every_table():
    tables = BlockTables(num_tables=2, num_blocks=4, block_size=4)
    tables.reserve({7: 12, 8: 4})
    version, other = tables.version(7), tables.version(8)
    tables.trim(7, 9)  # the ninth token lies in the third block
    assert (tables.of(7, 0), tables.num_free, tables.version(7)) == ([0, 1, 2], 0, version)
    tables.trim(7, 8)
    assert (tables.of(7, 0), tables.of(7, 1), tables.num_free) == ([0, 1], [0, 1], 1)
    assert tables.version(7) > version and tables.version(8) == other  # what was copied of the list is out of date
    tables.check()
    tables.reserve({8: 8})
    assert tables.of(8, 0) == tables.of(8, 1) == [3, 2]
    tables.trim(7, 0)
    tables.trim(8, 100)  # more tokens than it holds blocks for: nothing happens
    assert (tables.of(7, 1), tables.of(8, 1), tables.num_free, 7 in tables) == ([], [3, 2], 2, True)
    tables.check()
    tables.reserve({7: 8})
    assert tables.of(7, 0) == [0, 1]  # as it held them before
    with pytest.raises(KeyError):
        tables.trim(9, 4)


def test_the_block_check_finds_a_block_that_is_lost():
    tables = BlockTables(num_tables=1, num_blocks=2, block_size=4)
    tables.reserve({1: 4})
    tables.of(1, 0).pop()
    with pytest.raises(AssertionError, match="lost or owned twice"):
        tables.check()
