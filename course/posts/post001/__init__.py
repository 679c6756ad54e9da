"""Reproduces post 001, "Decode Profiling": the phases of a decode step, and what its labels leave out."""

from __future__ import annotations

from dataclasses import replace

import torch

from roseinfer.bench.settings import HF_NAME
from roseinfer.hardware import available_bytes
from roseinfer.planning.sizes import EngineSizes, PlannedEngine

from ..data import post_facts
from ..report.content import NotRun, PostReport
from ..report.setting import Setting
from .config import config_lesson
from .measure import Measurements, measure_post
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
    no_hf = no_room_for_hf(largest, available_bytes(model.device))
    repeats = 1 if setting.quick else REPEATS
    measured = measure_post(setting, model, configs, repeats=repeats, with_hf=not no_hf)
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
    return setting.report("001", arguments, sections, no_hf + not_run(measured, theirs))


def no_room_for_hf(sizes: EngineSizes, available: int | None) -> list[NotRun]:
    """Say that transformers cannot run, if `available` bytes have no room for its copy of the weights; else return [].

    available: None where the device does not say.
    """
    if available is None or sizes.loaded_bytes <= available:
        return []
    needs = f"{sizes.loaded_bytes:,} bytes for a second copy of the weights; {available:,} are available here"
    return [NotRun(f"{HF_NAME} at batch {sizes.config.max_num_seqs}", needs)]


def not_run(measured: Measurements, theirs: EngineSizes) -> list[NotRun]:
    """List the parts of the post that this run left out."""
    facts, parts, config = post_facts("001"), [], measured.sizes.config
    card = facts["hardware"].split(",")[0]
    if (config.model, config.dtype) != (POST_MODEL, POST_DTYPE):
        needs = f"a GPU with {theirs.total_bytes:,} bytes free, such as the post's {card}: {theirs.weight_bytes:,} of "
        shape = f"the post's shape, {POST_MODEL} in {POST_DTYPE}"
        parts.append(NotRun(shape, f"{needs}weights, the rest KV pool and buffers"))
    if not measured.has_device_times:
        needs = "a GPU that the profiler can record: its gpu_user_annotation spans say which kernels a label launched"
        parts.append(NotRun("device time of the labels, which is what the post adds up", needs))
        parts.append(NotRun("the kernels that the post's profiler names", f"an NVIDIA GPU; the post's: {card}"))
    if len(measured.batches[0].runs) == 1:
        parts.append(NotRun("which engine is faster: a single run of each does not show it", "more runs than --quick"))
    parts += [
        NotRun(
            f"the Python gather: {facts['python_gather_share']}, {facts['hf_share']['python_gather']:.1%} of "
            "transformers' tokens a second",
            f"mini-infer before its vectorised gather, and its {card}",
        ),
        NotRun(
            "what filling a DynamicCache takes in each step",
            "mini-infer's own decode step: stage 04 hands attention the gathered batch as it is",
        ),
    ]
    return parts
