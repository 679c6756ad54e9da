"""Post 002, a contest entry on an NPU server: what of its claims can be counted is counted here, on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from roseinfer.bench.ladder import random_prompts
from roseinfer.engine.config import EngineConfig
from roseinfer.models import Model, load_model
from roseinfer.profiling import span, trace_once
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import PromptAttention

from ..data import post_facts
from ..report.content import Grid, NotRun, PostReport, Section, judge
from ..report.setting import Setting
from .arrays import dtype_section, greedy_section, prefill_section
from .scheduling import SEED, abort_section, order_section

STAGE = "s04"
PROMPT_LEN, STEPS = 8, 4
QKV_MODELS = ("tiny", "random:tiny-llama")  # GPT-2's architecture, and the post's


def engines(setting: Setting) -> list[EngineConfig]:
    """One, for the logits that are looked at."""
    return [setting.engine(setting.model or "tiny", num_seqs=8, tokens=PROMPT_LEN + STEPS, dtype="float32")]


def reproduce(setting: Setting) -> PostReport:
    about = post_facts("002")
    (config,) = engines(setting)
    setting.say(f"logits of {STEPS} steps of {config.model}")
    logits = real_logits(setting, config)
    setting.say(f"{about['num_requests']:,} requests in three orders")
    sections = [
        load_section(about),
        order_section(about),
        abort_section(about),
        dtype_section(about),
        greedy_section(about, logits),
        prefill_section(about),
        qkv_section(about, setting),
    ]
    return setting.report("002", {"model": config.model, "seed": SEED}, sections, not_run(about))


def load_section(about: Mapping[str, Any]) -> Section:
    slots, tokens = about["decode_batch_size"], about["num_blocks"] * about["block_size"]
    requests, columns, seq_length = about["num_requests"], about["block_table_columns"], about["seq_length"]
    return Section(
        "The load test and the pool",
        [
            f"The post sends {about['requests_per_second']} requests a second for {about['seconds']} seconds, to a "
            f"server that decodes at most {slots} at a time.",
            f"Its pool of {about['num_blocks']:,} blocks of {about['block_size']} tokens is small for that. With all "
            "slots taken each request has few tokens, its prompt included, so the slots can all be filled by short "
            "requests only. The post does not say how long its requests are.",
        ],
        facts=[
            judge("requests in all", requests, about["requests_per_second"] * about["seconds"], why="rate x seconds"),
            judge("columns of a block table in the warm-up", columns, seq_length // about["block_size"],
                  why="seq_length / block_size"),
        ],
        grids=[
            Grid(
                "The pool",
                ["what", "number"],
                [
                    ["tokens", tokens],
                    [f"tokens a request, {slots} running", tokens // slots],
                    [f"requests of {seq_length:,} tokens", tokens // seq_length],
                ],
            )
        ],
    )  # fmt: skip


def real_logits(setting: Setting, config: EngineConfig) -> Tensor:
    """Logits [N, V] of prefills and a few greedy decode steps."""
    model = setting.load(config)
    stage = setting.stages[STAGE](
        model, num_blocks=config.num_blocks, block_size=config.block_size, max_num_seqs=config.max_num_seqs
    )
    prompts = random_prompts(model, config.max_num_seqs, prompt_len=PROMPT_LEN, seed=SEED)
    seqs = [Sequence(prompt, SamplingParams(max_tokens=STEPS)) for prompt in prompts]
    logits = [torch.stack([stage.prefill(seq) for seq in seqs])]
    for _ in range(STEPS - 1):
        for seq, token in zip(seqs, logits[-1].argmax(dim=-1).tolist(), strict=True):
            seq.append(token)
        logits.append(stage.decode(seqs))
    return torch.cat(logits)


def qkv_section(about: Mapping[str, Any], setting: Setting) -> Section:
    claims = about["claims"]
    counts = {spec: matrix_products(load_model(spec, device=setting.device)) for spec in QKV_MODELS}
    fused = claims["qkv_products_after"]
    return Section(
        "q, k and v from one matrix product",
        [
            "The post joins the weights of q, k and v, so that a layer starts one matrix product for them instead of "
            f"{claims['qkv_products_before']}. The models here have them joined from the start, and the Llama family's "
            "gate and up as well, so there is no stage before it to race against.",
        ],
        facts=[
            judge(f"products for q, k and v in a layer, {spec}", fused, qkv, why="joined weights")
            for spec, (qkv, _) in counts.items()
        ],
        grids=[
            Grid(
                "aten::linear in one forward",
                ["model", "for q, k, v in a layer", "in a layer"],
                [[spec, qkv, layer] for spec, (qkv, layer) in counts.items()],
            )
        ],
    )


@torch.inference_mode()
def matrix_products(model: Model) -> tuple[int, int]:
    """aten::linear before the first attention, and in a layer, in one forward (counted by the profiler)."""
    attention = PromptAttention()

    def attend(*arguments: Any) -> Tensor:
        with span("attend"):
            return attention(*arguments)

    token_ids = torch.zeros(1, dtype=torch.int64, device=model.device)
    trace = trace_once(lambda: model(token_ids, torch.zeros_like(token_ids), attend))
    names = [event.name for event in trace.slices if event.name in ("aten::linear", "attend")]
    return names.index("attend"), names.count("aten::linear") // model.config.num_layers


def not_run(about: Mapping[str, Any]) -> list[NotRun]:
    return [
        NotRun(f"prefills of {about['prefill_batch_size']} prompts at a time", "figures of the post: it has none"),
        NotRun("separate against joined q, k and v, timed", "a model with the weights apart"),
        NotRun("sentence lengths chosen by the batch", "a stage that compiles for fixed lengths"),
        NotRun("warm-up before the first request", "a server"),
        NotRun("the load test and its seconds", f"a server, and the post's machine: {about['hardware']}"),
        NotRun(f"gains that the post quotes ({about['quoted_gains']})", "those systems; the post did not measure them"),
    ]
