"""Reproduces post 001, "Decode Profiling": the phases of a decode step, and what its labels leave out."""

from __future__ import annotations

from dataclasses import replace

import torch

from roseinfer.bench.settings import HF_NAME
from roseinfer.hardware import available_bytes
from roseinfer.planning.sizes import PlannedEngine

from ..data import post_facts
from ..report.content import PostReport
from ..report.setting import Setting
from .config import config_lesson
from .measure import measure_post
from .steps import gather, phases, residual
from .throughput import throughput

POST_MODEL, POST_DTYPE = "random:qwen2.5-7b", "float16"  # the post's shape; times do not depend on the weights' values
REPEATS = 3


def engines(setting: Setting) -> list[PlannedEngine]:
    """Plan an engine for each of the post's batch sizes, the largest last."""
    facts, here = post_facts("001"), POST_MODEL if setting.on_gpu else "random:qwen2.5-0.5b"
    model = setting.model or ("random:tiny-qwen2" if setting.quick else here)
    tokens = facts["python_gather"]["cached_tokens"] + facts["num_steps"]  # the last one is returned, never cached
    return [setting.engine(model, size, tokens - 1, max_model_len=tokens) for size in facts["batch_sizes"]]


def reproduce(setting: Setting) -> PostReport:
    """Reproduce the post. First raises ValueError for a model that is not found, is too short or does not fit."""
    configs = engines(setting)
    largest = configs[-1].sizes()
    theirs = engines(replace(setting, device=torch.device("cuda"), model=POST_MODEL))[-1].sizes()
    model = setting.load(largest.config)
    available = available_bytes(model.device)  # None where the device does not say
    has_room = available is None or largest.loaded_bytes <= available
    repeats = 1 if setting.quick else REPEATS
    measured = measure_post(setting, model, configs, repeats=repeats, with_hf=has_room)
    sections = [phases(measured), residual(measured), gather(measured), throughput(measured, theirs), config_lesson()]
    arguments = {
        "model": largest.config.model,
        "dtype": largest.config.dtype,
        "stage": measured.stage,
        "batch_sizes": [batch.size for batch in measured.batches],
        "prompt_len": measured.prompt_len,
        "num_steps": post_facts("001")["num_steps"],
        "repeats": repeats,
    }
    left_out = {
        "m": measured,
        "theirs": theirs,
        "missing_room": None if has_room else available,
        "is_the_posts": (largest.config.model, largest.config.dtype) == (POST_MODEL, POST_DTYPE),
        "hf": HF_NAME,
    }
    return setting.report("001", arguments, sections, left_out)
