"""Scores, the judge, workloads, and files that are no entry."""

from __future__ import annotations

import json

import pytest
import torch
from small_contest import IMPORTS, KINDS, SMALL, score_of

from course.contest import WORKLOADS, Contest, draw_board, read_board, read_entry, require_free, write_board
from course.contest.board import RECORDED
from course.contest.entry import Draft, drafting_engine
from course.contest.entry_file import class_in
from course.contest.judge import first_wrong, mistake_in
from course.contest.score import score_row, scoreboard
from course.contest.workload import MIXED, SHORT, Request
from roseinfer.drive import drive
from roseinfer.models import load_model
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


def test_a_score_is_of_medians_and_its_range_of_pairs():
    row = score_row("a", "Policy", baseline=[2.0, 4.0, 3.0], own=[1.0, 1.5, 1.0])
    assert row["score"] == 3.0 and (row["score_min"], row["score_max"]) == (2.0, 3.0)
    assert row["verdict"] == "faster in 3 of 3 runs"
    assert score_row("a", "Policy", [1.0, 2.0], [1.5, 1.6])["verdict"] == "ranges overlap"
    assert score_row("a", "Policy", [1.0, 1.0], [1.5, 1.6])["verdict"] == "slower in 2 of 2 runs"


def test_a_contest_needs_a_run():
    with pytest.raises(ValueError, match="repeats must be an integer of at least 1, got 0"):
        Contest(SMALL, repeats=0)


# Workloads


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_every_run_has_the_same_lengths_and_new_contents(workload):
    first, second = (workload.draw(seed) for seed in (1, 2))
    for requests in (first, second):
        lengths = sorted((one.kind, len(one.prompt), one.max_tokens) for one in requests)
        assert lengths == sorted(map(tuple, workload.lengths))
    assert [len(one.prompt) for one in first] != [len(one.prompt) for one in second]
    assert not {tuple(one.prompt) for one in first} & {tuple(one.prompt) for one in second}
    assert workload.draw(1) == first
    assert sum(one.max_tokens for one in first) == workload.num_tokens


def test_kinds_of_prompts_are_what_they_are_called():
    requests = MIXED.draw(3)
    shared = [one.prompt for one in requests if one.kind == "shared"]
    repeating = [one.prompt for one in requests if one.kind == "repeating"]
    assert len(shared) == len(repeating) == 8
    assert len({tuple(prompt[:64]) for prompt in shared}) == 1
    assert len({tuple(prompt) for prompt in shared}) == 8
    assert all(prompt[-8:] == prompt[2:10] for prompt in repeating)
    assert {one.kind for one in SHORT.draw(3)} == {"plain"}


# The judge


def test_the_judge_knows_greedy_tokens_and_finds_the_first_wrong_one(model):
    requests = SMALL.draw(5)
    right = [reference_generate(model, [one.prompt], one.max_tokens)[0] for one in requests]
    assert mistake_in(model, requests, right) is None
    for number, tokens in enumerate(right):
        for place in range(len(tokens)):
            wrong = [list(one) for one in right]
            wrong[number][place] = (tokens[place] + 1) % 2048
            said = mistake_in(model, requests, wrong)
            assert said == f"request {number}: token {place} is wrong"


def test_ids_outside_the_vocabulary_are_wrong(model):
    prompt = SMALL.draw(5)[0].prompt
    [right] = reference_generate(model, [prompt], 3)
    assert first_wrong(model, prompt, right) is None
    for bad in (2048, -1):
        assert first_wrong(model, prompt, [*right[:2], bad]) == 2
        assert first_wrong(model, prompt, [bad, *right[:2]]) == 0
    wrong_before = [(right[0] + 1) % 2048, 2048]
    assert first_wrong(model, prompt, wrong_before) == 0


def test_two_logits_closer_than_rounding_are_both_right(monkeypatch):
    logits = torch.tensor([[1.0, 1.00005, 0.9], [0.0, 0.5, 0.5002]])
    monkeypatch.setattr("course.contest.judge.reference_logits", lambda model, ids: logits)

    class Model:
        class config:
            vocab_size = 3

    assert first_wrong(Model, [7], [0, 2]) is None
    assert first_wrong(Model, [7], [1, 1]) == 1


def test_a_request_with_the_tokens_of_another_is_told_so(model):
    prompts = [one.prompt for one in SMALL.draw(5)]
    requests = [Request(prompt, 4, "plain") for prompt in prompts]
    right = reference_generate(model, prompts, 4)
    turned = [right[1], right[2], right[0]]
    assert mistake_in(model, requests, turned).endswith(", and these are the tokens of request 1")


# Drafts


