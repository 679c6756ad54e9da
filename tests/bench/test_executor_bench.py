"""Both executors are raced on the same batches, their tokens compared, every sample kept. No time is judged."""

from __future__ import annotations

import json

import pytest

from roseinfer.bench import executors as module
from roseinfer.bench.executors import IN_TURN, ONE_BEHIND, WITH_DRAFTS, WITHOUT, drafts, executors
from roseinfer.bench.online import serve
from roseinfer.bench.race import Run
from roseinfer.bench.settings import Drafts, Executors


def test_every_run_of_both_is_kept_and_their_tokens_are_compared(monkeypatch: pytest.MonkeyPatch):
    depths = []

    def noted(engine, work):
        depths.append(engine.depth)
        return serve(engine, work)

    monkeypatch.setattr(module, "serve", noted)
    result = executors(Executors(batch_sizes=[1, 3], prompt_len=4, max_tokens=5, repeats=2, device="cpu"))
    assert len(depths) == 3 * 4 and sorted(depths[:4]) == [1, 1, 2, 2]
    assert [row["batch_size"] for row in result.rows] == [1, 3] and [row["tokens"] for row in result.rows] == [5, 15]
    assert all(row["same_tokens"] is True for row in result.rows)
    assert all([len(row["seconds"][name]) for name in (IN_TURN, ONE_BEHIND)] == [2, 2] for row in result.rows)
    assert json.loads(result.to_json())["rows"] == result.rows
    assert result.text().splitlines()[2].split()[0] == "1"


def test_other_tokens_are_told_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "serve", lambda engine, work: Run.of_batch([[1, engine.depth]], 0.0, 1.0))
    result = executors(Executors(batch_sizes=[1], repeats=1, device="cpu"))
    assert result.rows[0]["same_tokens"] is False and result.text().splitlines()[2].split()[-1] == "no"


@pytest.mark.slow
def test_drafts_are_raced_on_texts_that_repeat_themselves(monkeypatch: pytest.MonkeyPatch):
    speculative, prompts = [], []

    def noted(engine, work):
        speculative.append(engine.config.speculative is not None)
        prompts.append([prompt for _, prompt in work])
        return serve(engine, work)

    monkeypatch.setattr(module, "serve", noted)
    result = drafts(Drafts(batch_sizes=[2], prompt_len=90, max_tokens=40, repeats=2, device="cpu"))
    # The texts that prompts are taken from, a run of each engine for warm-up, and the runs that count.
    assert speculative == [False, True, False, False, True, True, False]
    (row,) = result.rows
    assert row["same_tokens"] is True and [*row["seconds"]] == [WITHOUT, WITH_DRAFTS] == [*row["steps"]]
    assert row["steps"][WITHOUT] == 40 and json.loads(result.to_json())["rows"] == result.rows
    assert len(prompts[0]) == 16 and len(prompts[1]) == 2
    assert all(prompts[1] == others for others in prompts[2:]) and all(len(prompt) == 90 for prompt in prompts[1])
    assert "steps with drafts" in result.text() and json.loads(result.to_line())["rows"][0]["steps"] == row["steps"]
