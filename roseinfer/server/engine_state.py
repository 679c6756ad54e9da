"""EngineState: what an engine is doing, as numbers that any thread may read."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.llm.stage_engine import AnyEngine


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine's numbers between two steps. running, waiting: sequences.

    blocks: of the pool; free_blocks: those in no table, including the cached_blocks that the prefix cache can find.
    asked_tokens, found_tokens: those that the prefix cache was asked for and had, so far.
    """

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    steps: int = 0
    new_tokens: int = 0
    preemptions: int = 0
    asked_tokens: int = 0
    found_tokens: int = 0

    @property
    def pool_usage(self) -> float:
        """Share of the pool's blocks that sequences hold."""
        return 1 - self.free_blocks / self.blocks if self.blocks else 0.0


def state_of(engine: AnyEngine) -> EngineState:
    """Read an engine's state. The thread that steps the engine must call it."""
    scheduler, blocks = engine.scheduler, engine.blocks
    cache = blocks.prefix_cache
    return EngineState(
        running=len(scheduler.running),
        waiting=scheduler.num_waiting,
        blocks=blocks.num_blocks,
        free_blocks=blocks.num_free,
        cached_blocks=len(cache.idle) if cache else 0,
        steps=engine.metrics.num_steps,
        new_tokens=engine.metrics.num_new_tokens,
        preemptions=scheduler.num_preemptions,
        asked_tokens=cache.num_asked_tokens if cache else 0,
        found_tokens=cache.num_found_tokens if cache else 0,
    )
