"""The offline race of an engine that drafts against the one that does not, and prompts that a model repeats."""

from __future__ import annotations

import importlib

import pytest
import torch
from oracles import prompts_of

from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.offline import offline
from roseinfer.bench.offline.prompts import PROMPTS, passages_of, repeating, steps_with_drafts
from roseinfer.bench.settings import Offline
from roseinfer.cli.main import main
from roseinfer.engine.speculation.payoff import Payoff
from roseinfer.models import GPT2, load_tokenizer
from roseinfer.profiling import Machine
from roseinfer.reference import reference_generate
from roseinfer.sequence import Sequence

RATES = Machine("a machine", "cpu", torch.float32, 1e9, 1e10, {})


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that take no time to measure, and drafts whatever the clock says."""
    monkeypatch.setattr(importlib.import_module("roseinfer.bench.offline.race"), "machine_for", lambda *given: RATES)
    monkeypatch.setattr(Payoff, "is_worth", lambda self, num_seqs, num_drafts: True)


def test_an_engine_with_drafts_runs_beside_the_one_without(spec):
    setting = Offline(
        model=spec,
        contenders=["engine"],
        batch_sizes=[1, 2],
        prompt_lens=[9],
        max_tokens=6,
        repeats=1,
        speculative="draft_model",
        draft_model=spec,
        num_drafts=2,
        device="cpu",
    )
    result = offline(setting)
    assert [row["name"] for row in result.rows] == ["engine", "engine + draft_model"] * 2
    assert all(sample["tokens_equal"] == 1.0 for sample in result.samples)
    # Of 6 tokens one comes with the prompt; 5 take two steps, whose last token needs no draft.
    drafts = [(sample.get("drafted"), sample.get("accepted")) for sample in result.samples]
    assert sorted(drafts, key=str) == [(3, 3), (6, 6), (None, None), (None, None)]
    assert "Drafts by draft_model that were accepted in a run that drafts: batch 1 100% of 3, 50% of its" in result.note
    assert result.arguments["prompts"] == "random" and not result.left_out


def test_repeating_prompts_end_as_they_begin(small: GPT2, spec):
    prompts = repeating(small, spec, 3, 24, 8, seed=0)
    assert [len(prompt) for prompt in prompts] == [24] * 3
    assert all(prompt[18:] == prompt[:6] for prompt in prompts)
    assert prompts == repeating(small, spec, 3, 24, 8, seed=0) != repeating(small, spec, 3, 24, 8, seed=1)


@pytest.mark.slow
def test_the_bundled_model_s_are_passages_that_it_repeats(tiny: GPT2):
    tokenizer = load_tokenizer("tiny")
    passages = passages_of(tiny, "tiny", 4, 40, seed=0)
    assert all(len(passage) == 40 and tokenizer.decode(passage)[0].isupper() for passage in passages)
    [prompt] = repeating(tiny, "tiny", 1, 192, 32, seed=0)
    [output] = reference_generate(tiny, [prompt], 32)
    seq = Sequence(prompt)
    seq.token_ids += output
    assert steps_with_drafts(seq) < 24


def test_steps_with_drafts_of_a_made_text():
    seq = Sequence([1, 2, 3, 4, 5, 6, 1, 2])
    seq.token_ids += [3, 4, 5, 6, 1, 9]  # four drafts hold, and so does the choice after them; then one without
    assert steps_with_drafts(seq) == 2
    [text] = prompts_of((30,), 97)
    assert steps_with_drafts(Sequence(text)) == 0


def test_drafts_are_for_the_engine(spec):
    with pytest.raises(ValueError, match="is for contenders with 'engine', got .'hf'."):
        offline(Offline(model=spec, speculative="ngram", contenders=["hf"]))
    assert {*PROMPTS} == {"random", "repeating"}


def test_drafts_that_cannot_be_made_are_an_error(spec):
    with pytest.raises(ContenderFailed, match=r"^engine \+ ngram cannot run: .*=600 drafts .* at most \d+"):
        offline(Offline(model=spec, contenders=["engine"], speculative="ngram", num_drafts=600, device="cpu"))


def test_the_command_races_the_model_against_itself_in_8_bits(spec, capsys):
    run = f"bench offline --model {spec} --contenders engine --batch-sizes 1 --max-tokens 4 --repeats 1"
    assert main([*run.split(), "--speculative", "draft_model"]) == 0
    assert "engine + draft_model" in capsys.readouterr().out
