"""Reproduces post 001, "Decode Profiling": the phases of a decode step, and what its labels leave out."""

from __future__ import annotations

import torch

from roseinfer.bench.contenders import BLOCK_SIZE, HF_NAME
from roseinfer.engine.config import EngineConfig, EngineSizes
from roseinfer.models import load_model
from roseinfer.models.shapes import available_bytes

from ..data import post_facts
from ..report.content import NotRun, PostReport
from ..report.setting import Setting
from .config import config_lesson
from .measure import Measurements, measure_post
from .steps import gather, phases, residual
from .throughput import throughput

POST_MODEL, POST_DTYPE = "random:qwen2.5-7b", "float16"  # the post's shape; times do not depend on the weights' values
REPEATS = 3


def engines(setting: Setting) -> list[EngineConfig]:
    """One for each of the post's batch sizes, the largest last."""
    model, dtype = (POST_MODEL, POST_DTYPE) if setting.on_gpu else ("random:qwen2.5-0.5b", "float32")
    if setting.quick:
        model = "random:tiny-qwen2"
    return [
        _engine(setting.model or model, dtype, str(setting.device), size) for size in post_facts("001")["batch_sizes"]
    ]


def _engine(model: str, dtype: str, device: str, batch_size: int) -> EngineConfig:
    facts = post_facts("001")
    tokens = facts["python_gather"]["cached_tokens"] + facts["num_steps"]
    blocks = -(-(tokens - 1) // BLOCK_SIZE)  # the last token is returned, never cached
    return EngineConfig(
        model=model, num_blocks=batch_size * blocks, block_size=BLOCK_SIZE, max_num_seqs=batch_size,
        max_model_len=tokens, dtype=dtype, device=device,
    )  # fmt: skip


def reproduce(setting: Setting) -> PostReport:
    """Raises ValueError for a model that is not found, is too short or does not fit, before anything is measured."""
    configs = engines(setting)
    largest = configs[-1].sizes()
    theirs = _engine(POST_MODEL, POST_DTYPE, "cuda", largest.config.max_num_seqs).sizes()
    setting.say(f"loading {largest.config.model} in {largest.config.dtype}")
    model = load_model(largest.config.model, device=setting.device, dtype=getattr(torch, largest.config.dtype))

    no_hf = no_room_for_hf(largest, available_bytes(model.device))
    repeats = 1 if setting.quick else REPEATS
    measured = measure_post(setting, model, configs, repeats=repeats, with_hf=not no_hf)
    sections = [phases(measured), residual(measured), gather(measured), throughput(measured, theirs), config_lesson()]
    arguments = {
        "model": largest.config.model, "dtype": largest.config.dtype, "stage": measured.stage,
        "batch_sizes": [batch.size for batch in measured.batches], "prompt_len": measured.prompt_len,
        "num_steps": post_facts("001")["num_steps"], "repeats": repeats,
    }  # fmt: skip
    return setting.report("001", arguments, sections, no_hf + not_run(measured, theirs))


def no_room_for_hf(sizes: EngineSizes, available: int | None) -> list[NotRun]:
    """transformers gets a copy of the weights: that it cannot be run when `available` bytes of memory lack room for it,
    else []. available: None where the device does not say."""
    if available is None or sizes.weight_bytes <= available:
        return []
    needs = f"{sizes.weight_bytes:,} bytes for a second copy of the weights; {available:,} are available here"
    return [NotRun(f"{HF_NAME} at batch {sizes.config.max_num_seqs}", needs)]


def not_run(measured: Measurements, theirs: EngineSizes) -> list[NotRun]:
    """What of the post this run left out."""
    parts, config = [], measured.sizes.config
    if (config.model, config.dtype) != (POST_MODEL, POST_DTYPE):
        needs = f"a GPU with {theirs.total_bytes:,} bytes free: {theirs.weight_bytes:,} of weights, the rest KV pool"
        parts.append(NotRun(f"the post's shape, {POST_MODEL} in {POST_DTYPE}", f"{needs} and block tables"))
    if not measured.has_device_times:
        needs = "a GPU that the profiler can record: its gpu_user_annotation spans say which kernels a label launched"
        parts.append(NotRun("device time of the labels, which is what the post adds up", needs))
    parts += [
        NotRun(
            "the kernels that the post's profiler names (gemv at batch 1, tensor cores from batch 4 on)",
            "a GPU, and a part still to be written: device time by kernel",
        ),
        NotRun(
            "what filling a DynamicCache takes in each step",
            "mini-infer's own decode step: stage 04 hands attention the gathered batch as it is",
        ),
    ]
    return parts
