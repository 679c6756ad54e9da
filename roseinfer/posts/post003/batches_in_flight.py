"""One or more batches in flight on a device that runs one batch at a time, counted in device steps. No clock.

The rule: each of `in_flight` batches holds up to batch_size requests, and they take turns on the device. A step runs
one batch and makes one token for each of its requests. Before its turn a batch takes waiting requests into its free
places. A batch without requests is passed over. What the host does is taken to be hidden, and cost nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from roseinfer.arguments import require_count


@dataclass
class Request:
    """made_at: the device step at whose end each of its tokens was there, the first step being 1."""

    made_at: list[int] = field(default_factory=list)

    @property
    def gaps(self) -> list[int]:
        """Device steps from each token to the next."""
        return [after - before for before, after in zip(self.made_at, self.made_at[1:], strict=False)]

    @property
    def latency(self) -> int:
        """Device steps from the start of its first step to its last token."""
        return self.made_at[-1] - self.made_at[0] + 1


def take_turns(num_requests: int, num_tokens: int, batch_size: int, in_flight: int) -> list[Request]:
    """All requests, run to their end; each wants num_tokens. Raises ValueError for a number below 1."""
    counts = {"num_requests": num_requests, "num_tokens": num_tokens, "batch_size": batch_size, "in_flight": in_flight}
    for name, value in counts.items():
        require_count(name, value, at_least=1)
    requests = [Request() for _ in range(num_requests)]
    waiting = deque(requests)
    batches: deque[list[Request]] = deque([] for _ in range(in_flight))
    step = 0
    while waiting or any(batches):
        batch = batches.popleft()
        while waiting and len(batch) < batch_size:
            batch.append(waiting.popleft())
        step += bool(batch)
        for request in batch:
            request.made_at.append(step)
        batches.append([request for request in batch if len(request.made_at) < num_tokens])
    return requests
