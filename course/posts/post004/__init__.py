"""Post 004, "Paged Attention Block Table Cache": its benchmark before and after, and how often a row is built.

Before: block tables are built on every step (stage 05). After: a sequence's rows are kept until its blocks change (06).
"""

from __future__ import annotations

from ..data import post_facts
from ..posted_command import arguments_here, command_line
from ..report.content import PostReport
from ..report.setting import Setting
from . import tables
from .run import Measured, measure


def reproduce(setting: Setting) -> PostReport:
    """Reproduce the post. Raises ValueError for a model that is not found, does not fit, or has too few positions."""
    m = measure(setting)
    sections = [
        tables.summary(m),
        tables.rebuilds(m),
        tables.price(setting),
        tables.definitions(m),
        tables.signature(),
    ]
    arguments = m.chosen("num_requests", "max_new_tokens", "warmup_runs", "repeat_runs")
    arguments |= {when: stage.name for when, stage in m.stages.items()}
    return setting.report("004", arguments, sections, {"m": m, "all_tokens_need": all_tokens_need(setting, m)})


def all_tokens_need(setting: Setting, m: Measured) -> str:
    tokens, config = post_facts("004")["max_new_tokens"], m.model.config
    positions = m.work.prompt_lens[0] + tokens
    if positions > config.max_model_len:
        return f"a model with {positions} positions; {m.args.hf_model_id} has {config.max_model_len}"
    per_token = sum(run.decode_seconds for runs in m.runs.values() for run in runs) / m.args.max_new_tokens
    minutes = (1 + m.args.warmup_runs / m.args.repeat_runs) * per_token * tokens / 60
    again = command_line(arguments_here("004", {"--hf-model-id": m.args.hf_model_id, "--device": str(setting.device)}))
    return f"a GPU, or patience: at least {minutes:.0f} minutes from these times, with `{again}` and both stages"
