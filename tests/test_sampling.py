"""Sampling: greedy, exact zeros for banned tokens, seeds that do not depend on the batch, frequencies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.generate import generate
from roseinfer.sampling import probabilities, sample
from roseinfer.sequence import SamplingParams, Sequence
from stages import LADDER


def seq_of(length: int = 1, **params) -> Sequence:
    return Sequence([0] * length, SamplingParams(**params))


def test_temperature_zero_is_argmax_whatever_the_filters_say():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    seqs = [seq_of(temperature=0, top_k=3, top_p=0.5) for _ in range(6)]
    assert sample(logits, seqs) == logits.argmax(dim=-1).tolist()


@given(
    logits=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 0.5001, 2.0, 4.0]), min_size=2, max_size=30),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
    temperature=st.floats(0.1, 3.0),
)
def test_banned_tokens_have_probability_exactly_zero(logits, top_k, top_p, temperature):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    [probs] = probabilities(torch.tensor([logits]), [params])
    full = torch.softmax(torch.tensor(logits) / temperature, dim=-1)
    kept = probs > 0
    assert torch.isclose(probs.sum(), torch.tensor(1.0))
    if top_k:
        assert kept.sum() <= top_k
    if kept.any() and not kept.all():
        assert full[kept].min() >= full[~kept].max() - 1e-7  # what was banned is never likelier than what stayed
    after_k = full.sort(descending=True).values[: top_k or len(logits)]
    after_k = after_k / after_k.sum()
    smallest_kept = after_k[: int(kept.sum())][:-1].sum()
    assert smallest_kept < top_p + 1e-5  # without its least likely token the kept set is below top_p


def test_top_k_keeps_exactly_k_even_between_equals():
    [probs] = probabilities(torch.zeros(1, 8), [SamplingParams(temperature=1.0, top_k=3)])
    assert (probs > 0).sum() == 3


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in [(0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.99, 4), (1.0, 4)]:
        [probs] = probabilities(logits, [SamplingParams(temperature=1.0, top_p=top_p)])
        assert int((probs > 0).sum()) == kept, top_p


def test_rows_keep_their_own_parameters():
    logits = torch.zeros(3, 8)
    params = [SamplingParams(temperature=1.0, top_k=k) for k in (1, 4, 0)]
    assert (probabilities(logits, params) > 0).sum(dim=-1).tolist() == [1, 4, 8]


@pytest.mark.slow
def test_frequencies_follow_the_distribution():
    """Chi-square over 4,000 seeded draws: seed and length vary as they do in a run."""
    probs = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])
    draws = 4_000
    logits = probs.log().expand(draws, -1)
    seqs = [seq_of(length=1 + i % 100, temperature=1.0, seed=i // 100) for i in range(draws)]
    counts = torch.tensor(sample(logits, seqs)).bincount(minlength=5)
    chi_square = ((counts - draws * probs) ** 2 / (draws * probs)).sum()
    assert chi_square < 18.47  # 99.9% quantile for 4 degrees of freedom; the seeds are fixed, so this never flickers


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(small):
    seeded = SamplingParams(max_tokens=20, temperature=1.5, top_p=0.95, seed=11)
    others = SamplingParams(max_tokens=7, temperature=2.0)
    [alone] = generate(LADDER[0](small, num_blocks=8), [[1, 2, 3]], seeded)
    prompts = [[9] * 30, [1, 2, 3], [4, 4]]
    among = generate(LADDER[0](small, num_blocks=8), prompts, [others, seeded, others])[1]
    other_seed = SamplingParams(max_tokens=20, temperature=1.5, top_p=0.95, seed=12)
    [different] = generate(LADDER[0](small, num_blocks=8), [[1, 2, 3]], other_seed)
    assert alone.output_ids == among.output_ids != different.output_ids


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"B=2 sequences, got shape \(3, 5\)"):
        sample(torch.zeros(3, 5), [seq_of(), seq_of()])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[1.0, float("nan"), 2.0], [1.0, float("inf"), 2.0], [float("-inf")] * 3])
def test_logits_that_are_no_numbers_are_refused(row, temperature):
    fine = [1.0, 2.0, float("-inf")]  # -inf masks a token
    seqs = [seq_of(temperature=temperature), seq_of(temperature=temperature)]
    assert all(token < 2 for token in sample(torch.tensor([fine, fine]), seqs))
    with pytest.raises(ValueError, match="logits must be finite to sample from them, got NaN or infinity"):
        sample(torch.tensor([fine, row]), seqs)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 1e-38}, [0.0, 0.0, 1.0]),
        ({"temperature": 1e-300}, [0.0, 0.0, 1.0]),
        ({"temperature": 1e300}, [1 / 3, 1 / 3, 1 / 3]),
        ({"temperature": 10**400}, [1 / 3, 1 / 3, 1 / 3]),
        ({"temperature": 1.0, "top_p": 1e-46}, [0.0, 0.0, 1.0]),
        ({"temperature": 1.0, "top_k": 2**63}, torch.tensor([-3.0, 1.0, 4.0]).softmax(0).tolist()),
    ],
)
def test_parameters_at_their_limits(params, expected):
    [probs] = probabilities(torch.tensor([[-3.0, 1.0, 4.0]]), [SamplingParams(**params)])
    assert torch.allclose(probs, torch.tensor(expected))


def test_a_row_is_the_same_to_the_last_bit_whatever_is_beside_it():
    logits = torch.randn(200, 500, generator=torch.Generator().manual_seed(0))
    settings = [{}, {"top_k": 5}, {"top_p": 0.7}, {"top_k": 40, "top_p": 0.9}, {"temperature": 0.3}]
    params = [SamplingParams(**{"temperature": 1.0} | settings[row % 5]) for row in range(200)]
    among = probabilities(logits, params)
    alone = torch.cat([probabilities(logits[row : row + 1], params[row : row + 1]) for row in range(200)])
    assert torch.equal(among, alone)
