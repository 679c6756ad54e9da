"""The teach layer: what its display objects say, and which mistakes its checker names."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import torch
from shown import in_cell, views

from course import teach
from course.teach.exercises.explain import explain_tensor, explain_tokens
from course.teach.source import listing
from stages import LADDER, FusedStep, Graphs, NaiveCat, OneTable, PreallocGather, SelectAppend, TokenBudget

# setup


def test_setup_seeds_everything_and_shows_no_machine_in_plain_text():
    def draw():
        teach.setup()
        return random.random(), np.random.rand(), torch.rand(()).item()

    assert draw() == draw()
    plain, shown = views(teach.setup(3))
    assert plain == "roseinfer course ready\nseed 3 for random, numpy and torch"
    assert str(torch.__version__) in shown and "bf16" in shown


def test_setup_shows_the_part_of_the_engine_that_a_lesson_builds(monkeypatch):
    shown_views = []
    monkeypatch.setattr("course.teach.notebook_setup.show", shown_views.append)
    teach.setup()
    assert shown_views == []
    teach.setup(lesson="14")
    assert [repr(view) for view in shown_views] == ["the engine on one page; lesson 14 builds: the scheduler"]
    with pytest.raises(ValueError, match="lesson must be one of 00.*got '99'"):
        teach.setup(lesson="99")


def test_lines_go_through_a_point_for_each_number():
    chart = teach.draw_lines("two lines", [1, 2], {"a": [3, 4], "b": [5, 6]}, "tokens", "MiB")
    assert repr(chart) == "two lines" and chart.spec["data"]["values"].splitlines()[1:] == [
        "a,1,3",
        "a,2,4",
        "b,1,5",
        "b,2,6",
    ]
    with pytest.raises(ValueError, match="lines must have 2 numbers each, one for each x, got 1 of 'b'"):
        teach.draw_lines("", [1, 2], {"a": [3, 4], "b": [5]}, "tokens", "MiB")


# show_stage, show_diff


def test_show_stage_counts_and_shows_header_and_code():
    plain, shown = views(teach.show_stage(PreallocGather))
    place, definition, methods, lines = plain.splitlines()
    assert place == "stages/s02_prealloc_gather.py"
    assert definition == "class PreallocGather(NaiveCat)"
    assert methods == "defines build_batched_past, gather_sequence_into"
    assert lines == "22 lines of code"
    assert "Where it loses:" in shown and "def gather_sequence_into" in shown


def test_show_diff_names_methods_with_their_line_counts():
    plain, shown = views(teach.show_diff(NaiveCat, PreallocGather))
    assert plain == (
        "s01_naive_cat -> s02_prealloc_gather\n"
        "  build_batched_past    changed  -11 +6\n"
        "  gather_sequence_into  new      +5"
    )
    assert "torch.cat(ks)" in shown and "def gather_sequence_into" in shown


def test_show_diff_leaves_out_the_code_that_an_exercise_asks_for():
    plain, shown = views(teach.show_diff(NaiveCat, PreallocGather, {"gather_sequence_into": "02.2"}))
    assert "  gather_sequence_into  new      see exercise 02.2" in plain
    assert "gather_sequence_into new, see exercise 02.2" in shown
    assert "def gather_sequence_into" not in shown and "def build_batched_past" in shown
    with pytest.raises(ValueError, match="one of build_batched_past, gather_sequence_into, got 'prefill'"):
        teach.show_diff(NaiveCat, PreallocGather, {"prefill": "02.2"})


def test_long_code_is_folded():
    shown = teach.show_diff(Graphs, TokenBudget).to_html()
    opened = re.findall(r"<details( open)?><summary><code>(\w+)</code>", shown)
    assert opened[0] == (" open", "__init__") and opened[-1][0] == ""
    assert "<details open>" in teach.show_source(TokenBudget.commit).to_html()
    assert "<details>" in teach.show_stage(TokenBudget).to_html()


def test_a_method_that_calls_the_old_one_extends_it():
    diff = teach.show_diff(OneTable, FusedStep)
    assert "  __init__       extends  +5\n" in repr(diff)
    [init] = [change for change in diff.changes if change.name == "__init__"]
    assert init.old == "" and "super().__init__(" in init.new


def test_show_diff_sees_changes_of_classes_in_between_and_backwards():
    both = repr(teach.show_diff(NaiveCat, SelectAppend)).splitlines()
    assert [line.split()[0] for line in both[1:]] == ["append", "build_batched_past", "gather_sequence_into"]
    assert "gather_sequence_into  gone     -5" in repr(teach.show_diff(PreallocGather, NaiveCat))
    assert repr(teach.show_diff(NaiveCat, NaiveCat)).endswith("no method changed")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(LADDER)))
def test_code_beside_code_fits_the_default_page_and_scrolls_where_it_is_narrower(number):
    shown = teach.show_diff(LADDER[number - 1], LADDER[number]).to_html()
    least = [int(pixels) for pixels in re.findall(r"min-width: (\d+)px", shown)]
    assert least and len(least) == shown.count('<div style="overflow-x: auto"><table')
    room = 832  # inside of a card, beside the side bar, in a window of 1,400 pixels
    assert max(least) <= room
    # Stage 05's build, which comes at 4 and goes at 8, has a word of 58 characters.
    assert ".<wbr>" in shown or number not in (4, 8)
    assert "overflow-wrap" not in shown and not re.search(r"\dch\b|calc\(", shown)  # units that Lab drops at first


def test_a_wrapped_line_goes_on_behind_its_indent_and_words_stay_whole():
    plain, brackets = listing.wrapped_lines("x = 1\n    a = rows()[0] -> None  # as-is", listing.SIGN["new"])
    style = "padding-left: 43.5px; text-indent: -43.5px"
    assert plain == f'<div style="{style}">+ x = <span class="rose-num">1</span></div>'
    assert brackets.startswith('<div style="padding-left: 72.5px; text-indent: -72.5px">+     a = ')
    assert '<span style="white-space: nowrap">rows()[<' in brackets
    assert brackets.count("nowrap") == 2 and ">-&gt;</span>" in brackets  # what is in a comment may break
    long = "    " + "x" * 54
    assert (
        "padding-left: 7.25px" in listing.wrapped_lines(long, listing.SIGN["old"])[0]
    )  # the room that the page has left


MINE = '''\
class Mine(SelectAppend):
    """My stage."""
    name = "mine"

    @property
    def num_free_blocks(self):
        return 7  # <always> & "ever"

    def append(self, seqs, step):
        pass
'''


def test_classes_from_a_notebook_cell_are_shown():
    mine = in_cell(MINE, SelectAppend=SelectAppend)["Mine"]
    plain, shown = views(teach.show_diff(SelectAppend, mine))
    assert plain.splitlines() == [
        "s03_select_append -> mine",
        "  num_free_blocks  changed  -2 +2",
        "  append           changed  -6 +2",
    ]
    assert 'return 7  # <always> & "ever"' in shown
    plain, shown = views(teach.show_stage(mine))
    assert plain.splitlines()[0] == "this notebook" and plain.endswith("7 lines of code")
    assert "My stage." in shown


def test_a_class_without_source_is_refused():
    made = type("Made", (SelectAppend,), {"append": eval("lambda self, seqs, step: None")})
    with pytest.raises(ValueError, match="no source that can be shown: define it in a module or a notebook cell"):
        teach.show_diff(SelectAppend, made)
    with pytest.raises(ValueError, match="old must be a class such as NaiveCat, got 's01'"):
        teach.show_diff("s01", SelectAppend)


# predict, reveal


def test_prediction_and_reveal_without_a_guess():
    guess = teach.predict("aten::copy_ per step", None)
    assert views(guess)[0] == 'guess for "aten::copy_ per step": none yet'
    plain, shown = views(teach.reveal(guess, 192, formula="12 layers x 8 sequences x 2 (K and V)", value=12 * 8 * 2))
    assert plain.splitlines() == [
        "aten::copy_ per step",
        "  measured  192",
        "  formula   12 layers x 8 sequences x 2 (K and V) = 192, explains it",
        "  guess     none",
    ]
    assert "explains the measured number" in shown


@pytest.mark.parametrize(
    ("guess", "remark"),
    [(192, "exactly right"), (96, "×2 below"), (384.0, "×2 above"), (200, "close: ×1.04 above"), (0, "192 away")],
)
def test_reveal_says_how_far_off_a_guess_is(guess, remark):
    plain, shown = views(teach.reveal(teach.predict("copies", guess), torch.tensor(192)))
    assert remark in shown and "inf" not in shown
    assert plain.endswith(f"guess     {guess:g}") and "formula" not in plain


def test_reveal_says_when_the_formula_falls_short():
    plain, shown = views(teach.reveal(teach.predict("slices"), 1128, formula="12 x 96", value=1152))
    assert "12 x 96 = 1,152, does not explain it" in plain and "24 too many" in shown


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="guess must be a finite number, got '96'"):
        teach.predict("copies", "96")
    with pytest.raises(ValueError, match="formula and value go together"):
        teach.reveal(teach.predict("copies"), 1, formula="1 x 1")
    with pytest.raises(ValueError, match="prediction must be what predict"):
        teach.reveal(96, 192)


# explain


def near(x):
    changed = x.clone()
    changed[1, 2] += 1
    return changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x + 1e-7, None),
        (lambda x: None, "got None: is a `return` missing?"),
        (lambda x: x.tolist(), "expected a tensor, got list"),
        (
            lambda x: x.reshape(1, 2, 3),
            "shape (1, 2, 3), expected (2, 3): values right, only dimensions of size 1 differ",
        ),
        (lambda x: x.T, "shape (3, 2), expected (2, 3): values right after permute(1, 0)"),
        (lambda x: x.reshape(3, 2), "shape (3, 2), expected (2, 3)"),
        (lambda x: x[:1], "shape (1, 3), expected (2, 3)"),
        (lambda x: x.double(), "dtype float64, expected float32"),
        (near, "1 of 6 values differ, first at (1, 2): got 6, expected 5"),
        (lambda x: x / (x != 4) * (x != 4), "1 of 6 values are NaN, first at (1, 1)"),
    ],
)
def test_explain_tensor(change, says):
    want = torch.arange(6.0).reshape(2, 3)
    assert explain_tensor(change(want), want) == says


def test_explain_tensor_finds_a_permutation_of_equal_shape():
    want = torch.arange(4).reshape(2, 2)
    assert explain_tensor(want.T, want) == "dimensions in another order: values right after permute(1, 0)"


def test_explain_tokens():
    assert explain_tokens([1, 2], [1, 2]) is None and explain_tokens(torch.tensor([1, 2]), [1, 2]) is None
    assert explain_tokens([1, 3], [1, 2]) == "token 1 is 3, expected 2; the 1 before it are right"
    assert explain_tokens([1], [1, 2]) == "1 tokens, expected 2; the first 1 are right"
    assert explain_tokens([[1], [3]], [[1], [2]]) == "sequence 1: token 0 is 3, expected 2"
    assert explain_tokens([[1]], [[1], [2]]) == "1 sequences, expected 2"
    assert explain_tokens(7, [1]) == "expected a list of token ids, got int"


# recorded


def test_recorded_runs_are_shown_when_there_are_any(tmp_path):
    assert "once there is a GPU report" in views(teach.recorded(folder=tmp_path))[1]
    (tmp_path / "runs" / "a100").mkdir(parents=True)
    (tmp_path / "runs" / "a100" / "ladder.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(ValueError, match="data/runs/a100/ladder.json is no result as `roseinfer ladder` writes it"):
        teach.recorded(folder=tmp_path)
