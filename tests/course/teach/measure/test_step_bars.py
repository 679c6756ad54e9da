"""draw_step_parts: the parts of a decode step add up to it, and the stages are left as they were."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course import teach
from course.teach.measure import step_parts as parts_of
from course.teach.measure.step_bars import COLOURS, chart_of
from course.teach.measure.step_parts import ATTENTION, CHOICE, FORWARD, HOST, PARTS, PRODUCTS, REPLAY, TABLES
from roseinfer.bench.contenders import StageContender
from roseinfer.generate import decode_step
from roseinfer.models import load_model
from roseinfer.profiling.span_times import TimedSpan
from roseinfer.profiling.traces.phases import PHASES
from stages import Graphs, NaiveCat, OneTable, VectorizedGather

NO_PART = dict.fromkeys(PARTS, 0.0)


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


def step_of(*spans):
    return parts_of.TimedStep(0.0, 10.0, [TimedSpan(*each) for each in spans])


def test_the_parts_of_a_step_add_up_to_it():
    forward, gather, append = (PHASES[name] for name in ("forward", "gather", "append"))
    parts = step_of(
        (gather, 1, 2), (PRODUCTS, 3, 4), (ATTENTION, 4, 6), (PRODUCTS, 6, 7), (forward, 2, 8), (append, 8, 8.5)
    ).parts()
    assert parts == NO_PART | {TABLES: 1.5, ATTENTION: 2, PRODUCTS: 2, FORWARD: 2, CHOICE: 1.5, HOST: 1}
    assert sum(parts.values()) == 10


def test_a_forward_in_which_nothing_is_heard_is_a_replay():
    assert step_of((PHASES["forward"], 2, 8)).parts() == NO_PART | {REPLAY: 6, CHOICE: 2, HOST: 2}


@pytest.mark.parametrize("stage_class", [NaiveCat, OneTable])
def test_attention_and_every_product_are_heard_and_the_model_is_left_as_it_was(model, stage_class):
    stage, seqs = StageContender(stage_class, model, [[1, 2, 3]] * 2, 8).at_step(1)
    names = [name for name, module in model.named_modules() if hasattr(module, "in_features")]
    heard = [each.name for each in parts_of._timed(stage, seqs, names).spans]
    layers = model.config.num_layers
    assert heard.count(ATTENTION) == layers and heard.count(PRODUCTS) == 4 * layers + 1
    assert "logits" not in vars(stage.model) and not stage.model._forward_pre_hooks
    fresh, others = StageContender(stage_class, model, [[1, 2, 3]] * 2, 8).at_step(2)
    assert decode_step(stage, seqs) == decode_step(fresh, others)


def test_a_graph_is_replayed_without_our_spans_in_it(model):
    parts = parts_of.step_parts((OneTable, Graphs), model, 2, 4, 3)
    assert parts["s10_one_table"][REPLAY] == 0 < parts["s10_one_table"][ATTENTION]
    assert parts["s13_graphs"][ATTENTION] == 0 < parts["s13_graphs"][REPLAY]
    assert all(seconds >= 0 for own in parts.values() for seconds in own.values())


def test_the_text_has_no_times(model):
    chart = teach.draw_step_parts(NaiveCat, VectorizedGather, model, 2, prompt_len=4, steps=2)
    assert repr(chart) == (
        "one decode step of s01_naive_cat and s04_vectorized_gather by its parts: 2 sequences, prompts of 4 tokens, "
        "means of 2 steps"
    )
    assert " ms" in chart.alt and chart.png.startswith(b"\x89PNG")


def test_only_parts_that_there_are_get_a_colour():
    chart = chart_of({"a": NO_PART | {TABLES: 0.002}, "b": NO_PART | {HOST: 0.001}}, "text")
    scale = chart.spec["layer"][0]["encoding"]["color"]["scale"]
    assert scale == {"domain": [TABLES, HOST], "range": [COLOURS[TABLES], COLOURS[HOST]]}
    assert chart.alt == "text; a 2.00 ms, b 1.00 ms" and set(COLOURS) == set(PARTS)


def test_bad_arguments_are_named(model):
    with pytest.raises(ValueError, match="stages must hold Stage classes"):
        teach.draw_step_parts(NaiveCat, None, model)
    with pytest.raises(ValueError, match="steps must be an integer of at least 1, got 0"):
        teach.draw_step_parts(NaiveCat, OneTable, model, steps=0)
    with pytest.raises(ValueError, match="model must be on the CPU, .* got cuda"):
        teach.draw_step_parts(NaiveCat, OneTable, SimpleNamespace(device=torch.device("cuda")))