def test_a_draft_decides_how_many_steps_there_are_and_no_token(model):
    requests = [Request(one.prompt, 12, one.kind) for one in SMALL.draw(1)]
    right = [reference_generate(model, [one.prompt], 12)[0] for one in requests]
    texts = {tuple(one.prompt): one.prompt + tokens for one, tokens in zip(requests, right, strict=True)}

    class Knows(Draft):
        num_tokens = 3

        def draft(self, token_ids, num_tokens):
            whole = next(text for prompt, text in texts.items() if token_ids[: len(prompt)] == list(prompt))
            return whole[len(token_ids) :][: num_tokens + 5]  # too many are cut

    class Wrong(Draft):
        def draft(self, token_ids, num_tokens):
            return [0] * num_tokens

    steps = []
    for draft in (Knows, Wrong):
        engine = drafting_engine(draft, model)
        seqs = [Sequence(list(one.prompt), SamplingParams(max_tokens=12, ignore_eos=True)) for one in requests]
        steps.append(sum(1 for _ in drive(engine, seqs)))
        assert [seq.output_ids for seq in seqs] == right
    assert steps[0] == 4 and steps[1] >= 12  # of prompts one, and 11 tokens in steps of 4, 4 and 3


# Files


NO_ENTRY = {
    "a syntax error": ("class A:\n    def (", "line 2: is no Python ("),
    "a null byte": ("class A: x = '\0'", "is no Python ("),
    "no class": ("x = 1\n", "has no class; an entry is a class derived from Policy, Draft, Settings or Stage"),
}


@pytest.mark.parametrize(("source", "line"), NO_ENTRY.values(), ids=list(NO_ENTRY))
def test_a_file_without_a_class_is_refused_before_it_runs(source, line, tmp_path):
    path = tmp_path / "entry.py"
    path.write_text(source)
    with pytest.raises(ValueError) as error:
        read_entry(path)
    assert str(error.value).startswith(f"file {path}") and line in str(error.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    for name, line in (("none.py", "there is no such file"), ("", "cannot be read"), ("bytes.py", "UTF-8")):
        with pytest.raises(ValueError, match=line):
            read_entry(tmp_path / name)


NOT_ONE = {
    "two entries": (
        IMPORTS + "class A(Policy):\n    pass\nclass B(Draft):\n    pass\n",
        "has 2 entries, A, B: keep one in each file",
    ),
    "a class of no kind": (
        "class Fast:\n    pass\n",
        "Fast is no entry: derive it from Policy, Draft, Settings or Stage",
    ),
    "only imported ones": (IMPORTS + "if 0:\n    class A: pass\n", "has no class of its own at the top level"),
}


@pytest.mark.parametrize(("source", "line"), NOT_ONE.values(), ids=list(NOT_ONE))
def test_a_file_has_one_entry(source, line, entry_of):
    with pytest.raises(ValueError) as error:
        class_in(entry_of(source))
    assert line in str(error.value)


@pytest.mark.parametrize(
    "below", ["Entry = Mine", "Entry = Best = Mine", "made = Mine()", "Old = Policy", "key = Mine.key"]
)
def test_an_entry_may_have_several_names(below, entry_of):
    assert class_in(entry_of(IMPORTS + KINDS["Policy"] + below + "\n")).__name__ == "Mine"


def test_helpers_and_bases_of_an_entry_are_none(entry_of):
    source = """
        from course.contest import Policy

        class Helper:
            pass

        class Base(Policy):
            pass

        class Last(Base):
            pass
    """
    assert class_in(entry_of(source)).__name__ == "Last"


# The board


def test_a_board_is_written_and_read(tmp_path):
    path = tmp_path / "board.json"
    assert read_board(path) == []
    scores = [score_of("slow", 0.5), score_of("fast", 2.0)]
    write_board(path, scores)
    assert read_board(path) == scores
    lines = scoreboard(scores, []).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["fast", "slow"]
    assert "×2.00" in lines[2] and "×0.50" in lines[3]


def test_a_name_is_given_once(tmp_path):
    path = tmp_path / "board.json"
    write_board(path, [score_of("fast", 2.0)])
    require_free(path, "faster")
    for name in ("fast", "baseline"):
        with pytest.raises(ValueError, match=f"name '{name}' is taken on .*board.json: give another one"):
            require_free(path, name)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"entries": [{}]}', '{"entries": 3}', '{"entries": ["a"]}'])
def test_a_file_that_is_no_board_is_refused(text, tmp_path):
    path = tmp_path / "board.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="must be a scoreboard, as `roseinfer contest run` writes it"):
        read_board(path)


def test_the_chart_has_a_bar_for_each_entry_and_a_line_at_1():
    chart = draw_board([score_of("slow", 0.5), score_of("fast", 2.0)])
    assert repr(chart) == "scoreboard: fast, slow"
    data = json.dumps(chart.spec)
    assert data.index('"entry": "fast"') < data.index('"entry": "slow"') and '"one": 1' in data
    with pytest.raises(ValueError, match="at least one score"):
        draw_board([])


def test_the_engines_score_is_recorded_and_says_where_it_is_from():
    [score] = read_board(RECORDED)
    assert score.row["name"] == "Engine" and score.row["kind"] == "Settings"
    assert score.arguments["workload"] == "mixed"
    assert score.arguments["sha256"] == read_entry(RECORDED.with_suffix(".py")).sha256
    assert len(score.samples) == 2 * score.arguments["repeats"] and score.commit and score.device
