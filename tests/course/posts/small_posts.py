"""Posts reproduced on models as small as their counts allow."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from course.posts import data as posts
from course.posts import post000, post001, post002, post003, post004
from course.posts.data import post_facts
from course.posts.post002 import order
from course.posts.post003 import executors
from course.posts.report import PostReport, Setting
from roseinfer.models.load import shape_of
from roseinfer.models.shapes import random_model
from roseinfer.profiling import Machine
from stages import LADDER

STEPS, CACHED = 6, 9  # of post 001
SHORTER_EXAMPLE = {"batch_size": 8, "cached_tokens": CACHED, "scalar_reads": 28 * 8 * CACHED}
FEWER_SLOTS = {"num_requests": 375, "decode_batch_size": 32, "num_blocks": 256, "requests_per_second": 37.5}  # of 002
FEWER_REQUESTS = {"num_requests": 200}  # of 003
MACHINE = Machine("made up", "cpu", torch.float32, 1e11, 1e12, {})
MODULES = {"000": post000, "001": post001, "002": post002, "003": post003, "004": post004}
MODELS = {"000": "random:gpt2", "004": "random:tiny-llama"}


@dataclass
class Reproduced:
    """A post's report, and what it was made of."""

    report: PostReport
    parts: dict[str, Any]


def setting(post: str = "000", device: str = "cpu", **changed: Any) -> Setting:
    """A quick reproduction."""
    stages = {stage.name.split("_")[0]: stage for stage in LADDER}
    return Setting(torch.device(device), **{"stages": stages, "quick": True, "model": MODELS.get(post), **changed})


def edit_facts(folder: Path, patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """From now on the posts' data is a copy in `folder` with another about.json of post 001."""
    shutil.copytree(posts.POSTS / "001", folder / "001")
    (folder / "001" / "about.json").write_text(json.dumps(post_facts("001") | changes))
    patch.setattr(posts, "POSTS", folder)


def narrow_gpt2(*config: object) -> Any:
    """A model whose step starts as many ops as one of the post's: its layers and heads, with few values in each."""
    small = {"vocab_size": 64, "hidden_size": 24, "head_dim": 2, "intermediate_size": 8}
    return random_model(replace(shape_of("random:gpt2"), **small))


def kept(patch: pytest.MonkeyPatch, module: Any, name: str, parts: dict[str, Any]) -> None:
    """Keep what a function returns in `parts`, under its name."""
    function = getattr(module, name)
    patch.setattr(module, name, lambda *args: parts.setdefault(name, function(*args)))


def reproduce(post: str, folder: Path) -> Reproduced:
    """Reproduce a post. folder: for its data, where that is changed."""
    parts: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        if post == "000":
            patch.setattr(Setting, "load", narrow_gpt2)
        if post in ("000", "004"):
            kept(patch, MODULES[post], "measure", parts)
        if post == "001":
            edit_facts(folder, patch, num_steps=STEPS, num_decode_steps=STEPS - 1, python_gather=SHORTER_EXAMPLE)
        if post == "002":
            kept(patch, order, "simulated", parts)
            patch.setattr(post002, "order_section", lambda about: order.order_section(about | FEWER_SLOTS))
        if post == "003":
            race, about = executors.race, post_facts("003") | FEWER_REQUESTS
            patch.setattr(post003, "post_facts", lambda post: about)
            patch.setattr(executors, "race", lambda *what: race(*what[:3], 0.001, 1))
        return Reproduced(MODULES[post].reproduce(setting(post)), parts)
