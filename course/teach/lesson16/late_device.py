"""LateDevice: a device that starts as late as it may, which finds inputs that were overwritten too early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LateDevice:
    """A device that computes its steps in order, and only when the host asks for a result or waits for a step."""

    def __init__(self) -> None:
        self.queue: list[tuple[_LateStep, Callable[[], Any]]] = []

    def launch(self, work: Callable[[], Any], num_tokens: int) -> _LateStep:
        launched = _LateStep(self)
        self.queue.append((launched, work))
        return launched


class _LateStep:
    def __init__(self, device: LateDevice) -> None:
        self.device = device

    def wait(self) -> None:
        """Compute every step up to this one."""
        while any(step is self for step, _ in self.device.queue):
            self.device.queue.pop(0)[1]()

    result = wait
