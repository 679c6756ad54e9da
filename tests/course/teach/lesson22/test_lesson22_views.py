"""Pictures of lesson 22, and contests from a notebook."""

from __future__ import annotations

import pytest

from course import teach
from course.contest import Draft, Policy, Refused
from course.contest.score import Score, score_row
from course.contest.workload import MIXED
from course.teach.lesson22 import contest_cell, contest_pictures
from course.teach.lesson22.contest_cell import as_file, outcome
from course.teach.lesson22.contest_pictures import slots_picture
from course.teach.lesson22.contest_run import SLOTS, ContestRun, Stay, record_contest
from roseinfer.models import load_model


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


class LongestFirst(Policy):
    name = "longest"

    def key(self, seq):
        return len(seq) - seq.max_len


def test_a_workload_is_a_line_for_each_request():
    grid = teach.draw_workload("mixed", seed=4)
    assert grid.text == "workload mixed: 24 requests, 8 plain, 8 repeating, 8 shared; 660 new tokens"
    cells = grid.frames[0].panels[0].cells
    assert [c.width for c in cells[::2]] == [len(one.prompt) for one in MIXED.draw(4)]
    assert [c.width for c in cells[1::2]] == [one.max_tokens for one in MIXED.draw(4)]


@pytest.fixture(scope="module")
def baseline(model):
    return record_contest(None, model)


@pytest.mark.slow
def test_a_run_gives_every_request_its_tokens_in_the_steps_that_are_counted(baseline, model):
    runs = {"mixed": baseline, "short": record_contest(LongestFirst, model, "short")}
    for (workload, run), policy in zip(runs.items(), ("fcfs", LongestFirst()), strict=True):
        made = [sum(step.get(i, 0) for step in run.made) for i in range(len(run.requests))]
        assert made == [one.max_tokens for one in run.requests]
        assert run.num_steps == len(run.seconds) == teach.count_steps(policy, seed=4, workload=workload)
        assert all(len(step) <= SLOTS for step in run.made)


def test_stays_fill_the_first_free_slot():
    requests = MIXED.draw(1)[:3]
    made = [{0: 1, 1: 1}, {0: 1}, {0: 1, 2: 1}, {2: 1}]
    run = ContestRun(requests, made, [0.1] * 4)
    assert run.stays() == [Stay(0, 0, 0, 2), Stay(1, 1, 0, 0), Stay(2, 1, 2, 3)]
    assert run.num_empty == 4 * SLOTS - 6


def test_the_picture_moves_to_the_last_step_of_each_run():
    requests = MIXED.draw(1)[:2]
    short = ContestRun(requests, [{0: 1, 1: 1}] * 6, [0.1] * 6)
    long = ContestRun(requests, [{0: 1}] * 5 + [{1: 1}] * 5, [0.1] * 10)
    grid = slots_picture({"long": long, "short": short})
    assert (
        grid.text == "long: 10 steps, 70 empty slots over all of them\nshort: 6 steps, 36 empty slots over all of them"
    )
    assert grid.lengths == {"long": 3, "short": 2}
    assert "long, step 4 of 10: 1 of 8 slots in use, 1 requests queued" in grid.texts(0)
    assert "long, step 10 of 10: 1 of 8 slots in use, 0 requests queued" in grid.texts(2)
    assert "short, step 6 of 6: 2 of 8 slots in use, 0 requests queued" in grid.texts(1, "short")


@pytest.mark.slow
def test_the_profile_counts_all_steps_and_tokens(baseline, model, monkeypatch):
    monkeypatch.setattr(contest_pictures, "record_contest", lambda *arguments: baseline)
    shown = teach.profile_contest(None, model)
    assert shown.df["steps"].sum() == teach.count_steps("fcfs", seed=4)
    assert shown.df["tokens"].sum() == MIXED.num_tokens
    assert shown.df["of the time"].sum() == pytest.approx(1)


@pytest.mark.slow
def test_drafts_change_the_steps_of_a_run_and_no_token(model):
    class Last(Draft):
        def draft(self, token_ids, num_tokens):
            return token_ids[-2:]

    run = record_contest(Last, model, "short")
    assert sum(sum(step.values()) for step in run.made) == 112


# Contests


def score_of(name: str, speed: float) -> Score:
    row = score_row(name, "Policy", [1.0, 1.1], [1 / speed, 1.1 / speed])
    return Score(arguments={}, rows=[row], host={}, device="a CPU", versions={}, commit=None)


class Judged:
    """A contest that refuses the entry `bad`."""

    def score(self, file, name):
        if name == "bad":
            raise Refused("request 1: token 0 is wrong")
        return score_of(name, 2.0)


def test_an_entry_has_a_score_or_is_refused():
    fast, bad = (outcome(Judged(), name, "class A:\n    pass\n") for name in ("fast", "bad"))
    assert (fast["tokens"], fast["score"]) == ("equal", 2.0)
    assert (bad["tokens"], bad["verdict"]) == ("refused", "request 1: token 0 is wrong")


def test_a_stub_is_no_entry(monkeypatch):
    monkeypatch.setattr(contest_cell, "Contest", None)  # no contest is held
    shown = teach.run_contest({"mine": ...})
    assert "none yet" in repr(shown) and "nan" not in shown.to_html()


def test_an_unknown_workload_is_refused():
    with pytest.raises(ValueError, match="workload: unknown value 'long'"):
        teach.run_contest({"mine": "class A: pass\n"}, workload="long")


def test_an_entry_is_a_text_or_a_file(tmp_path):
    text = "class A:\n    pass\n"
    path = tmp_path / "a.py"
    path.write_text(text)
    assert as_file(text).source == as_file(str(path)).source == text
    assert as_file(text).path == "entry.py"


@pytest.mark.nightly
@pytest.mark.slow
def test_a_contest_scores_and_refuses():
    honest = "from course.contest import Policy\nclass A(Policy):\n    def key(self, seq):\n        return 0\n"
    wrong = honest.replace("return 0", "exit(3)")
    outcomes = teach.run_contest({"mine": honest, "leaves": wrong}, workload="short", repeats=1)
    mine, leaves = outcomes.df.to_dict("records")
    assert mine["score"] > 0
    assert leaves["verdict"] == "it failed in its first run: SystemExit: 3, in line 4 of entry.py"


def test_a_policy_tuned_to_one_workload_loses_on_another():
    class Tuned(Policy):
        def key(self, seq):
            return 0 if 48 <= seq.num_prompt_tokens <= 72 else 1

    shown = teach.compare_policies({"first come": "fcfs", "tuned": Tuned()}, ["mixed", "turned"], num_runs=4)
    counts = {(row.workload, row.policy): row.steps for row in shown.df.itertuples()}
    assert counts["mixed", "first come"] == (112 + 128 + 100 + 104) / 4
    assert counts["mixed", "tuned"] < counts["mixed", "first come"]
    assert counts["turned", "tuned"] > counts["turned", "first come"]
