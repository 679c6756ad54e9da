"""What the engine takes of memory, measured in a process of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.offline import memory, peak_memory
from roseinfer.bench.offline.memory import NO_MODEL, resident
from roseinfer.bench.settings import Memory
from roseinfer.models import GPT2, ModelLoadError
from roseinfer.planning.sizes import PlannedEngine

pytestmark = pytest.mark.slow


def test_the_engines_peak_is_measured_in_a_process_of_its_own(spec: str, small: GPT2):
    result = peak_memory(Memory(model=spec, batch_size=2, prompt_len=5, max_tokens=6))
    parts = {row["memory"]: row["bytes"] for row in result.rows}
    assert parts["weights"] == 4 * sum(p.numel() for p in small.parameters())
    assert parts["pool"] == PlannedEngine(model=spec, num_blocks=2).sizes().pool_bytes
    assert parts["peak"] > parts["libraries"] > 50_000_000 and parts["beyond"] > 0
    assert parts["peak"] == sum(parts[name] for name in ("libraries", "weights", "pool", "beyond"))
    assert result.text().splitlines()[-3].split() == ["peak", f"{parts['peak'] / 1e6:,.0f}"]
    with pytest.raises(ValueError, match="^prompt_len=190 \\+ max_tokens=64 is 254 tokens, allowed: max_model_len=192"):
        peak_memory(Memory(model=spec, prompt_len=190))


@pytest.mark.parametrize(
    ("ended", "error", "said"),
    [
        ("sys.exit('engine float32 failed in a batch of 8')", ContenderFailed, "engine float32 failed in a batch of 8"),
        ("raise ValueError('no memory')", ContenderFailed, "engine float32: ValueError: no memory"),
        ("sys.exit(9)", ContenderFailed, "engine float32: exit status 9"),
        (f"print('it is a folder', file=sys.stderr); sys.exit({NO_MODEL})", ModelLoadError, "it is a folder"),
    ],
)
def test_what_fails_in_that_process_is_one_line_that_says_so_once(spec, monkeypatch, ended, error, said):
    monkeypatch.setattr(memory, "CHILD", f"import sys; {ended}")
    with pytest.raises(error, match=f"^{said}$"):
        peak_memory(Memory(model=spec))


def test_a_model_that_cannot_be_loaded_there_is_the_callers_mistake(spec: str, tmp_path: Path, capsys):
    shutil.copy(Path(spec) / "config.json", tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(SystemExit, match=f"^{NO_MODEL}$"):
        memory.answer(json.dumps({"model": str(tmp_path)}))
    assert capsys.readouterr().err.endswith("model.safetensors cannot be read: it is a folder\n")


def test_what_fails_there_otherwise_is_its_message_alone(spec: str, monkeypatch: pytest.MonkeyPatch):
    def fails(setting, precision):
        raise ContenderFailed("engine float32 failed in a batch of 8")

    monkeypatch.setattr(memory, "engine", fails)
    with pytest.raises(SystemExit, match="^engine float32 failed in a batch of 8$"):
        memory.answer(json.dumps({"model": spec}))


def test_resident_memory_is_at_most_its_peak():
    now = resident("VmRSS")
    assert 10_000_000 < now and resident("VmHWM") >= now


def test_a_contender_that_fails_there_says_so_once(monkeypatch: pytest.MonkeyPatch):
    def fails(*setting: object):
        raise ContenderFailed("engine float32 failed in a batch of 8")

    monkeypatch.setattr(memory, "engine", fails)
    with pytest.raises(SystemExit, match="^engine float32 failed in a batch of 8$"):
        memory.answer('{"model": "tiny"}')
