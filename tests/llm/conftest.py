"""Fixtures of the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from served import BLOCKS, copied

from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2


@pytest.fixture(scope="module")
def llm(tiny: GPT2) -> LLM:
    """Three requests at a time, so that some wait."""
    return LLM(tiny, tokenizer="tiny", max_num_seqs=3, block_size=16, num_kvcache_blocks=BLOCKS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled model, whose requests without params and whose end tokens no generation_config.json names."""
    return copied(tmp_path, "generation_config.json")


@pytest.fixture(autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest):
    """All blocks are free and no request is in the engine after every test."""
    yield
    if "llm" in request.fixturenames:
        engine = request.getfixturevalue("llm").engine
        engine.blocks.check()
        assert (engine.blocks.num_free, engine.has_work) == (engine.blocks.num_blocks, False)
