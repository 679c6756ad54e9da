"""Steps of each kind, as the engine runs them and eager: all are timed, and leave the sequences as they were."""

from __future__ import annotations

import json

import pytest
from devices import DEVICES

from roseinfer.bench import eager as module
from roseinfer.bench.eager import AS_IT_RUNS, EAGER, eager
from roseinfer.bench.settings import Eager

pytestmark = pytest.mark.slow
KINDS = ["3 decodes", "3 decodes, a prompt of 9", "3 decodes with 2 drafts each"]


@pytest.mark.parametrize("device", DEVICES)
def test_every_step_of_both_ways_is_kept(device, monkeypatch: pytest.MonkeyPatch):
    ran = []

    def noted(engine, step):
        chosen = len(step.rows)
        engine.runner.launch(step)
        ran.append((engine.config.enforce_eager, sum(step.num_new), chosen, len(engine.runner.wait(step))))

    monkeypatch.setattr(module, "run_step", noted)
    setting = Eager(
        model="random:tiny-llama", batch_size=3, context=20, prompt_len=9, num_drafts=2, repeats=2, device=device
    )
    result = eager(setting)
    assert [(row["step"], row["tokens"]) for row in result.rows] == list(zip(KINDS, [3, 12, 9], strict=True))
    for row in result.rows:
        assert [*row["seconds"]] == [AS_IT_RUNS, EAGER] and all(len(own) == 2 for own in row["seconds"].values())
    # One token for each sequence, and one more after each draft; two steps are for warm-up.
    expected = [(way, *sizes) for way in (False, True) for sizes in ((3, 3, 3), (12, 4, 4), (9, 9, 9))]
    assert sorted(ran) == sorted(4 * expected)
    assert json.loads(result.to_json())["rows"] == result.rows and "ratio" in result.text()


def test_what_is_too_long_for_the_model_is_refused():
    for changed in ({"context": 10**6}, {"prompt_len": 10**6}):
        with pytest.raises(ValueError, match=f"{next(iter(changed))}=1000000"):
            eager(Eager(device="cpu", **changed))
