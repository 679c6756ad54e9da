"""Background notebook a1: its pictures and its proof say exact facts, and refuse what is not there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course import teach
from roseinfer.models import Rope, load_model, load_tokenizer, model_config

WORDS = ["Return", " a", " copy", " "]
TOKEN_IDS = [357, 258, 1156, 297]


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


@pytest.fixture(scope="module")
def qwen():
    return load_model("random:tiny-qwen3")


@torch.no_grad()
def by_the_library(model, token_ids):
    """Hidden states after the embedding, each layer and the final norm, and logits."""
    states = [model.wte(torch.tensor(token_ids)) + model.wpe(torch.arange(len(token_ids)))]

    def attend(layer, q, k, v):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)

    for number, layer in enumerate(model.h):
        states.append(layer(states[-1], number, attend))
    states.append(model.ln_f(states[-1]))
    return states, model.logits(states[-1])


def test_heads_are_recorded_as_attention_gets_them(qwen):
    heads = teach.record_heads(qwen, [1, 2, 3])
    assert [(h.q.shape, h.k.shape, h.v.shape) for h in heads] == [((4, 3, 32), (2, 3, 32), (2, 3, 32))] * 2
    weights = heads[1].weights
    assert weights.shape == (4, 3, 3)
    assert torch.allclose(weights.sum(-1), torch.ones(4, 3)) and not weights.triu(1).any()


def test_weights_times_values_are_the_librarys_attention(qwen):
    heads = teach.record_heads(qwen, [5, 1, 7, 2])[0]
    k, v = (x.repeat_interleave(2, 0) for x in (heads.k, heads.v))
    want = F.scaled_dot_product_attention(heads.q, k, v, is_causal=True)
    assert torch.allclose(heads.weights @ v, want, atol=1e-5)


def test_a_layer_is_walked_operation_by_operation():
    picture = teach.walk_layer(model_config("tiny"), num_tokens=6)
    lines = repr(picture).splitlines()
    assert lines[0] == "one layer on 6 tokens, operation by operation:"
    assert lines[3:6] == ["  Q, K, V: 3 x [6, 192]", "  split into heads: 18 x [6, 32]", "  attention: 6 x [6, 32]"]
    assert picture.lengths == {"": 12}
    assert "operation 8: MLP up" in picture.texts(8) and "[6, 768]" in picture.texts(8)
    assert "[6, 768]" not in picture.texts(7)


def test_attention_fills_in_row_by_row(tiny):
    picture = teach.walk_attention(tiny, TOKEN_IDS, WORDS, heads=[(3, 0), (1, 3)])
    assert repr(picture).startswith("layer 3, head 0; layer 1, head 3, on 4 tokens: 10 of 16 scores are visible")
    assert picture.lengths == {"layer 3, head 0": 12, "layer 1, head 3": 12}
    assert "token 0, 'Return': scores" in picture.texts(0)
    assert "token 3, 'space': weighted sum" in picture.texts(11)
    assert "100" not in picture.texts(0) and "100" in picture.texts(1)  # the first token sees itself alone


def test_hidden_states_equal_those_of_transformers(tiny):
    states, logits = by_the_library(tiny, TOKEN_IDS)
    table = teach.prove_hidden_states(tiny, TOKEN_IDS, states, logits)
    assert list(table.df["after"]) == ["embedding", "layer 0", "layer 1", "layer 2", "layer 3", "final norm", "logits"]
    assert set(table.df["transformers"]) == {"equal"}


def test_a_hidden_state_that_differs_is_told_with_its_token(tiny):
    states, logits = by_the_library(tiny, TOKEN_IDS)
    states[2][3, 7] += 0.1
    states[4] = states[4][:3]
    verdicts = list(teach.prove_hidden_states(tiny, TOKEN_IDS, states, logits).df["transformers"])
    assert verdicts[2] == "differs from token 3" and verdicts[4] == "has shape [4, 192]"
    assert verdicts[1] == verdicts[3] == verdicts[5] == "equal"
    with pytest.raises(ValueError, match="states must be 6"):
        teach.prove_hidden_states(tiny, TOKEN_IDS, states[1:], logits)


def test_nan_is_not_equal(tiny):
    states, logits = by_the_library(tiny, TOKEN_IDS)
    states[2][1:] = torch.nan
    verdicts = teach.prove_hidden_states(tiny, TOKEN_IDS, states, logits * torch.nan).df["transformers"]
    assert (verdicts[1], verdicts[2], verdicts[6]) == ("equal", "differs from token 1", "differs from token 0")


def test_attention_maps_have_every_head(tiny):
    chart = teach.draw_attention_maps(tiny, TOKEN_IDS, WORDS, layer=2, head=3)
    assert repr(chart).startswith("attention weights of 4 layers with 6 heads each on 4 tokens")
    [data] = {part["data"]["values"] for part in chart.spec["layer"] if "data" in part} or {
        chart.spec["data"]["values"]
    }
    assert len(data.splitlines()) == 1 + 4 * 6 * 10
    assert {param["name"]: param["value"] for param in chart.spec["params"]} == {"the_layer": 2, "the_head": 3}


@pytest.mark.slow
@pytest.mark.nightly  # a fact of a published model; heads are recorded right where the tests above say so
def test_the_head_that_the_lesson_shows_finds_what_a_pronoun_means():
    tokenizer = load_tokenizer("smollm2")
    sentence = tokenizer.encode("Anna gave Tom a book because he needed it.").ids
    pieces = [tokenizer.decode([token]) for token in sentence]
    weights = teach.record_heads(load_model("smollm2"), sentence)[13].weights[8]
    for pronoun, noun in ((" he", " Tom"), (" it", " book")):
        assert weights[pieces.index(pronoun), pieces.index(noun)] > 0.5


def test_head_groups_say_who_reads_what():
    picture = teach.draw_head_groups({"own": model_config("tiny"), "shared": model_config("random:tiny-qwen3")})
    assert repr(picture) == (
        "own: 6 query heads, each with a KV head of its own; K and V take 384 numbers per token and layer\n"
        "shared: 4 query heads, 2 on each of 2 KV heads; K and V take 128 numbers per token and layer; with a "
        "KV head per query head they would take 256"
    )
    assert "K 2" in picture.texts(0, "own") and "K 2" not in picture.texts(0, "shared")


def test_rotations_have_a_dial_for_each_pair():
    chart = teach.draw_rotations(Rope(), head_dim=32, pairs=[0, 8])
    assert repr(chart) == "rotation of the pairs 0, 8 of a head with 32 numbers at positions 0 to 200, by a slider"
    assert [dial["title"]["text"] for dial in chart.spec["hconcat"]] == ["pair 0", "pair 8"]
    assert [dial["title"]["subtitle"] for dial in chart.spec["hconcat"]] == [
        "a turn in 6 tokens",
        "a turn in 628 tokens",
    ]


def test_forwards_are_timed_and_the_text_has_no_time(tiny):
    times = teach.time_forwards(tiny, [1, 8], repeats=2)
    assert repr(times) == "One forward of a prompt\ntokens\n------\n     1\n     8"
    first, longer = times.df["times the first"]
    assert first == 1 and longer > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: teach.draw_attention_maps(m, TOKEN_IDS, WORDS[:3]), "words must have 4 entries, .*, got 3"),
        (lambda m: teach.draw_attention_maps(m, TOKEN_IDS, WORDS, layer=4), "got 4, 0"),
        (lambda m: teach.walk_attention(m, TOKEN_IDS[:3], WORDS, [(0, 0)]), "words must have 3 entries, .*, got 4"),
        (lambda m: teach.walk_attention(m, TOKEN_IDS, WORDS, []), "heads must .*at least one"),
        (lambda m: teach.walk_attention(m, TOKEN_IDS, WORDS, [(4, 0)]), r"heads must .*\(4, 0\)"),
        (lambda m: teach.record_heads(m, [1] * 600), "token_ids must hold 1 to 512 tokens, got 600"),
        (lambda m: teach.record_heads(m, [1, 99_999]), "each of token_ids must be an integer from 0 to .*, got 99999"),
        (lambda m: teach.walk_layer(model_config("random:tiny-qwen3"), 3), "config must be .*, got .*'qwen3'"),
        (lambda m: teach.walk_layer(m.config, 2.5), "num_tokens must be an integer of at least 1, got 2.5"),
        (lambda m: teach.draw_head_groups({}), "at least one"),
        (lambda m: teach.draw_rotations(None, head_dim=32, pairs=[0]), "rope must be the Rope of a model"),
        (lambda m: teach.draw_rotations(Rope(), head_dim=33, pairs=[0]), "head_dim must be even, .*, got 33"),
        (lambda m: teach.draw_rotations(Rope(), head_dim=32, pairs=[16]), "pairs must be 0 to 15, got 16"),
        (lambda m: teach.draw_rotations(Rope(), head_dim=32, pairs=[0], last=10), "from 0 to 10, got 20"),
        (lambda m: teach.time_forwards(m, [513]), "at most 512, got 513"),
        (lambda m: teach.time_forwards(m, [1], repeats=0), "repeats must be an integer of at least 1, got 0"),
    ],
)
def test_what_cannot_be_shown_is_refused(tiny, call, message):
    with pytest.raises(ValueError, match=message):
        call(tiny)
