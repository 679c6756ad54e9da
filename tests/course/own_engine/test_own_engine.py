"""A learner's own engine: the five solutions, kept as files, are one engine, and so are any four of them."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from course import teach
from course.contest import read_entry
from course.own_engine import PIECES, assembled, engine_in, keep, kept, load, my_engine
from course.teach.exercises.solutions import solution, solutions_of
from roseinfer import LLM, SamplingParams
from roseinfer.cli.main import main
from roseinfer.cli.repository import engine_at
from roseinfer.generate import requests
from roseinfer.models import load_model
from roseinfer.reference import reference_generate

SOURCES = {piece.name: solutions_of(piece.exercise_id[:2])[piece.exercise_id] for piece in PIECES}
NAMES = list(SOURCES)
PREFIX = list(range(40, 64))
PROMPTS = [[*PREFIX, 7, 8], [3], [*PREFIX, 9], list(range(5, 50)), [*PREFIX, 7, 8, 1, 2]]
NEW = [9, 12, 3, 6, 10]


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setenv(kept.PLACE, str(tmp_path / "my_engine"))
    return tmp_path / "my_engine"


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def expected(model):
    return [reference_generate(model, [prompt], n)[0] for prompt, n in zip(PROMPTS, NEW, strict=True)]


def keep_all(without=""):
    for piece in PIECES:
        if piece.name != without:
            keep(piece, SOURCES[piece.name])


@pytest.mark.parametrize("without", ["", *NAMES])
def test_the_solutions_are_an_engine_and_so_are_any_four_of_them(place, model, expected, without):
    """Requests that come in two waves, in a pool that is too small for all, with prompts that are cut."""
    keep_all(without)
    engine = my_engine()
    written = {cls.__module__.removeprefix("my_engine.") for cls in engine.__mro__}
    assert written & set(NAMES) == set(NAMES) - {without, "block_table"}, "its attention is handed over"
    assert hasattr(engine, "own_attention") == (without != "block_table")
    stage = engine(model, num_blocks=16, block_size=8, max_num_seqs=3, max_num_batched_tokens=11)
    seqs = requests(PROMPTS, [SamplingParams(max_tokens=n, ignore_eos=True) for n in NEW])
    for seq in seqs[:3]:
        stage.add(seq)
    for _ in range(4):
        stage.step()
    for seq in seqs[3:]:
        stage.add(seq)
    while stage.has_work:
        stage.step()
    assert [seq.output_ids for seq in seqs] == expected
    assert stage.num_found_tokens > 0, "the prefix is found"
    assert stage.num_free_blocks == 16
    stage.tables.check()


def test_an_engine_without_a_piece_is_the_courses():
    names = [cls.__module__ for cls in assembled({}).__mro__ if cls.__module__.startswith("my_engine")]
    assert names == [] and my_engine() is None


# Keeping


def test_a_kept_answer_is_overwritten_only_when_asked(place):
    piece, source = PIECES[1], SOURCES["one_table"]
    assert keep(piece, source) == f"kept in `{place / 'one_table.py'}`: one table with slots of your own engine"
    other = source + "# tidier\n"
    assert "has another answer, which stays" in keep(piece, other)
    assert (place / "one_table.py").read_text() == source
    assert keep(piece, other, replace=True).startswith("kept in ")
    assert (place / "one_table.py").read_text() == other


@pytest.mark.slow
def test_an_answer_that_passes_is_kept_and_shown(place):
    verdict = teach.check("05.4", solution("05.4"))
    assert verdict and "block_table.py" in verdict.note and verdict.note not in repr(verdict)
    assert (place / "block_table.py").read_text() == SOURCES["block_table"]
    assert list(teach.my_pieces().df["whose"]) == ["yours", *["the course's"] * 4]
    assert teach.my_entry() == str(place / "__init__.py")


def test_the_hash_of_an_entry_covers_its_pieces(place):
    keep_all()
    before = read_entry(place / "__init__.py").sha256
    keep(PIECES[1], SOURCES["one_table"] + "# tidier\n", replace=True)
    assert read_entry(place / "__init__.py").sha256 != before


def test_a_package_that_the_learner_has_changed_stays(place):
    keep(PIECES[1], SOURCES["one_table"])
    (place / "__init__.py").write_text("# mine\n")
    assert keep(PIECES[1], SOURCES["one_table"]).startswith("kept in ")
    assert (place / "__init__.py").read_text() == "# mine\n"


def test_a_folder_that_cannot_be_made_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(kept.PLACE, str(tmp_path / "file" / "my_engine"))
    assert keep(PIECES[0], "").startswith("not kept: ")


def test_a_run_that_keeps_no_record_keeps_no_answer():
    assert keep(PIECES[0], "") == "not kept: ROSEINFER_MY_ENGINE=off"
    assert teach.my_entry() is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import torch\n1 / 0", r"scheduler.py cannot be run as a file of its own \(ZeroDivisionError"),
        ("class Mine(Unknown): ...", "NameError: name 'Unknown' is not defined"),
        ("from stages import TokenBudget", "must have a class derived from TokenBudget, the scheduler with a budget"),
    ],
)
def test_a_file_that_is_no_piece_is_told(place, source, message):
    with pytest.raises(ValueError, match=message):
        load(PIECES[3], source, "scheduler.py")
    place.mkdir()
    (place / "scheduler.py").write_text(source)
    with pytest.raises(ValueError, match=message):
        engine_in(place)


# Behind an LLM


@pytest.fixture
def own_llm(place):
    keep_all()
    return LLM("tiny", device="cpu", stage=engine_at(str(place)), max_num_seqs=4)


def test_it_answers_as_the_engine_does(own_llm):
    params = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=12, temperature=0.8, seed=3, n=2),
        SamplingParams(max_tokens=40, temperature=0.9, top_k=20, top_p=0.9, seed=5, stop="."),
    ]
    prompts = ["Return a new", "A class that", "If the given"]
    own, engine = (llm.generate(prompts, params, use_tqdm=False) for llm in (own_llm, LLM("tiny", device="cpu")))
    told = [[[(one.text, one.finish_reason) for one in each.outputs] for each in outputs] for outputs in (own, engine)]
    assert told[0] == told[1]
    counted = own_llm.engine.metrics
    assert counted.num_new_tokens == sum(len(one.token_ids) for each in own for one in each.outputs)
    assert own_llm.engine.blocks.num_free == own_llm.engine.blocks.num_blocks and not own_llm.engine.has_work


def test_a_command_writes_the_same_text_with_it(place, capsys):
    keep_all()
    written = []
    for own in ([], ["--engine", str(place)]):
        assert main(["generate", "tiny", "Return a new", "--max-tokens", "12", "--temperature", "0", *own]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1] != ""


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"repetition_penalty": 1.5}, "repetition_penalty=1.5 is for the engine: a stage leaves logits as they are"),
        ({"min_p": 0.1}, "min_p=0.1 is for the engine"),
        ({"logprobs": 1}, "logprobs=1 is for the engine: a stage reports none"),
        ({"prompt_logprobs": 0}, "prompt_logprobs=0 is for the engine"),
    ],
)
def test_what_a_stage_does_not_do_is_refused_by_name(own_llm, params, message):
    with pytest.raises(ValueError, match=message):
        own_llm.generate("If", SamplingParams(**params), use_tqdm=False)
    with pytest.raises(ValueError, match="priority=1 is for the engine"):
        own_llm.generate("If", priority=[1], use_tqdm=False)
    assert not own_llm.engine.has_work


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantization": "int8"}, "quantization='int8' is for the engine: a stage takes block_size, max_model_len"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching=False is for the engine"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is for the engine"),
        ({"stage": torch.nn.Linear}, "stage must be a class derived from Stage with add, step, abort, has_work, got"),
    ],
)
def test_settings_that_a_stage_ignores_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        LLM("tiny", device="cpu", **{"stage": assembled({})} | settings)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "must be a folder with an __init__.py that has a class MyEngine"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("", "its __init__.py has no class MyEngine"),
    ],
)
def test_a_folder_that_is_no_engine_is_told(tmp_path, source, message):
    if source is not None:
        (tmp_path / "__init__.py").write_text(source)
    with pytest.raises(ValueError, match=f"--engine {tmp_path}: {message}"):
        engine_at(str(tmp_path))


def test_a_folder_with_the_name_of_a_module_does_not_replace_it(tmp_path):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "mine.py").write_text("class MyEngine: ...\n")
    (tmp_path / "json" / "__init__.py").write_text("from .mine import MyEngine\n")
    assert engine_at(str(tmp_path / "json")).__name__ == "MyEngine"
    assert sys.modules["json"] is json
