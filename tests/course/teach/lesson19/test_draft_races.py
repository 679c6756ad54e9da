"""Races of lesson 19: whole runs through a queue, what a drafted token costs, and how often it is accepted."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from course import teach
from course.teach.lesson19 import draft_race
from course.teach.lesson19.draft_picture import DraftStep
from roseinfer.bench import neighbours
from roseinfer.engine.speculation.payoff import Payoff
from roseinfer.models import load_model, load_tokenizer
from roseinfer.models.gguf_path import packaged_smollm2
from stages import OneKernel, Speculative

pytestmark = pytest.mark.slow


PASSAGES = [
    "Return the number of bytes in the string. Return the number",
    "Return True if the string is a string. Return True if the string",
    "A class is a type of an object. A class is a type",
]


@pytest.fixture(scope="module")
def model():
    """Return the bundled model without an end token: its short answers would end before a draft is made."""
    model = load_model("tiny", device="cpu")
    model.config = replace(model.config, eos_token_id=None)
    return model


@pytest.fixture(scope="module")
def prompts():
    return [load_tokenizer("tiny").encode(passage).ids for passage in PASSAGES]


@pytest.fixture(autouse=True)
def one_run_is_timed(monkeypatch):
    """The times of a race count nowhere here."""
    monkeypatch.setattr(draft_race, "RUNS", 1)


class NoDrafts(Speculative):
    name = "no_drafts"

    def draft(self, seq, num_tokens):
        return []


class WrongDrafts(Speculative):
    name = "wrong_drafts"

    def draft(self, seq, num_tokens):
        return [2047] * num_tokens


class SamePrompt(OneKernel):
    """Its tokens are wrong: it gives the last one of the prompt."""

    name = "wrong"

    def commit(self, seqs, tokens):
        return super().commit(seqs, [seq.token_ids[0] for seq in seqs][: len(tokens)])


def test_a_race_counts_steps_and_drafts_of_one_run(model, prompts):
    shown = teach.race_drafts(
        [OneKernel, Speculative, NoDrafts, WrongDrafts], model, {"one": prompts[:1]}, max_tokens=24
    )
    rows = shown.df.set_index("stage")
    plain, drafts, none, wrong = (
        rows.loc[name] for name in (OneKernel.name, Speculative.name, "no_drafts", "wrong_drafts")
    )
    # Stage 18 launches a step ahead: its first call of step() returns no token.
    assert plain["steps"] == 25 and none["steps"] == wrong["steps"] == 24
    assert drafts["steps"] == 24 - drafts["accepted"] and 0 < drafts["accepted"] <= drafts["drafted"]
    assert (none["drafted"], wrong["accepted"]) == (0, 0)
    # The first step computes the prompt, and no draft reaches past max_tokens.
    assert wrong["drafted"] == 19 * 4 + 3 + 2 + 1
    assert set(rows["tokens"]) == {"equal"} and plain["speed"] == 1
    assert "tok/s" not in repr(shown) and "tok/s" in shown.to_html()


def test_a_race_says_which_stage_has_other_tokens(model, prompts):
    rows = teach.race_drafts([OneKernel, SamePrompt], model, {"one": prompts[:1]}, max_tokens=4).df.set_index("stage")
    assert rows["tokens"].tolist() == ["equal", "different"]


def test_a_race_says_that_the_machine_is_busy(model, prompts, monkeypatch):
    waited = count(0.0, 5.0)
    monkeypatch.setattr(neighbours, "waited_seconds", lambda tasks: next(waited))
    shown = teach.race_drafts([OneKernel, Speculative], model, {"one": prompts[:1]}, max_tokens=4)
    assert "This machine is busy: threads of this race waited 10.0 s for a core in " in shown.to_html()
    assert "busy" not in repr(shown)


def test_sampled_requests_have_seeds_of_their_own_and_the_same_tokens_with_drafts(model, prompts):
    rows = teach.race_drafts([NoDrafts, Speculative], model, {"three": prompts}, 12, temperature=1.0).df
    assert rows["tokens"].tolist() == ["equal", "equal"] and rows["drafted"].tolist()[1] > 0


def test_drafts_are_proved_against_both_oracles(model, prompts):
    shown = teach.prove_drafts(Speculative, model, [*prompts[:2], [5]], max_tokens=16)
    assert shown.df["reference"].tolist() == shown.df["transformers"].tolist() == ["equal"] * 3
    assert shown.df["new tokens"].tolist() == [16, 16, 16]
    blocks, accepted = repr(shown).splitlines()[0].split("; ")[1:]
    assert blocks.endswith("blocks free at the end") and accepted.endswith("drafted tokens accepted")
    assert int(accepted.split()[0]) > 0


def test_a_proof_says_where_tokens_differ(model, prompts):
    shown = teach.prove_drafts(SamePrompt, model, prompts[:1], max_tokens=4)
    assert shown.df["reference"].tolist() == ["differs from token 0"]


def test_rows_are_timed_from_one_to_the_most(model):
    times = teach.time_rows(OneKernel, model, most=3)
    assert times.df["rows"].tolist() == [1, 2, 3] and (times.df["ms"] > 0).all()
    assert (times.df["ms per row"] * times.df["rows"]).tolist() == pytest.approx(times.df["ms"].tolist())
    assert "ms" not in repr(times).splitlines()[1]


def test_acceptance_leaves_out_what_comes_after_a_rejected_token(model, prompts, monkeypatch):
    steps = [
        DraftStep((), (9,)),  # the prompt
        DraftStep((1, 2, 3, 4), (1, 2, 7)),  # two accepted, one rejected, one after it
        DraftStep((1, 2), (1, 2, 5)),
        DraftStep((3,), (4,)),
    ]
    monkeypatch.setattr("course.teach.lesson19.draft_speed.record_drafts", lambda *args: steps)
    assert teach.acceptance(Speculative, model, prompts[0]) == 4 / (4 + 2)


def test_acceptance_needs_drafts(model, prompts):
    with pytest.raises(ValueError, match="no token of 4 was drafted"):
        teach.acceptance(NoDrafts, model, prompts[0], max_tokens=4)


def test_an_answer_ends_at_the_models_end_token(model, prompts):
    ended = load_model("tiny", device="cpu")
    rows = {
        each: teach.race_drafts([OneKernel], each, {"one": prompts[:1]}, max_tokens=64).df for each in (ended, model)
    }
    assert rows[ended]["steps"][0] < rows[model]["steps"][0] == 65


def test_a_question_is_written_in_the_models_chat_template():
    if packaged_smollm2() is None:
        pytest.skip("SmolLM2 is not installed")
    tokenizer = load_tokenizer("smollm2")
    ids = teach.chat_prompt("smollm2", tokenizer, "Who are you?")
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(ValueError, match="chat template"):
        teach.chat_prompt("tiny", load_tokenizer("tiny"), "Who are you?")


def test_the_gain_of_a_draft_is_a_geometric_sum():
    chart = teach.draw_draft_gain([1.0, 1.5, 2.0], 0.5)
    assert repr(chart).endswith("with 0, 1, 2, ... drafted: 1.00, 1.50, 1.75")
    [slider] = chart.spec["params"]
    assert slider["value"] == 0.5 and slider["bind"]["input"] == "range" and chart.png[:4] == b"\x89PNG"
    assert repr(teach.draw_draft_gain([1.0, 1.0], 1)).endswith("1.00, 2.00")


@pytest.mark.parametrize(
    ("seconds", "acceptance", "message"),
    [([], 0.5, "seconds must be at least one"), ([1.0], 1.1, "acceptance must be from 0 to 1, got 1.1")],
)
def test_a_gain_needs_seconds_and_a_probability(seconds, acceptance, message):
    with pytest.raises(ValueError, match=message):
        teach.draw_draft_gain(seconds, acceptance)


def test_a_stage_gets_the_learners_number_of_tokens(model, prompts):
    sizes = {"num_blocks": 4, "max_num_seqs": 9}
    assert teach.with_draft(Speculative, "mine", lambda ids, n: [1], num_tokens=7)(model, **sizes).num_tokens == 7
    assert teach.with_draft(Speculative, "mine", lambda ids, n: [1])(model, **sizes).num_tokens == 4
    none = teach.with_draft(Speculative, "mine", lambda ids, n: [1], num_tokens=0)
    rows = teach.race_drafts([Speculative, none], model, {"one": prompts[:1]}, max_tokens=8).df
    assert rows["drafted"].tolist()[1] == 0 and rows["tokens"].tolist() == ["equal", "equal"]


def test_the_engine_with_drafts_gives_the_same_tokens(model, prompts, monkeypatch):
    monkeypatch.setattr(Payoff, "is_worth", lambda self, num_seqs, num_drafts: True)  # else measured times decide
    shown = teach.race_engine_drafts(model, {"one": prompts[:1]}, max_tokens=24)
    assert shown.df["stage"].tolist() == ["engine", "engine, drafts"]
    assert shown.df["drafted"].tolist()[0] == 0 and shown.df["drafted"].tolist()[1] > 0
    assert "drafted" not in repr(shown) and set(shown.df["tokens"]) == {"equal"}
