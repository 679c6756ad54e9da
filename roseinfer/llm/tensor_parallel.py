"""tensor_parallel_size of LLM: which settings go with it, and the model that is split over so many processes."""

from __future__ import annotations

import torch

from roseinfer.arguments import require_count
from roseinfer.engine.config import EngineConfig, check_device
from roseinfer.models import Model, model_config
from roseinfer.parallel.ranks import Ranks
from roseinfer.parallel.split import check_whole, shard_config
from roseinfer.planning.pool_size import bytes_of_steps

from .loading import model_to_serve

# The forward of a step crosses processes, so no graph holds it, and the next step waits for it.
IN_TURN = {"enforce_eager": True, "async_scheduling": False}


def check_parallel(size: object, config: EngineConfig, quantization: str | None) -> None:
    """Raise ValueError for a size that is no count, and for settings that only a single process supports."""
    require_count("tensor_parallel_size", size, at_least=1)
    if size == 1:
        return
    with_it = f"with tensor_parallel_size={size}"
    if config.async_scheduling:
        raise ValueError(f"async_scheduling=True is not possible {with_it}: its steps run in turn. Leave it out")
    if quantization is not None:
        raise ValueError(f"quantization={quantization!r} is not possible {with_it}: weights keep their dtype")
    if config.speculative and config.speculative.model is not None:
        raise ValueError(
            f"speculative['model'] is not possible {with_it}: a draft model runs in one process. The method 'ngram' "
            "needs none"
        )


def parallel_model(model: str | Model, size: int, dtype: str | None, device: str | None) -> tuple[Model, Ranks]:
    """Return rank 0's part of a model, and the other ranks, which have theirs. model, dtype, device: as LLM takes them.

    The whole model is loaded in the CPU's memory, and each rank gets its part from there. Raises ValueError for what
    cannot be split, before a process is started, and RankFailed for a process that does not start.
    """
    device = device_of_ranks(model, size, device)
    if isinstance(model, str) and model:
        shard_config(model_config(model), size)  # before it is loaded
    whole = model_to_serve(model, dtype, "cpu" if isinstance(model, str) else None, None, prepared=False)
    check_whole(whole)
    shard_config(whole.config, size)
    ranks = Ranks(size, device)
    try:
        return ranks.load(whole, prepared=isinstance(model, str)), ranks
    except BaseException:
        ranks.close()
        raise


def device_of_ranks(model: str | Model, size: int, device: str | None) -> str:
    """Return "cpu" or "cuda". Raises ValueError for another device, and for more ranks than GPUs."""
    if isinstance(model, Model):
        kind = model.device.type
        if device is not None:
            raise ValueError(f"device={device!r} is for a spec: a Model has its own")
    else:
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
        check_device(kind)
    if kind not in ("cpu", "cuda"):
        raise ValueError(
            f"device must be 'cpu' or 'cuda' with tensor_parallel_size={size}, got {kind!r}: rank i has GPU i"
        )
    if kind == "cuda" and (here := torch.cuda.device_count()) < size:
        raise ValueError(f"tensor_parallel_size={size} needs as many GPUs, and this machine has {here}")
    return kind


def step_bytes(model: Model, config: EngineConfig, ranks: Ranks | None) -> int:
    """Return bytes_of_steps of a model. Where ranks have GPUs, all of them run the steps that it measures."""
    sizes = config.step_tokens, config.step_rows
    if ranks is None or model.device.type == "cpu":
        return bytes_of_steps(model, *sizes)
    with ranks.together("empty_forwards", sizes):
        return bytes_of_steps(model, *sizes)
